//! The ids of the HTTP interface: an id of the library with the names of its limits.

use std::fmt::Write as _;

use crate::gateway::http::problem::Problem;
use crate::gateway::http::request::KeyBody;

/// The most bytes of the limits in an id, which are hexadecimal digits of their JSON: the ids of
/// many limits with long keys are longer than clients should send.
const MAX_BYTES: usize = 64 * 1_024;

/// The limits of an id that is not issued yet.
#[derive(Debug)]
pub(super) struct EncodedLimits(String);

impl EncodedLimits {
    /// Encodes the policy and the key of each limit.
    ///
    /// # Errors
    ///
    /// The limits are too long for an id.
    pub(super) fn new(limits: &[(String, KeyBody)]) -> Result<Self, Problem> {
        // Texts and arrays are always JSON.
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

    /// The id for the client: the library's id, a full stop, and the limits.
    pub(super) fn with_id(&self, id: &str) -> String {
        format!("{id}.{}", self.0)
    }
}

/// An id and its limits in their order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientId {
    /// The id of the library, which is bound to the limits.
    pub(super) id: String,
    /// The policy and the key of each limit.
    pub(super) limits: Vec<(String, KeyBody)>,
}

impl ClientId {
    /// Reads an id. Whether it belongs to its limits is known to the library.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let malformed =
            || Problem::bad_request("`id` is malformed, expected the id as it was returned".into());
        let (id, limits) = text.split_once('.').ok_or_else(malformed)?;
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
        Ok(Self {
            id: id.to_owned(),
            limits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_round_trips_through_text() {
        let id = ClientId {
            id: "p00".to_owned(),
            limits: vec![
                ("search".to_owned(), KeyBody::Text("ann.é".to_owned())),
                (
                    "mail".to_owned(),
                    KeyBody::Parts(vec!["a".to_owned(), "b".to_owned()]),
                ),
            ],
        };
        let text = EncodedLimits::new(&id.limits).unwrap().with_id(&id.id);
        assert_eq!(ClientId::parse(&text).unwrap(), id);
    }

    #[test]
    fn malformed_ids_are_rejected() {
        for text in ["", ".", "p00", "p00.7", "p00.zz", "p00.é", "p00.+f+f", "p00.7b7d"] {
            assert!(ClientId::parse(text).is_err(), "{text}");
        }
        assert!(ClientId::parse(&("p.".to_owned() + &"0".repeat(MAX_BYTES + 2))).is_err());
    }
}
