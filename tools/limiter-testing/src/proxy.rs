//! A TCP proxy with injectable network failures.

mod link;
mod pipe;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{port, wait};
use link::Link;

const PORT_ATTEMPTS: usize = 20;
const LISTEN_LIMIT: Duration = Duration::from_secs(5);

/// A TCP proxy in this process, in front of one server on the loopback interface.
///
/// By default it forwards all data. When one end of a connection closes, the other end receives all
/// earlier data and is then closed. Dropping the proxy ends its connections and threads.
///
/// ```
/// use limiter_testing::{Proxy, RedisServer};
///
/// let (old, new) = (RedisServer::start(), RedisServer::start());
/// let proxy = Proxy::start(old.port());
/// // A client of `proxy.url()` talks to `old`; from here on, it reconnects to `new`.
/// proxy.set_target(new.port());
/// proxy.drop_connections();
/// assert_eq!(proxy.open_connections(), 0);
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    network: Arc<Network>,
    /// The thread that owns the listener; `None` while connections are refused.
    listener: Mutex<Option<JoinHandle<()>>>,
}

/// State shared by the connections.
#[derive(Debug, Default)]
struct Network {
    target: AtomicU16,
    delay_us: AtomicU64,
    /// Bytes of replies per second; zero for no bound.
    reply_rate: AtomicU64,
    black_hole: AtomicBool,
    refusing: AtomicBool,
    replies_to_cut: AtomicUsize,
    replies_to_tear: AtomicUsize,
    replies_cut: AtomicUsize,
    opened: AtomicU64,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    link_gone: Condvar,
}

impl Proxy {
    /// Listens on a free loopback port, and forwards to this port on 127.0.0.1.
    ///
    /// # Panics
    /// If no port can be had.
    #[must_use]
    pub fn start(target_port: u16) -> Self {
        let (port, listener) = (0..PORT_ATTEMPTS)
            .find_map(|_| {
                let port = port::free();
                Some((port, TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?))
            })
            .unwrap_or_else(|| {
                panic!("{PORT_ATTEMPTS} consecutive ports were in use; the proxy could not listen")
            });
        let network = Arc::new(Network::default());
        network.target.store(target_port, Ordering::SeqCst);
        let listener = Mutex::new(Some(accept(Arc::clone(&network), listener)));
        Self {
            port,
            network,
            listener,
        }
    }

    /// Returns the port on 127.0.0.1 that clients connect to; it never changes.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL for clients, with the user that has [the least permissions](crate::acl).
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}@127.0.0.1:{}/", crate::acl::LOGIN, self.port)
    }

    /// Forwards new connections to another server; existing connections stay.
    pub fn set_target(&self, target_port: u16) {
        self.network.target.store(target_port, Ordering::SeqCst);
    }

    /// Ends all present connections at both ends, and returns once they are gone.
    pub fn drop_connections(&self) {
        let doomed: Vec<u64> = {
            let links = self.network.links();
            links.values().for_each(|link| link.close());
            links.keys().copied().collect()
        };
        let mut links = self.network.links();
        while doomed.iter().any(|id| links.contains_key(id)) {
            links = self
                .network
                .link_gone
                .wait(links)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Delays the delivery of data in both directions by this time. Default: zero.
    ///
    /// This simulates latency, not bandwidth: data that arrives in quick succession is delivered in
    /// quick succession. Connecting is not delayed.
    pub fn set_delay(&self, delay: Duration) {
        let delay_us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.network.delay_us.store(delay_us, Ordering::SeqCst);
    }

    /// Bounds the replies of each connection to this number of bytes per second; zero removes the
    /// bound. Default: zero.
    pub fn set_reply_rate(&self, bytes_per_second: u64) {
        self.network.reply_rate.store(bytes_per_second, Ordering::SeqCst);
    }

    /// Stops the delivery in both directions, including closed connections of the server, or ends
    /// this state.
    ///
    /// Connections stay open and new ones are accepted, but received data is discarded. A
    /// connection that lost data stays silent, also after this state, until its client closes it,
    /// which is then forwarded to the server. Other connections continue to work.
    pub fn set_black_hole(&self, on: bool) {
        self.network.black_hole.store(on, Ordering::SeqCst);
    }

    /// Discards the next `count` replies and closes their connections: the request was executed,
    /// but the client receives no reply.
    ///
    /// A reply is the data that arrives from the server at once on one connection, so replies to
    /// pipelined requests may count as one. Replies to the client's connection set-up count too.
    pub fn cut_replies(&self, count: usize) {
        self.network.replies_to_cut.store(count, Ordering::SeqCst);
    }

    /// As [`cut_replies`](Self::cut_replies), but the first byte of each reply is delivered.
    pub fn tear_replies(&self, count: usize) {
        self.network.replies_to_tear.store(count, Ordering::SeqCst);
    }

    /// Refuses new connections, as if no process listened on the port, or accepts them again;
    /// existing connections stay.
    ///
    /// # Panics
    /// Panics if the port cannot be bound again.
    #[track_caller]
    pub fn refuse(&self, on: bool) {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if on {
            self.network.refusing.store(true, Ordering::SeqCst);
            if let Some(thread) = listener.take() {
                // Sleeps until a connection arrives.
                let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
                let _ = thread.join();
            }
        } else if listener.is_none() {
            // Another process that received the port by chance is likely to release it soon.
            let bound = wait::poll(LISTEN_LIMIT, || {
                TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).ok()
            })
            .unwrap_or_else(|| panic!("port {} is used by another process", self.port));
            self.network.refusing.store(false, Ordering::SeqCst);
            *listener = Some(accept(Arc::clone(&self.network), bound));
        }
    }

    /// Returns the number of connections that were accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.network.opened.load(Ordering::SeqCst)
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.network.links().len()
    }

    /// Returns the number of replies that were cut or torn so far.
    #[must_use]
    pub fn replies_cut(&self) -> usize {
        self.network.replies_cut.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse(true);
        self.drop_connections();
    }
}

impl Network {
    fn links(&self) -> MutexGuard<'_, HashMap<u64, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us.load(Ordering::SeqCst))
    }

    /// Returns the time that the delivery of a part of a reply takes.
    fn transfer_time(&self, bytes: usize) -> Duration {
        match self.reply_rate.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            rate => Duration::from_micros(bytes as u64 * 1_000_000 / rate),
        }
    }

    fn is_black_hole(&self) -> bool {
        self.black_hole.load(Ordering::SeqCst)
    }

    fn target(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.target.load(Ordering::SeqCst)))
    }

    /// Returns the part of the received reply that may be delivered before its connection ends, if
    /// it is to end.
    fn cut(&self) -> Option<usize> {
        let take = |left: &AtomicUsize| {
            let less = |left: usize| left.checked_sub(1);
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok()
        };
        let allowed = match () {
            () if take(&self.replies_to_cut) => 0,
            () if take(&self.replies_to_tear) => 1,
            () => return None,
        };
        self.replies_cut.fetch_add(1, Ordering::SeqCst);
        Some(allowed)
    }

    fn open(self: &Arc<Self>, client: TcpStream) {
        let id = self.opened.fetch_add(1, Ordering::SeqCst);
        let link = Arc::new(Link::new(client));
        self.links().insert(id, Arc::clone(&link));
        let network = Arc::clone(self);
        thread::spawn(move || {
            link.run(&network);
            network.links().remove(&id);
            network.link_gone.notify_all();
        });
    }
}

fn accept(network: Arc<Network>, listener: TcpListener) -> JoinHandle<()> {
    thread::spawn(move || {
        for client in listener.incoming() {
            if network.refusing.load(Ordering::SeqCst) {
                break;
            }
            // A client that has already disconnected is ignored.
            if let Ok(client) = client {
                network.open(client);
            }
        }
    })
}
