//! Slots of a cluster: the map of owners, redirections, and the slot of a key.
//!
//! A call is routed to the node that owns the slot of its key. The map is parsed from the reply to
//! CLUSTER SLOTS, and a redirection from the error of a node. A node that does not know its own
//! endpoint reports no host, and the host of the connection replaces it.
//!
//! Invariant: a slot outside of the range is an error. Tests: below, and `tests/cluster.rs`.

use std::sync::Arc;

use bb8_redis::redis::{RedisError, Value};

use crate::error::{StoreError, StoreErrorKind};

const SLOTS: u16 = 16_384;

/// Host and port that the cluster announces.
pub(crate) type Address = Arc<(String, u16)>;
/// The owner of each slot.
pub(crate) type Owners = Vec<Option<Address>>;

/// Parses the target of a redirection that the node at `replying_node` sent.
pub(crate) fn redirected(error: &RedisError, replying_node: &Address) -> Result<Address, StoreError> {
    let malformed = || {
        StoreError::new(
            StoreErrorKind::Protocol,
            format!("a malformed redirection: {error}"),
        )
        // A redirecting node has executed nothing.
        .unsent()
    };
    let (address, _) = error.redirect_node().ok_or_else(malformed)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
    let port = port.parse().map_err(|_| malformed())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok(Arc::new((known_host(host, &replying_node.0), port)))
}

/// Returns the host in a reply. A node that does not know its own endpoint reports nothing or `?`,
/// and the host of the connection is used.
fn known_host(host: &str, replying_node: &str) -> String {
    if matches!(host, "" | "?") {
        replying_node.to_owned()
    } else {
        host.to_owned()
    }
}

/// Parses the reply to CLUSTER SLOTS: ranges of slots, each with its primary and its replicas.
pub(crate) fn owners(answer: &Value, replying_node: &str) -> Result<Owners, StoreError> {
    let mut owners = vec![None; usize::from(SLOTS)];
    let ranges = answer.as_sequence().unwrap_or_default();
    let malformed = || StoreError::new(StoreErrorKind::Protocol, "malformed reply to CLUSTER SLOTS");
    for range in ranges {
        let Some([Value::Int(first), Value::Int(last), primary, ..]) = range.as_sequence() else {
            return Err(malformed());
        };
        let index = |slot: &i64| usize::try_from(*slot).map_err(|_| malformed());
        // Bounds the range before the loop over it.
        let range = owners
            .get_mut(index(first)?..=index(last)?)
            .ok_or_else(malformed)?;
        let Some([host, Value::Int(port), ..]) = primary.as_sequence() else {
            continue;
        };
        let host = match host {
            Value::BulkString(host) => known_host(&String::from_utf8_lossy(host), replying_node),
            _ => replying_node.to_owned(),
        };
        let Ok(port) = u16::try_from(*port) else { continue };
        range.fill(Some(Arc::new((host, port))));
    }
    if owners.iter().all(Option::is_none) {
        return Err(StoreError::new(
            StoreErrorKind::Refused,
            "no slot of the cluster has an owner",
        ));
    }
    Ok(owners)
}

/// Returns the slot of a key: CRC-16/XMODEM of the text in its first braces, as the Redis Cluster
/// specification defines it. All keys of the limiter contain a hash tag.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map_or(key, |(tag, _)| tag);
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use crate::redis::topology::slots::*;

    #[test]
    fn node_without_endpoint_has_host_of_connection() {
        let text = |text: &str| Value::BulkString(text.into());
        let range = |host: Value| {
            let primary = Value::Array(vec![host, Value::Int(7000), text("id")]);
            Value::Array(vec![Value::Array(vec![
                Value::Int(0),
                Value::Int(16_383),
                primary,
            ])])
        };
        for (host, expected) in [
            (text("10.0.0.1"), "10.0.0.1"),
            (text("?"), "h"),
            (text(""), "h"),
            (Value::Nil, "h"),
        ] {
            let owners = owners(&range(host), "h").unwrap();
            assert_eq!(owners[9_842].as_deref(), Some(&(expected.to_owned(), 7000)));
        }
    }

    #[test]
    fn range_outside_slots_is_rejected() {
        let primary = || Value::Array(vec![Value::BulkString("h".into()), Value::Int(1)]);
        for (first, last) in [(0, i64::MAX), (i64::MIN, 0), (0, 16_384), (2, 0)] {
            let range = Value::Array(vec![Value::Int(first), Value::Int(last), primary()]);
            let refused = owners(&Value::Array(vec![range]), "h");
            assert!(refused.is_err_and(|error| error.kind() == StoreErrorKind::Protocol));
        }
    }

    #[test]
    fn slots_match_specification() {
        // Check value of CRC-16/XMODEM.
        assert_eq!(slot("123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot("ns|tb|p|{123456789}|x"), slot("123456789"));
        assert_eq!(slot("foo"), 12_182);
    }
}
