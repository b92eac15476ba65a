//! The login of MySQL 8 without TLS, as `tests/store_mysql.rs` receives it from MySQL.
//!
//! Over TCP, the server requests the password encrypted by its RSA key. Over a unix socket, it
//! requests the password itself, and takes the driver's request of the key as a wrong password.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;

const LONG_PASSWORD: u32 = 1;
const PROTOCOL_41: u32 = 0x200;
const SECURE_CONNECTION: u32 = 0x8000;
const PLUGIN_AUTH: u32 = 0x0008_0000;

/// The key, which is the answer over TCP.
const KEY: &[u8] = b"\x01-----BEGIN PUBLIC KEY-----";
/// Error 1045, which is the answer over a unix socket.
const ACCESS_DENIED: &[u8] =
    b"\xff\x15\x04#28000Access denied for user 'root'@'localhost' (using password: YES)";

/// Serves logins at an address until the process ends.
pub(crate) fn serve_tcp() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let answer = |connection| answer_login(connection, KEY);
        listener.incoming().flatten().for_each(answer);
    });
    address
}

/// Serves logins at a unix socket until the process ends.
pub(crate) fn serve_unix(path: &Path) {
    let listener = UnixListener::bind(path).expect("a socket");
    std::thread::spawn(move || {
        let answer = |connection| answer_login(connection, ACCESS_DENIED);
        listener.incoming().flatten().for_each(answer);
    });
}

/// Requests the full authentication of `caching_sha2_password`, and sends an answer to the next
/// message.
fn answer_login(mut connection: impl Read + Write, answer: &[u8]) {
    let messages = [handshake(), vec![0x01, 0x04], answer.to_vec()];
    for (number, message) in messages.iter().enumerate() {
        // The numbers of the client are between those of the server.
        let number = u8::try_from(number * 2).expect("a small number");
        let length = u32::try_from(message.len())
            .expect("a short message")
            .to_le_bytes();
        let header = [length[0], length[1], length[2], number];
        let sent = connection.write_all(&[&header[..], message].concat());
        let mut answer = [0; 4];
        if sent.is_err() || connection.read_exact(&mut answer).is_err() {
            return;
        }
        let length = u32::from_le_bytes([answer[0], answer[1], answer[2], 0]);
        let mut body = vec![0; usize::try_from(length).expect("a length")];
        if connection.read_exact(&mut body).is_err() {
            return;
        }
    }
}

/// `HandshakeV10` of a server without TLS.
fn handshake() -> Vec<u8> {
    let capabilities = (LONG_PASSWORD | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH).to_le_bytes();
    let mut message = b"\x0a8.0.36\0".to_vec();
    // The number of the connection, and the first bytes of the nonce.
    message.extend([1, 0, 0, 0]);
    message.extend(b"12345678\0");
    message.extend(&capabilities[..2]);
    // The collation and the status.
    message.extend([255, 2, 0]);
    message.extend(&capabilities[2..]);
    // The length of the nonce, and reserved bytes.
    message.push(21);
    message.extend([0; 10]);
    message.extend(b"901234567890\0");
    message.extend(b"caching_sha2_password\0");
    message
}
