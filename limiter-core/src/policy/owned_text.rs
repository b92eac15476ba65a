//! Conversions of owned text. Builders take a `String` or a `&String` wherever they take a `&str`,
//! so that values read from a configuration need no `as_str()`.

use super::{Penalty, Rate, UtcOffset, Window};
use crate::error::ConfigError;
use crate::units::Amount;

macro_rules! try_from_owned_text {
    ($($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = ConfigError;

            fn try_from(text: String) -> Result<Self, ConfigError> {
                Self::try_from(text.as_str())
            }
        }

        impl TryFrom<&String> for $type {
            type Error = ConfigError;

            fn try_from(text: &String) -> Result<Self, ConfigError> {
                Self::try_from(text.as_str())
            }
        }
    )*};
}
try_from_owned_text!(Amount, Penalty, Rate, UtcOffset, Window);

#[cfg(test)]
mod tests {
    use crate::policy::Policy;

    #[test]
    fn builders_accept_owned_text() {
        let owned = |text: &str| text.to_owned();
        let (lease, limit) = (owned("1s"), owned("5"));
        let bucket = Policy::token_bucket("p")
            .capacity(owned("20"))
            .rate(owned("10/s"));
        let written = Policy::token_bucket("p")
            .capacity(20)
            .rate("10/s")
            .lease("1s")
            .build();
        assert_eq!(bucket.lease(&lease).build(), written);
        let daily = Policy::fixed_window("d").limit(&limit).window(owned("1d"));
        let daily = daily
            .aligned(owned("+02:00"))
            .penalty(owned("3 in 1m: 1h"))
            .build();
        let written = Policy::fixed_window("d").limit(5).window("1d").aligned("+02:00");
        assert_eq!(daily, written.penalty("3 in 1m: 1h").build());
        let error = Policy::token_bucket("p").capacity(1).rate(owned("soon")).build();
        assert!(error.unwrap_err().to_string().contains("rate is `soon`"));
    }
}
