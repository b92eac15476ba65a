//! The limits of the listeners, which bound the memory and the time of each client.
//!
//! `ListenerLimits` has the resolved limits with their defaults, and `LimitArgs` the flags and the
//! table `[limits]`. Zero is rejected, and headers have at least the 8 KiB that the HTTP library
//! buffers. Tests of the limits in force: `tests/attacks.rs`, `tests/resp.rs`.

use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use crate::settings::SettingsError;
use crate::settings::duration::duration;

/// The limits of the listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerLimits {
    /// The largest number of connections of each listener. More are closed at once.
    pub max_connections: usize,
    /// The longest time for the headers of a request, for its body, for a command of a Redis
    /// client, and for a reply to it.
    pub read_timeout: Duration,
    /// The longest time without any byte on a connection.
    pub idle_timeout: Duration,
    /// The largest headers of a request, in bytes.
    pub max_header_bytes: u32,
    /// The largest body of an HTTP request, in bytes.
    pub max_body_bytes: usize,
    /// The largest gRPC message, in bytes.
    pub max_message_bytes: usize,
    /// The longest time without any byte on a RESP connection; any time if absent.
    pub resp_idle_timeout: Option<Duration>,
    /// The largest command of a Redis client with its framing, in bytes.
    pub max_command_bytes: usize,
    /// The largest number of calls at once over gRPC and HTTP. More are answered as unavailable.
    pub max_in_flight: usize,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            max_connections: 4_096,
            read_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
            max_header_bytes: 16 * 1_024,
            max_body_bytes: 256 * 1_024,
            max_message_bytes: 1_024 * 1_024,
            resp_idle_timeout: None,
            max_command_bytes: 64 * 1_024,
            max_in_flight: 4_096,
        }
    }
}

/// The arguments for [`ListenerLimits`], and the table `[limits]` of the settings file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitArgs {
    /// Largest number of connections of each listener. Default: 4096.
    #[arg(long, value_name = "COUNT", env = "LIMITER_MAX_CONNECTIONS")]
    max_connections: Option<usize>,
    /// Longest time in which the headers of a request must arrive, and then its body; also for a
    /// command of a Redis client. Default: 10s.
    #[arg(long, value_name = "DURATION", env = "LIMITER_READ_TIMEOUT")]
    read_timeout: Option<String>,
    /// Longest time without any byte on a connection. Default: 2m.
    #[arg(long, value_name = "DURATION", env = "LIMITER_IDLE_TIMEOUT")]
    idle_timeout: Option<String>,
    /// Largest headers of a request, in bytes, at least 8192. Default: 16384.
    #[arg(long, value_name = "BYTES", env = "LIMITER_MAX_HEADER_BYTES")]
    max_header_bytes: Option<u32>,
    /// Largest body of an HTTP request, in bytes. Default: 262144.
    #[arg(long, value_name = "BYTES", env = "LIMITER_MAX_BODY_BYTES")]
    max_body_bytes: Option<usize>,
    /// Largest gRPC message, in bytes. Default: 1048576.
    #[arg(long, value_name = "BYTES", env = "LIMITER_MAX_MESSAGE_BYTES")]
    max_message_bytes: Option<usize>,
    /// Longest time without any byte on a connection of a Redis client. Default: any time.
    #[arg(long, value_name = "DURATION", env = "LIMITER_RESP_IDLE_TIMEOUT")]
    resp_idle_timeout: Option<String>,
    /// Largest command of a Redis client, in bytes. Default: 65536.
    #[arg(long, value_name = "BYTES", env = "LIMITER_MAX_COMMAND_BYTES")]
    max_command_bytes: Option<usize>,
    /// Largest number of calls at once. Default: 4096.
    #[arg(long, value_name = "COUNT", env = "LIMITER_MAX_IN_FLIGHT")]
    max_in_flight: Option<usize>,
}

impl LimitArgs {
    /// Takes the settings that are absent from the file.
    pub(super) fn or(self, file: Self) -> Self {
        Self {
            max_connections: self.max_connections.or(file.max_connections),
            read_timeout: self.read_timeout.or(file.read_timeout),
            idle_timeout: self.idle_timeout.or(file.idle_timeout),
            max_header_bytes: self.max_header_bytes.or(file.max_header_bytes),
            max_body_bytes: self.max_body_bytes.or(file.max_body_bytes),
            max_message_bytes: self.max_message_bytes.or(file.max_message_bytes),
            resp_idle_timeout: self.resp_idle_timeout.or(file.resp_idle_timeout),
            max_command_bytes: self.max_command_bytes.or(file.max_command_bytes),
            max_in_flight: self.max_in_flight.or(file.max_in_flight),
        }
    }

    pub(super) fn resolve(&self) -> Result<ListenerLimits, SettingsError> {
        let default = ListenerLimits::default();
        let time = |setting, text: &Option<String>, default| {
            text.as_deref()
                .map_or(Ok(default), |text| duration(setting, text))
        };
        let max_header_bytes = self.max_header_bytes.unwrap_or(default.max_header_bytes);
        // The smallest buffer of the HTTP library.
        if max_header_bytes < 8_192 {
            return Err(SettingsError::Invalid {
                setting: "max_header_bytes",
                value: max_header_bytes.to_string(),
                expected: "at least 8192",
            });
        }
        Ok(ListenerLimits {
            max_connections: positive("max_connections", self.max_connections, default.max_connections)?,
            read_timeout: time("read_timeout", &self.read_timeout, default.read_timeout)?,
            idle_timeout: time("idle_timeout", &self.idle_timeout, default.idle_timeout)?,
            max_header_bytes,
            max_body_bytes: positive("max_body_bytes", self.max_body_bytes, default.max_body_bytes)?,
            max_message_bytes: positive(
                "max_message_bytes",
                self.max_message_bytes,
                default.max_message_bytes,
            )?,
            resp_idle_timeout: self
                .resp_idle_timeout
                .as_deref()
                .map(|text| duration("resp_idle_timeout", text))
                .transpose()?,
            max_command_bytes: positive(
                "max_command_bytes",
                self.max_command_bytes,
                default.max_command_bytes,
            )?,
            max_in_flight: positive("max_in_flight", self.max_in_flight, default.max_in_flight)?,
        })
    }
}

fn positive(setting: &'static str, value: Option<usize>, default: usize) -> Result<usize, SettingsError> {
    match value {
        Some(0) => Err(SettingsError::Invalid {
            setting,
            value: "0".to_owned(),
            expected: "at least 1",
        }),
        value => Ok(value.unwrap_or(default)),
    }
}
