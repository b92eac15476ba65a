//! The ids of the HTTP interface: an id of the library with the names of its limits.

use std::fmt::Write as _;

use crate::gateway::http::problem::Problem;
use crate::gateway::http::request::KeyBody;

/// The longest id: that of a hundred limits with long keys is longer than clients should send.
const MAX_BYTES: usize = 64 * 1_024;

/// An id and its limits in their order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientId {
    /// The id of the library, which is bound to the limits.
    pub(super) id: String,
    /// The policy and the key of each limit.
    pub(super) limits: Vec<(String, KeyBody)>,
}

impl ClientId {
    /// The library's id, a full stop, and the limits as JSON in hexadecimal digits.
    pub(super) fn to_text(&self) -> String {
        // Texts and arrays are always JSON.
        let limits = serde_json::to_vec(&self.limits).unwrap_or_default();
        let mut text = String::with_capacity(self.id.len() + 1 + 2 * limits.len());
        text.push_str(&self.id);
        text.push('.');
        for byte in limits {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Reads an id. Whether it belongs to its limits is known to the library.
    pub(super) fn parse(text: &str) -> Result<Self, Problem> {
        let malformed =
            || Problem::bad_request("`id` is malformed, expected the id as it was returned".into());
        if text.len() > MAX_BYTES {
            return Err(malformed());
        }
        let (id, limits) = text.split_once('.').ok_or_else(malformed)?;
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
        assert_eq!(ClientId::parse(&id.to_text()).unwrap(), id);
    }

    #[test]
    fn malformed_ids_are_rejected() {
        for text in ["", ".", "p00", "p00.7", "p00.zz", "p00.é", "p00.+f+f", "p00.7b7d"] {
            assert!(ClientId::parse(text).is_err(), "{text}");
        }
        assert!(ClientId::parse(&("p.".to_owned() + &"0".repeat(MAX_BYTES))).is_err());
    }
}
