//! The text of a detached id, and the digest under which a store keeps its state.
//!
//! Any node may receive the id, so the text contains the location of the state, 128 random bits,
//! the cost and the lease. A SHA-256 digest of the kind, these bits, cost, lease and scope yields
//! the key of the state and a tag, by which a parser rejects an id of another kind or scope, or
//! with changed fields.
//!
//! Invariants: an id has exactly one text, and no error message contains the text. Tests: below,
//! and `tests/contract/detached.rs`.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::error::{ConfigError, StoreError, StoreErrorKind};

/// The bytes of an id: backing, node, random bits, cost, lease and tag.
const BYTES: usize = 1 + 8 + 16 + 2 + 4 + 8;

/// The digest of an id and its scope, by which tables and Redis find the state.
pub(crate) type StoredId = [u8; 16];

/// The object of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdKind {
    Permit,
    Reservation,
}

/// The location of the state of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdBacking {
    /// In Redis.
    Store = 0,
    /// In the tables of one limiter.
    Node = 1,
    /// No state: nothing was charged.
    Nothing = 2,
}

/// The fields of an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachedId {
    pub(crate) kind: IdKind,
    pub(crate) backing: IdBacking,
    pub(crate) node: u64,
    random: [u8; 16],
    /// For a permit, its cost; for a reservation, one bit for each charged limit.
    pub(crate) cost: u16,
    /// For a permit, its lease in milliseconds; for a reservation, the number of limits.
    pub(crate) lease_ms: u32,
}

/// Returns 128 random bits of the operating system.
pub(crate) fn random() -> Result<[u8; 16], StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        StoreError::new(
            StoreErrorKind::Refused,
            format!("cannot read random bytes from the operating system: {error}"),
        )
    })?;
    Ok(bytes)
}

impl IdKind {
    fn letter(self) -> &'static str {
        match self {
            Self::Permit => "p",
            Self::Reservation => "r",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Permit => "permit id",
            Self::Reservation => "reservation id",
        }
    }
}

impl DetachedId {
    /// Creates an id whose state is in the store.
    pub(crate) fn permit(cost: u16, lease_ms: u32) -> Result<Self, StoreError> {
        Ok(Self {
            kind: IdKind::Permit,
            backing: IdBacking::Store,
            node: 0,
            random: random()?,
            cost,
            lease_ms,
        })
    }

    /// Creates an id whose state is in the store.
    pub(crate) fn reservation(charged: u16, limits: u32) -> Result<Self, StoreError> {
        Ok(Self {
            kind: IdKind::Reservation,
            ..Self::permit(charged, limits)?
        })
    }

    /// Returns the digest of this id in a scope, which consists of the names of its limits.
    pub(crate) fn stored(&self, scope: &[String]) -> StoredId {
        let (stored, _) = self.digest(scope);
        stored
    }

    /// Returns the text for the client.
    pub(crate) fn text(&self, scope: &[String]) -> String {
        let (_, tag) = self.digest(scope);
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.push(self.backing as u8);
        bytes.extend_from_slice(&self.node.to_be_bytes());
        bytes.extend_from_slice(&self.random);
        bytes.extend_from_slice(&self.cost.to_be_bytes());
        bytes.extend_from_slice(&self.lease_ms.to_be_bytes());
        bytes.extend_from_slice(&tag);
        let mut text = String::with_capacity(1 + 2 * BYTES);
        text.push_str(self.kind.letter());
        for byte in bytes {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Parses an id that was created in one of these scopes, which may depend on the fields of the
    /// id. Returns the value of its scope.
    ///
    /// # Errors
    ///
    /// A text that is not an id, or an id of another kind or scope. The message does not contain
    /// the text, which may be a valid id of another scope.
    pub(crate) fn parse<T, I: Iterator<Item = (T, Vec<String>)>>(
        kind: IdKind,
        text: &str,
        scopes: impl FnOnce(&Self) -> Result<I, ConfigError>,
    ) -> Result<(Self, StoredId, T), ConfigError> {
        let shown = || format!("a text of {} bytes", text.len());
        let malformed = || ConfigError::invalid(kind.name(), shown(), "the id as it was returned");
        let digits = text.strip_prefix(kind.letter()).ok_or_else(malformed)?;
        let bytes = from_hex(digits).ok_or_else(malformed)?;
        let mut reader = &bytes[..];
        let [backing] = take(&mut reader);
        let id = Self {
            kind,
            backing: match backing {
                0 => IdBacking::Store,
                1 => IdBacking::Node,
                2 => IdBacking::Nothing,
                _ => return Err(malformed()),
            },
            node: u64::from_be_bytes(take(&mut reader)),
            random: take(&mut reader),
            cost: u16::from_be_bytes(take(&mut reader)),
            lease_ms: u32::from_be_bytes(take(&mut reader)),
        };
        // An id has exactly one text: only an id of a node contains a node.
        if id.backing != IdBacking::Node && id.node != 0 {
            return Err(malformed());
        }
        let own_tag = take::<8>(&mut reader);
        for (of, scope) in scopes(&id)? {
            let (stored, tag) = id.digest(&scope);
            if tag == own_tag {
                return Ok((id, stored, of));
            }
        }
        let expected = "an id of this namespace, policy and key, as it was returned";
        Err(ConfigError::invalid(kind.name(), shown(), expected))
    }

    /// Returns the error of an id with its state on another node.
    pub(crate) fn of_another_node(&self) -> ConfigError {
        let expected = "an id of this node: without Redis, an id is valid on the node that returned it";
        ConfigError::invalid(self.kind.name(), "an id of another node", expected)
    }

    fn digest(&self, scope: &[String]) -> (StoredId, [u8; 8]) {
        let mut hash = Sha256::new();
        hash.update(self.kind.letter());
        hash.update(self.random);
        hash.update(self.cost.to_be_bytes());
        hash.update(self.lease_ms.to_be_bytes());
        for name in scope {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut reader = &digest[..];
        (take(&mut reader), take(&mut reader))
    }
}

/// Reads the next bytes; zeros after the end, where no caller reads.
fn take<const N: usize>(reader: &mut &[u8]) -> [u8; N] {
    match reader.split_first_chunk() {
        Some((bytes, rest)) => {
            *reader = rest;
            *bytes
        }
        None => [0; N],
    }
}

fn from_hex(digits: &str) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    if digits.len() != 2 * BYTES {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = pair.iter().try_fold(0, |byte, digit| {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            Some(byte << 4 | value)
        })?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use crate::detachment::id::*;

    fn scope(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn parse(kind: IdKind, text: &str, scope: &[String]) -> Result<(DetachedId, StoredId), ConfigError> {
        let scopes = |_: &DetachedId| Ok(std::iter::once(((), scope.to_vec())));
        let (id, stored, ()) = DetachedId::parse(kind, text, scopes)?;
        Ok((id, stored))
    }

    #[test]
    fn id_round_trips_through_text() {
        let scope = scope(&["n|cc|p|{k}"]);
        let id = DetachedId::permit(3, 30_000).unwrap();
        let (read, stored) = parse(IdKind::Permit, &id.text(&scope), &scope).unwrap();
        assert_eq!((&read, stored), (&id, id.stored(&scope)));
    }

    #[test]
    fn id_is_rejected_in_another_scope_or_kind() {
        let mine = scope(&["n|cc|p|{k}"]);
        let text = DetachedId::permit(3, 30_000).unwrap().text(&mine);
        for other in [&["n|cc|p|{l}"][..], &[], &["n|cc|p|{k}", ""], &["n|cc|p|{k", "}"]] {
            assert!(parse(IdKind::Permit, &text, &scope(other)).is_err(), "{other:?}");
        }
        assert!(parse(IdKind::Reservation, &text, &mine).is_err());
    }

    #[test]
    fn changed_digit_makes_id_invalid_or_moves_its_lookup() {
        let scope = scope(&["n|cc|p|{k}"]);
        let id = DetachedId::permit(3, 30_000).unwrap();
        let text = id.text(&scope);
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            if let Ok((read, _)) = parse(IdKind::Permit, &changed, &scope) {
                // The first byte contains the location of the state; it is not part of the digest.
                assert_eq!(at, 2);
                assert_ne!(read.backing, id.backing);
            }
        }
    }

    #[test]
    fn malformed_text_is_rejected() {
        let long = "p".to_owned() + &"0".repeat(1_000_000);
        for text in [
            "",
            "p",
            "p0",
            "é",
            long.as_str(),
            &"p".repeat(79),
            &("p".to_owned() + &"é".repeat(39)),
        ] {
            assert!(parse(IdKind::Permit, text, &[]).is_err(), "{text:.20}");
        }
    }
}
