//! The arguments of `CL.THROTTLE`. Pure, and fuzzed with the target `resp_command`. Tests: below.

use crate::gateway::resp::shown::shown;

/// The numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ThrottleLimit {
    pub(super) max_burst: u64,
    pub(super) count: u64,
    pub(super) period_seconds: u64,
}

/// A command with valid arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThrottleCommand {
    pub(super) key: String,
    /// Ignored if the key names a policy.
    pub(super) limit: ThrottleLimit,
    pub(super) quantity: u64,
}

impl ThrottleCommand {
    /// Parses the arguments. An error names the value and the expectation.
    pub(super) fn parse(arguments: &[&[u8]]) -> Result<Self, String> {
        let (key, max_burst, count, period, quantity) = match arguments {
            [key, max_burst, count, period] => (key, max_burst, count, period, None),
            [key, max_burst, count, period, quantity] => (key, max_burst, count, period, Some(quantity)),
            _ => {
                return Err(format!(
                    "wrong number of arguments for 'cl.throttle' command: {}, expected key max_burst count period \
                     [quantity]",
                    arguments.len()
                ));
            }
        };
        let text = std::str::from_utf8(key);
        Ok(Self {
            key: text
                .map_err(|_| format!("key is {}, expected valid UTF-8", shown(key)))?
                .to_owned(),
            limit: ThrottleLimit {
                max_burst: number("max_burst", max_burst, 0)?,
                count: number("count", count, 1)?,
                period_seconds: number("period", period, 1)?,
            },
            quantity: quantity.map_or(Ok(1), |quantity| number("quantity", quantity, 0))?,
        })
    }

    /// Returns whether a store may decide the two commands in either order, with different results.
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
        let charges = |command: &Self| command.quantity > 0;
        self.key == other.key && (self.limit != other.limit || charges(self) != charges(other))
    }
}

fn number(name: &str, value: &[u8], least: u64) -> Result<u64, String> {
    let parsed = std::str::from_utf8(value)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .filter(|number| *number >= least);
    parsed.ok_or_else(|| {
        format!(
            "{name} is {}, expected a whole number of at least {least}",
            shown(value)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<ThrottleCommand, String> {
        let arguments: Vec<&[u8]> = arguments.iter().map(|text| text.as_bytes()).collect();
        ThrottleCommand::parse(&arguments)
    }

    #[test]
    fn quantity_is_one_by_default() {
        assert_eq!(parse(&["k", "15", "30", "60"]).unwrap().quantity, 1);
        assert_eq!(parse(&["k", "15", "30", "60", "0"]).unwrap().quantity, 0);
    }

    #[test]
    fn invalid_arguments_are_named_with_their_expectation() {
        for (arguments, expected) in [
            (&["k", "-1", "30", "60"][..], "max_burst is `-1`, expected"),
            (&["k", "+1", "30", "60"], "max_burst is `+1`, expected"),
            (&["k", "15", "0", "60"], "count is `0`, expected"),
            (&["k", "15", "30", "1.5"], "period is `1.5`, expected"),
            (&["k", "15", "30", "60", "many"], "quantity is `many`, expected"),
            (&["k", "15", "99999999999999999999", "60"], "count is `9999"),
            (&["k"], "wrong number of arguments"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let error = ThrottleCommand::parse(&[b"\xff", b"1", b"1", b"1"]).unwrap_err();
        assert!(error.contains("valid UTF-8"), "{error}");
    }
}
