//! The ids of the HTTP interface: ids of the library with the names of their limits.
//!
//! A permit and a reservation of one set have one id of the library; the limits of a reservation
//! with different keys form several sets, with one id each. Tests: below.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::gateway::charge::sets::AtomicSet;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::request::KeyBody;

/// The most bytes of the limits in an id, which are hexadecimal digits of their JSON: the ids of
/// many limits with long keys are longer than clients should send.
const MAX_BYTES: usize = 64 * 1_024;
/// The character between the ids of several sets.
const SEPARATOR: char = '-';

/// The policy and the key of a limit.
pub(super) type NamedLimit = (String, KeyBody);

/// The limits of an id in its JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum LimitsOfId {
    /// The limits of one id of the library.
    OneSet(Vec<NamedLimit>),
    /// The limits of several ids, with the number of the set of each limit.
    Sets {
        limits: Vec<NamedLimit>,
        sets: Vec<usize>,
    },
}

/// The limits of an id that is not issued yet.
#[derive(Debug)]
pub(super) struct EncodedLimits(String);

impl EncodedLimits {
    /// Encodes the policy and the key of each limit.
    ///
    /// # Errors
    ///
    /// The limits are too long for an id.
    pub(super) fn new(limits: Vec<NamedLimit>, sets: &[AtomicSet]) -> Result<Self, Problem> {
        let limits = match sets.len() {
            0 | 1 => LimitsOfId::OneSet(limits),
            _ => {
                let mut numbers = vec![0; limits.len()];
                for (number, set) in sets.iter().enumerate() {
                    for at in set.positions() {
                        if let Some(place) = numbers.get_mut(at) {
                            *place = number;
                        }
                    }
                }
                LimitsOfId::Sets {
                    limits,
                    sets: numbers,
                }
            }
        };
        Self::encode(&limits)
    }

    fn encode(limits: &LimitsOfId) -> Result<Self, Problem> {
        // Texts, numbers and arrays are always JSON.
        let limits = serde_json::to_vec(limits).unwrap_or_default();
        if 2 * limits.len() > MAX_BYTES {
            let detail = format!(
                "the policies and keys have {} bytes as JSON, expected at most {} for an id",
                limits.len(),
                MAX_BYTES / 2
            );
            return Err(Problem::bad_request(detail.into()));
        }
        let mut text = String::with_capacity(2 * limits.len());
        for byte in limits {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Ok(Self(text))
    }

    /// Returns the id for the client: the ids of the library, a full stop, and the limits.
    pub(super) fn with_ids<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> String {
        let mut text = String::new();
        for (number, id) in ids.into_iter().enumerate() {
            if number > 0 {
                text.push(SEPARATOR);
            }
            text.push_str(id);
        }
        text.push('.');
        text + &self.0
    }
}

/// The ids of the library and their limits, in the order of the request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientId {
    /// The ids of the library, each of which is bound to the limits of its set.
    pub(super) ids: Vec<String>,
    /// The policy and the key of each limit.
    pub(super) limits: Vec<NamedLimit>,
    /// For each limit the number of its id.
    pub(super) sets: Vec<usize>,
}

impl ClientId {
    /// Reads an id. Whether it belongs to its limits is known to the library.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let malformed =
            || Problem::bad_request("`id` is malformed, expected the id as it was returned".into());
        let (ids, limits) = text.split_once('.').ok_or_else(malformed)?;
        if limits.len() > MAX_BYTES {
            return Err(malformed());
        }
        let digits = limits.as_bytes().chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            let is_hex = pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            is_hex.then(|| u8::from_str_radix(pair, 16).ok()).flatten()
        });
        let bytes: Vec<u8> = digits.collect::<Option<_>>().ok_or_else(malformed)?;
        let limits = serde_json::from_slice(&bytes).map_err(|_| malformed())?;
        let (limits, sets) = match limits {
            LimitsOfId::OneSet(limits) => {
                let sets = vec![0; limits.len()];
                (limits, sets)
            }
            LimitsOfId::Sets { limits, sets } => (limits, sets),
        };
        let ids: Vec<String> = ids.split(SEPARATOR).map(str::to_owned).collect();
        let is_complete = sets.len() == limits.len()
            && sets.iter().all(|set| *set < ids.len())
            && (0..ids.len()).all(|number| limits.is_empty() || sets.contains(&number));
        match is_complete {
            true => Ok(Self { ids, limits, sets }),
            false => Err(malformed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_round_trips_through_text() {
        let limits = vec![
            ("search".to_owned(), KeyBody::Text("ann.é".to_owned())),
            (
                "mail".to_owned(),
                KeyBody::Parts(vec!["a".to_owned(), "b".to_owned()]),
            ),
        ];
        let one = EncodedLimits::new(limits.clone(), &[]).unwrap();
        let id = ClientId {
            ids: vec!["p00".to_owned()],
            limits: limits.clone(),
            sets: vec![0, 0],
        };
        assert_eq!(ClientId::parse(&one.with_ids(["p00"])).unwrap(), id);
        let several = EncodedLimits::encode(&LimitsOfId::Sets {
            limits: limits.clone(),
            sets: vec![1, 0],
        });
        let several = several.unwrap();
        let id = ClientId {
            ids: vec!["r00".to_owned(), "r01".to_owned()],
            limits,
            sets: vec![1, 0],
        };
        assert_eq!(ClientId::parse(&several.with_ids(["r00", "r01"])).unwrap(), id);
        for ids in [&["r00"][..], &["r00", "r01", "r02"]] {
            assert!(ClientId::parse(&several.with_ids(ids.iter().copied())).is_err());
        }
    }

    #[test]
    fn malformed_ids_are_rejected() {
        for text in ["", ".", "p00", "p00.7", "p00.zz", "p00.é", "p00.+f+f", "p00.7b7d"] {
            assert!(ClientId::parse(text).is_err(), "{text}");
        }
        assert!(ClientId::parse(&("p.".to_owned() + &"0".repeat(MAX_BYTES + 2))).is_err());
    }
}
