//! Envoy in front of a service that answers at once, with and without limits of limiter-server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{Server, free_address};

const CONFIGURATION: &str = include_str!("envoy.yaml");
/// The lines around the filter in the configuration.
const FILTER: (&str, &str) = ("# begin of the filter", "# end of the filter");

/// A running Envoy.
#[derive(Debug)]
pub(crate) struct Envoy {
    pub(crate) server: Server,
    /// The processes behind Envoy: the service, and limiter-server.
    _service: Server,
    limiter: Option<Server>,
    configuration: PathBuf,
}

impl Envoy {
    pub(crate) fn start(program: &Path, service: Server, limiter: Option<Server>) -> Self {
        let address = free_address();
        let port_of = |server: Option<&Server>| server.map_or(1, |server| server.address.port()).to_string();
        let text = match &limiter {
            Some(_) => CONFIGURATION.to_owned(),
            None => without_filter(CONFIGURATION),
        };
        let text = text
            .replace("SERVICE_PORT", &port_of(Some(&service)))
            .replace("LIMITER_PORT", &port_of(limiter.as_ref()))
            .replace("PORT", &address.port().to_string());
        let name = format!("gateway-bench-{}-envoy.yaml", std::process::id());
        let configuration = std::env::temp_dir().join(name);
        std::fs::write(&configuration, text).expect("a writable temporary directory");
        let mut command = Command::new(program);
        command.args([
            "--use-dynamic-base-id",
            "--log-level",
            "off",
            "--concurrency",
            "2",
        ]);
        command.arg("--config-path").arg(&configuration);
        Self {
            server: Server::listening(command, address),
            _service: service,
            limiter,
            configuration,
        }
    }

    /// Returns the processor time of Envoy and limiter-server.
    pub(crate) fn processor_time(&self) -> Duration {
        let of_limiter = self.limiter.as_ref().map(Server::processor_time);
        self.server.processor_time() + of_limiter.unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.configuration);
    }
}

fn without_filter(text: &str) -> String {
    let (before, rest) = text.split_once(FILTER.0).expect("the begin of the filter");
    let (_, after) = rest.split_once(FILTER.1).expect("the end of the filter");
    format!("{before}{after}")
}
