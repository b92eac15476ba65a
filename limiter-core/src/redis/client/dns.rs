//! The addresses of hosts.
//!
//! The system's look-up blocks a thread, and cannot be ended: while no server of names answers, it
//! may hang for half a minute. So it has a thread of its own, which no runtime waits for as it
//! ends, and whoever needs the same name waits for the same look-up. One that hangs gets company,
//! since its question may have been lost, but the more hang the later: a name keeps a handful of
//! threads, however long that lasts and however many ask.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use tokio::sync::watch;

use crate::support::jitter::varied;
use crate::support::real_time::timeout;

/// A look-up that has not ended by then gets company, two after twice the time, and so on …
const NEXT_LOOK_UP_AFTER: Duration = Duration::from_millis(150);
/// … up to so many.
const MOST_LOOK_UPS: u32 = 12;

static SYSTEM: LazyLock<DnsCache> = LazyLock::new(|| DnsCache::asking(system));

/// The addresses of a host at this port.
pub(crate) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let mut addresses = SYSTEM.addresses(host).await?.to_vec();
    addresses.iter_mut().for_each(|address| address.set_port(port));
    Ok(addresses)
}

/// The port is of no account.
fn system(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((host, 0).to_socket_addrs()?.collect())
}

/// Looks names up.
struct DnsCache {
    ask: fn(&str) -> io::Result<Vec<SocketAddr>>,
    under_way: Mutex<HashMap<String, PendingLookups>>,
}

/// Those of one name that have not ended.
struct PendingLookups {
    number: u32,
    /// When the last one began, unless there has been an answer since.
    begun: Option<Instant>,
    told: watch::Sender<Option<LookupResult>>,
}

type LookupResult = Result<Arc<[SocketAddr]>, (io::ErrorKind, String)>;

impl DnsCache {
    fn asking(ask: fn(&str) -> io::Result<Vec<SocketAddr>>) -> Self {
        Self {
            ask,
            under_way: Mutex::default(),
        }
    }

    /// Waits for the next look-up that finds the host, or for the failure of the last one.
    async fn addresses(&'static self, host: &str) -> io::Result<Arc<[SocketAddr]>> {
        let mut told = self.join(host)?;
        while timeout(varied(NEXT_LOOK_UP_AFTER), told.changed()).await.is_err() {
            self.join(host)?;
        }
        let told = told.borrow().clone();
        let unknown = || Err((io::ErrorKind::NotFound, "the host has no address".to_owned()));
        told.unwrap_or_else(unknown)
            .map_err(|(kind, text)| io::Error::new(kind, text))
    }

    /// Begins to look the host up, unless enough is under way; what that will tell.
    fn join(&'static self, host: &str) -> io::Result<watch::Receiver<Option<LookupResult>>> {
        let (mut under_way, now) = (self.lock(), Instant::now());
        let look_ups = under_way
            .entry(host.to_owned())
            .or_insert_with(|| PendingLookups {
                number: 0,
                begun: None,
                told: watch::Sender::new(None),
            });
        let pause = NEXT_LOOK_UP_AFTER * look_ups.number;
        let is_due = look_ups.begun.is_none_or(|begun| now >= begun + pause);
        if is_due && look_ups.number < MOST_LOOK_UPS {
            let name = host.to_owned();
            let thread = thread::Builder::new().name("limiter-names".to_owned());
            match thread.spawn(move || self.end(&name, (self.ask)(&name))) {
                Ok(_) => (look_ups.number, look_ups.begun) = (look_ups.number + 1, Some(now)),
                Err(error) if look_ups.number == 0 => {
                    under_way.remove(host);
                    return Err(error);
                }
                // The others may find it yet.
                Err(_) => {}
            }
        }
        Ok(look_ups.told.subscribe())
    }

    /// A look-up has ended.
    fn end(&self, host: &str, found: io::Result<Vec<SocketAddr>>) {
        let mut under_way = self.lock();
        let Some(look_ups) = under_way.get_mut(host) else {
            return;
        };
        look_ups.number -= 1;
        // A failure is told by the last: another may find it yet.
        if found.is_ok() || look_ups.number == 0 {
            let told = found
                .map(Arc::from)
                .map_err(|error| (error.kind(), error.to_string()));
            let _previous = look_ups.told.send_replace(Some(told));
            // What it found is for those who wait now.
            look_ups.begun = None;
        }
        if look_ups.number == 0 {
            under_way.remove(host);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, PendingLookups>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::redis::client::dns::*;

    fn names(ask: fn(&str) -> io::Result<Vec<SocketAddr>>) -> &'static DnsCache {
        Box::leak(Box::new(DnsCache::asking(ask)))
    }

    fn address(number: u32) -> SocketAddr {
        (Ipv4Addr::from(number), 0).into()
    }

    /// Servers of names that answer nothing for as long as a test lasts.
    fn hang() -> ! {
        loop {
            thread::park();
        }
    }

    #[tokio::test]
    async fn a_name_that_nobody_resolves_keeps_a_handful_of_threads_however_many_ask() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let names = names(|_| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            hang()
        });
        let asking = (0..100).map(|_| timeout(Duration::from_millis(800), names.addresses("h")));
        let asked = tokio::task::JoinSet::from_iter(asking).join_all().await;
        assert!(asked.iter().all(Result::is_err));
        let look_ups = ASKED.load(Ordering::SeqCst);
        // At 0, 150, 450 and not before 900 ms.
        assert!((2..=3).contains(&look_ups), "{look_ups}");
    }

    #[tokio::test]
    async fn a_question_that_was_lost_is_asked_again_soon_and_what_was_found_is_not_kept() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let names = names(|_| match ASKED.fetch_add(1, Ordering::SeqCst) {
            0 => hang(),
            count => Ok(vec![address(count)]),
        });
        for count in 1..=2 {
            let found = timeout(NEXT_LOOK_UP_AFTER * 4, names.addresses("h"))
                .await
                .unwrap();
            assert_eq!(*found.unwrap(), [address(count)]);
        }
    }

    #[tokio::test]
    async fn all_who_wait_learn_that_a_name_is_unknown_and_nothing_is_left_of_it() {
        let names = names(|_| Err(io::Error::other("no such name")));
        for _ in 0..3 {
            let (first, second) = tokio::join!(names.addresses("h"), names.addresses("h"));
            for told in [first, second] {
                assert!(told.unwrap_err().to_string().contains("no such name"));
            }
        }
        assert!(names.lock().is_empty());
    }
}
