//! Resolution of host names.
//!
//! Problem: the system's resolver blocks a thread, cannot be cancelled, and may hang for half a
//! minute while no name server replies. Each lookup therefore runs in its own thread, which no
//! runtime waits for at shutdown, and all callers that need one name share its lookups. A pending
//! lookup is supplemented by another, since its query may have been lost; the interval grows with
//! the number of pending lookups. Invariant: one name occupies at most `MAX_LOOKUPS` threads,
//! independent of the number of callers.
//!
//! Tests: below (`unresolvable_name_uses_bounded_number_of_threads`).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use std::{io, thread};

use tokio::sync::watch;

use crate::support::jitter::with_jitter;
use crate::support::real_time::timeout;
use crate::support::sync::{Mutex, MutexGuard};

/// Base interval after which another lookup of a name starts; multiplied by the number of pending
/// lookups.
const NEXT_LOOKUP_AFTER: Duration = Duration::from_millis(150);
/// Upper bound of pending lookups of one name.
const MAX_LOOKUPS: u32 = 12;

static SYSTEM: LazyLock<DnsCache> = LazyLock::new(|| DnsCache::with_resolver(system));

/// Returns the addresses of a host with this port.
pub(crate) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let mut addresses = SYSTEM.addresses(host).await?.to_vec();
    addresses.iter_mut().for_each(|address| address.set_port(port));
    Ok(addresses)
}

/// Resolves a host through the system. The port is irrelevant.
fn system(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((host, 0).to_socket_addrs()?.collect())
}

/// Shares the lookups of names among concurrent callers. Results are not kept.
struct DnsCache {
    resolver: fn(&str) -> io::Result<Vec<SocketAddr>>,
    pending: Mutex<HashMap<String, PendingLookups>>,
}

/// The pending lookups of one name.
struct PendingLookups {
    count: u32,
    /// Start of the last lookup; `None` after a success.
    begun: Option<Instant>,
    result: watch::Sender<Option<LookupResult>>,
}

type LookupResult = Result<Arc<[SocketAddr]>, (io::ErrorKind, String)>;

impl DnsCache {
    fn with_resolver(resolver: fn(&str) -> io::Result<Vec<SocketAddr>>) -> Self {
        Self {
            resolver,
            pending: Mutex::default(),
        }
    }

    /// Waits for the next successful lookup, or for the failure of the last pending one.
    async fn addresses(&'static self, host: &str) -> io::Result<Arc<[SocketAddr]>> {
        let mut result = self.join(host)?;
        while timeout(with_jitter(NEXT_LOOKUP_AFTER), result.changed())
            .await
            .is_err()
        {
            self.join(host)?;
        }
        let result = result.borrow().clone();
        let unknown = || Err((io::ErrorKind::NotFound, "the host has no address".to_owned()));
        result
            .unwrap_or_else(unknown)
            .map_err(|(kind, text)| io::Error::new(kind, text))
    }

    /// Starts a lookup unless enough are pending. Returns the receiver of the result.
    fn join(&'static self, host: &str) -> io::Result<watch::Receiver<Option<LookupResult>>> {
        let (mut pending, now) = (self.lock(), Instant::now());
        let lookups = pending.entry(host.to_owned()).or_insert_with(|| PendingLookups {
            count: 0,
            begun: None,
            result: watch::Sender::new(None),
        });
        let pause = NEXT_LOOKUP_AFTER * lookups.count;
        let is_due = lookups.begun.is_none_or(|begun| now >= begun + pause);
        if is_due && lookups.count < MAX_LOOKUPS {
            let name = host.to_owned();
            let thread = thread::Builder::new().name("limiter-names".to_owned());
            match thread.spawn(move || self.end(&name, (self.resolver)(&name))) {
                Ok(_) => (lookups.count, lookups.begun) = (lookups.count + 1, Some(now)),
                Err(error) if lookups.count == 0 => {
                    pending.remove(host);
                    return Err(error);
                }
                // Pending lookups may still succeed.
                Err(_) => {}
            }
        }
        Ok(lookups.result.subscribe())
    }

    /// Records the end of a lookup.
    fn end(&self, host: &str, found: io::Result<Vec<SocketAddr>>) {
        let mut pending = self.lock();
        let Some(lookups) = pending.get_mut(host) else {
            return;
        };
        lookups.count -= 1;
        // Only the last pending lookup reports a failure, since another may still succeed.
        if found.is_ok() || lookups.count == 0 {
            let result = found
                .map(Arc::from)
                .map_err(|error| (error.kind(), error.to_string()));
            let _previous = lookups.result.send_replace(Some(result));
            // The result goes to current callers only; the next call starts a new lookup.
            lookups.begun = None;
        }
        if lookups.count == 0 {
            pending.remove(host);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, PendingLookups>> {
        self.pending.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::redis::client::dns::*;

    fn names(resolver: fn(&str) -> io::Result<Vec<SocketAddr>>) -> &'static DnsCache {
        Box::leak(Box::new(DnsCache::with_resolver(resolver)))
    }

    fn address(count: u32) -> SocketAddr {
        (Ipv4Addr::from(count), 0).into()
    }

    /// Resolves no name for the duration of a test.
    fn hang() -> ! {
        loop {
            thread::park();
        }
    }

    #[tokio::test]
    async fn unresolvable_name_uses_bounded_number_of_threads() {
        static LOOKUPS: AtomicU32 = AtomicU32::new(0);
        let names = names(|_| {
            LOOKUPS.fetch_add(1, Ordering::SeqCst);
            hang()
        });
        let calls = (0..100).map(|_| timeout(Duration::from_millis(800), names.addresses("h")));
        let results = tokio::task::JoinSet::from_iter(calls).join_all().await;
        assert!(results.iter().all(Result::is_err));
        let lookups = LOOKUPS.load(Ordering::SeqCst);
        // At 0, 150, 450 and not before 900 ms.
        assert!((2..=3).contains(&lookups), "{lookups}");
    }

    #[tokio::test]
    async fn lost_query_is_repeated_and_result_is_not_cached() {
        static LOOKUPS: AtomicU32 = AtomicU32::new(0);
        let names = names(|_| match LOOKUPS.fetch_add(1, Ordering::SeqCst) {
            0 => hang(),
            count => Ok(vec![address(count)]),
        });
        for count in 1..=2 {
            let found = timeout(NEXT_LOOKUP_AFTER * 4, names.addresses("h"))
                .await
                .unwrap();
            assert_eq!(*found.unwrap(), [address(count)]);
        }
    }

    #[tokio::test]
    async fn all_callers_receive_failure_and_entry_is_removed() {
        let names = names(|_| Err(io::Error::other("no such name")));
        for _ in 0..3 {
            let (first, second) = tokio::join!(names.addresses("h"), names.addresses("h"));
            for result in [first, second] {
                assert!(result.unwrap_err().to_string().contains("no such name"));
            }
        }
        assert!(names.lock().is_empty());
    }
}
