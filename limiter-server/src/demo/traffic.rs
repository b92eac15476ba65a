//! Generated traffic: customers call the gateway of this process through the rules of the edge.

use std::time::Duration;

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
    loop {
        tokio::time::sleep(INTERVAL).await;
        let request = next_request(&mut random);
        // A denial is a result as good as another.
        let _ = gateway.should_rate_limit(&client, request).await;
    }
}

/// A sequence of numbers that look random (xorshift64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

fn next_request(random: &mut Random) -> RateLimitRequest {
    let customer = customer(random);
    let address;
    let (route, name, value) = match random.below(100) {
        // Above the limit of one customer, below that of the others.
        0..50 => ("search", "customer", customer),
        50..68 => ("checkout", "customer", customer),
        68..78 => ("payments", "customer", customer),
        78..88 => ("suggestions", "customer", customer),
        88..92 => {
            address = format!("198.51.100.{}", random.below(60));
            ("login", "remote_address", address.as_str())
        }
        92..99 => ("login", "remote_address", ATTACKER),
        _ => ("newsletter", "customer", customer),
    };
    RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![entry("route", route), entry(name, value)],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 1,
    }
}

fn customer(random: &mut Random) -> &'static str {
    match random.below(100) {
        0..60 => BUSY_CUSTOMER,
        _ => {
            let number = usize::try_from(random.below(CUSTOMERS.len() as u64)).unwrap_or_default();
            CUSTOMERS.get(number).copied().unwrap_or(BUSY_CUSTOMER)
        }
    }
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
        for _ in 0..2_000 {
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
