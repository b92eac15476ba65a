//! The configured cost of a request, which may be invalid.

use limiter_core::{Amount, ConfigError};

/// The configured cost of a request. The limiter also receives an invalid cost, because it decides
/// whether the error rejects the request: in shadow mode it does not.
pub(crate) struct ConfiguredCost<'a>(pub(crate) &'a Result<Amount, ConfigError>);

impl TryFrom<ConfiguredCost<'_>> for Amount {
    type Error = ConfigError;

    fn try_from(ConfiguredCost(cost): ConfiguredCost<'_>) -> Result<Self, ConfigError> {
        cost.clone()
    }
}
