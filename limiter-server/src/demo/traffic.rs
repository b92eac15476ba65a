//! Generated traffic: customers call the gateway of this process through the rules of the edge.
//!
//! Tests: below.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tokio::time::Instant;

use crate::access::Client;
use crate::admin::auth::TOKEN_PREFIX;
use crate::demo::content::{ADMIN, HOUR};
use crate::demo::{ATTACKER, BUSY_CUSTOMER, CUSTOMERS};
use crate::gateway::Gateway;
use crate::gateway::envoy::messages::{Entry, RateLimitDescriptor, RateLimitRequest};
use crate::secret::{Secret, random_id};
use crate::store::{NewStoredToken, Store};

/// The interval between calls.
const INTERVAL: Duration = Duration::from_millis(20);
/// The address of the proxy that sends the calls.
const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));

/// Adds the token of the traffic, which the gateway requires as soon as an app has a token.
///
/// # Errors
///
/// The reason as one message.
pub async fn add_token(store: &Store, namespace: &str, now: i64) -> Result<Secret, String> {
    let secret = Secret::generate(TOKEN_PREFIX);
    let token = NewStoredToken {
        id: random_id(),
        hash: secret.hash(),
        label: "edge-proxy".to_owned(),
        namespace: namespace.to_owned(),
        scopes: "check:domain=edge".to_owned(),
        created_by: ADMIN.to_owned(),
        issued_by: ADMIN.to_owned(),
        created_at: now - 72 * HOUR,
        expires_at: now + 30 * 24 * HOUR,
    };
    let added = store.add_token(&token, None).await;
    added.map_err(|error| format!("cannot add the token of the demonstration: {error}"))?;
    Ok(secret)
}

/// Calls the gateway with a token until the task is dropped.
pub async fn run(gateway: Gateway, token: Secret) {
    let client = Client::of_secret(token.reveal());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut next = Instant::now();
    loop {
        // The rate does not depend on the duration of calls. A suspended machine omits its calls.
        next = Instant::now().max(next + INTERVAL);
        tokio::time::sleep_until(next).await;
        let request = next_request(&mut random);
        // A denial is a result as good as another.
        let _ = gateway.rate_limit_of_peer(&client, Some(PROXY), request).await;
    }
}

/// A sequence of numbers that look random (xorshift64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

fn next_request(random: &mut Random) -> RateLimitRequest {
    let (route, name, value) = match random.below(100) {
        // Slightly above the limit of the busiest customer, below that of the others.
        0..60 => ("search", "customer", customer(random, 40)),
        60..78 => ("checkout", "customer", customer(random, 55)),
        78..80 => ("payments", "customer", customer(random, 45)),
        80..90 => ("suggestions", "customer", customer(random, 34)),
        90..97 => {
            let address = format!("198.51.100.{}", random.below(200));
            ("login", "remote_address", address)
        }
        97..99 => ("login", "remote_address", ATTACKER.to_owned()),
        _ => ("newsletter", "customer", customer(random, 34)),
    };
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![entry("route", route), entry(name, &value)],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 1,
    }
}

/// Returns a customer. The busiest one makes this share of the calls in percent, and its part of
/// the rest.
fn customer(random: &mut Random, busy_percent: u64) -> String {
    let number = match random.below(100) {
        of if of < busy_percent => 0,
        _ => usize::try_from(random.below(CUSTOMERS.len() as u64)).unwrap_or_default(),
    };
    CUSTOMERS.get(number).copied().unwrap_or(BUSY_CUSTOMER).to_owned()
}

fn entry(key: &str, value: &str) -> Entry {
    Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn traffic_uses_all_routes_and_customers() {
        let mut random = Random(1);
        let mut values: BTreeSet<String> = BTreeSet::new();
        for _ in 0..20_000 {
            let request = next_request(&mut random);
            let entries = &request.descriptors[0].entries;
            values.extend(entries.iter().map(|entry| entry.value.clone()));
        }
        for expected in CUSTOMERS
            .into_iter()
            .chain(["search", "payments", "newsletter", ATTACKER])
        {
            assert!(values.contains(expected), "{expected}");
        }
    }
}
