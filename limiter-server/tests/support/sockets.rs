//! Connections whose bytes a test writes itself.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Connects and sends bytes. A read fails after 30 seconds.
pub(crate) fn send(address: SocketAddr, bytes: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let timeout = Some(Duration::from_secs(30));
    stream.set_read_timeout(timeout).expect("a socket");
    stream.write_all(bytes.as_ref()).expect("a peer that reads");
    stream
}

/// Reads text until the peer ends the connection.
pub(crate) fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .expect("text and the end of the connection");
    text
}
