//! Each network fault is active while it is enabled, and only then.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a failed assumption is a failed test")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use limiter_testing::{Proxy, RedisServer};
use support::{eventually, is_refused};

const SOON: Duration = Duration::from_millis(100);

#[test]
fn proxy_forwards_both_ways_and_counts() {
    let proxy = Proxy::start(RedisServer::shared().port());
    assert_eq!(
        proxy.url(),
        format!("redis://limiter:limits@127.0.0.1:{}/", proxy.port())
    );
    let mut client = Client::to(&proxy);
    let long = "x".repeat(1_000_000);
    let request = format!("*2\r\n$4\r\nECHO\r\n${}\r\n{long}\r\n", long.len());
    assert_eq!(
        client.request(&request, long.len() + 12).unwrap(),
        format!("${}\r\n{long}\r\n", long.len())
    );
    assert!(client.pings() && Client::to(&proxy).pings());
    assert_eq!(proxy.connections(), 2);
    eventually(|| proxy.open_connections() == 1);
    drop(client);
    eventually(|| proxy.open_connections() == 0);
}

#[test]
fn new_connections_go_to_the_new_target() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(old.port());
    old.command(&["SET", "name", "old"]);
    new.command(&["SET", "name", "new"]);
    let mut client = Client::to(&proxy);
    assert_eq!(client.request("GET name\r\n", 9).unwrap(), "$3\r\nold\r\n");
    proxy.set_target(new.port());
    assert_eq!(client.request("GET name\r\n", 9).unwrap(), "$3\r\nold\r\n");
    proxy.drop_connections();
    assert_eq!(proxy.open_connections(), 0);
    assert!(client.is_closed());
    assert_eq!(
        Client::to(&proxy).request("GET name\r\n", 9).unwrap(),
        "$3\r\nnew\r\n"
    );
}

#[test]
fn killed_server_ends_proxied_connections() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let mut client = Client::to(&proxy);
    assert!(client.pings());
    server.kill();
    assert!(client.is_closed());
    assert!(Client::to(&proxy).is_closed());
    server.restart();
    assert!(Client::to(&proxy).pings());
}

#[test]
fn delay_applies_to_each_direction_and_does_not_add_up() {
    let proxy = Proxy::start(RedisServer::shared().port());
    let mut client = Client::to(&proxy);
    assert!(client.pings());
    proxy.set_delay(SOON);
    let started = Instant::now();
    for _ in 0..20 {
        client.send("PING\r\n");
        // Long enough for separate pieces.
        std::thread::sleep(Duration::from_millis(2));
    }
    client.receive("+PONG\r\n".len() * 20).unwrap();
    assert!(started.elapsed() >= 2 * SOON, "{:?}", started.elapsed());
    assert!(started.elapsed() < 10 * SOON, "{:?}", started.elapsed());
    proxy.set_delay(Duration::ZERO);
    assert!(client.pings());
}

#[test]
fn black_hole_accepts_requests_and_sends_no_replies() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (mut active, mut idle, mut silent) = (Client::to(&proxy), Client::to(&proxy), Client::to(&proxy));
    assert!(active.pings() && idle.pings() && silent.pings());
    proxy.set_black_hole(true);
    let mut new = Client::to(&proxy);
    active.send("SET lost x\r\n");
    new.send("SET lost x\r\n");
    assert!(active.receives_nothing() && new.receives_nothing());
    proxy.set_black_hole(false);

    assert!(idle.pings());
    active.send("PING\r\n");
    new.send("PING\r\n");
    assert!(active.receives_nothing() && new.receives_nothing());
    assert_eq!(server.command(&["EXISTS", "lost"]).integer(), 0);
    assert!(Client::to(&proxy).pings());

    // Not even the end of the server passes.
    proxy.set_black_hole(true);
    server.kill();
    assert!(silent.receives_nothing() && Client::to(&proxy).receives_nothing());
    drop((active, idle, silent, new));
    eventually(|| proxy.open_connections() == 0);
}

#[test]
fn request_of_cut_reply_has_been_executed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (mut first, mut second, mut third) = (Client::to(&proxy), Client::to(&proxy), Client::to(&proxy));
    assert!(first.pings() && second.pings() && third.pings());
    proxy.cut_replies(1);
    assert!(first.request("INCR runs\r\n", 1).is_err());
    proxy.tear_replies(1);
    assert_eq!(second.request("INCR runs\r\n", 1).unwrap(), ":");
    assert!(second.is_closed());
    assert_eq!(server.command(&["GET", "runs"]).integer(), 2);
    assert_eq!(proxy.replies_cut(), 2);
    assert!(third.pings());
}

#[test]
fn proxy_refuses_new_connections_and_keeps_old_ones() {
    let proxy = Proxy::start(RedisServer::shared().port());
    let mut client = Client::to(&proxy);
    assert!(client.pings());
    for _ in 0..3 {
        proxy.refuse(true);
        proxy.refuse(true);
        assert!(is_refused(proxy.port()));
        assert!(client.pings());
        proxy.refuse(false);
        proxy.refuse(false);
        assert!(Client::to(&proxy).pings());
    }
    assert_eq!(proxy.connections(), 4);
}

#[test]
fn dropped_proxy_closes_connections_with_data_in_transit() {
    let proxy = Proxy::start(RedisServer::shared().port());
    let mut client = Client::to(&proxy);
    assert!(client.pings());
    proxy.set_delay(Duration::from_secs(3_600));
    client.send("PING\r\n");
    let (port, dropped) = (proxy.port(), Instant::now());
    drop(proxy);
    assert!(dropped.elapsed() < Duration::from_secs(2));
    assert!(client.is_closed() && is_refused(port));
}

struct Client(TcpStream);

impl Client {
    fn to(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self(stream)
    }

    /// A write to a closed connection may succeed or fail; only the read matters.
    fn send(&mut self, text: &str) {
        let _ = self.0.write_all(text.as_bytes());
    }

    fn receive(&mut self, length: usize) -> std::io::Result<String> {
        let mut reply = vec![0; length];
        self.0.read_exact(&mut reply)?;
        Ok(String::from_utf8(reply).unwrap())
    }

    fn request(&mut self, text: &str, length: usize) -> std::io::Result<String> {
        self.send(text);
        self.receive(length)
    }

    fn pings(&mut self) -> bool {
        self.request("PING\r\n", 7)
            .is_ok_and(|reply| reply == "+PONG\r\n")
    }

    fn is_closed(&mut self) -> bool {
        match self.receive(1) {
            Ok(_) => false,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    fn receives_nothing(&mut self) -> bool {
        self.0.set_read_timeout(Some(SOON)).unwrap();
        let error = self.receive(1).err().map(|error| error.kind());
        self.0.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        matches!(error, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }
}
