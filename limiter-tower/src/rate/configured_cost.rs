//! A cost as it was said.

use limiter_core::{Amount, ConfigError};

/// What a request is to cost, which may be none that can be used. The limiter is told that, too,
/// since it knows whether anybody is to be rejected: in shadow, and where nothing is asked, nobody
/// is.
pub(crate) struct ConfiguredCost<'a>(pub(crate) &'a Result<Amount, ConfigError>);

impl TryFrom<ConfiguredCost<'_>> for Amount {
    type Error = ConfigError;

    fn try_from(ConfiguredCost(cost): ConfiguredCost<'_>) -> Result<Self, ConfigError> {
        cost.clone()
    }
}
