//! Picks free ports that the system does not assign to other sockets.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Below all common ephemeral ranges. The kernel could assign a port of such a range as source port
/// between a kill and a restart, and a client that reconnects could be connected to itself.
const FIRST: u16 = 10_000;
const COUNT: u16 = 10_000;

/// A cluster node listens for its peers at this distance; the two ranges do not overlap.
pub(crate) const BUS_OFFSET: u16 = 10_000;

/// Returns a port on which, together with the bus port above it, nothing listens on loopback.
pub(crate) fn free() -> u16 {
    // A random start keeps test processes apart; walking on from there never offers a port twice in
    // one.
    static START: OnceLock<u64> = OnceLock::new();
    static STEP: AtomicU64 = AtomicU64::new(0);

    let start = *START.get_or_init(|| RandomState::new().hash_one(std::process::id()) >> 1);
    for _ in 0..COUNT {
        let offset = (start + STEP.fetch_add(1, Ordering::Relaxed)) % u64::from(COUNT);
        let port = FIRST + u16::try_from(offset).unwrap_or_default();
        if is_free(port) && is_free(port + BUS_OFFSET) {
            return port;
        }
    }
    panic!("no free port among the {COUNT} from {FIRST} on 127.0.0.1");
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_in_use_is_skipped() {
        let (first, second) = (free(), free());
        assert_ne!(first, second);
        let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, first));
        assert!(!is_free(first));
    }
}
