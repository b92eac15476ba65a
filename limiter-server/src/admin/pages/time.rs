//! Times in pages: UTC with the time zone named. A script shows them in the zone of the viewer.

use jiff::Timestamp;
use serde::Deserialize;

/// A time in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(transparent)]
pub(super) struct PageTime(pub(super) i64);

impl PageTime {
    fn timestamp(self) -> Timestamp {
        Timestamp::from_microsecond(self.0).unwrap_or_default()
    }

    /// `2026-11-23T02:12:29Z`.
    pub(super) fn iso(self) -> String {
        self.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// `2026-11-23 02:12 UTC`.
    pub(super) fn utc(self) -> String {
        self.timestamp().strftime("%Y-%m-%d %H:%M UTC").to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_names_its_zone() {
        let time = PageTime(1_795_399_949_123_456);
        assert_eq!(time.iso(), "2026-11-23T02:12:29Z");
        assert_eq!(time.utc(), "2026-11-23 02:12 UTC");
    }
}
