//! The machine of the measurement.

use std::fs;
use std::process::Command;

use crate::environment::Environment;

/// The properties of the machine on which the figures depend.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) redis: String,
    pub(crate) compiler: String,
    /// The average number of runnable threads in the minute before.
    pub(crate) load: String,
}

impl Machine {
    /// Must be called before the benchmark runs, which would otherwise be included in the load.
    pub(crate) fn detect(environment: &Environment) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let load = read("/proc/loadavg");
        let info = environment.server().command(&["INFO", "server"]).text();
        let compiler = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .arg("--version")
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Self {
            processor: line(&read("/proc/cpuinfo"), "model name", ':'),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            redis: line(&info, "redis_version", ':'),
            compiler: compiler.unwrap_or_default(),
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }

    pub(crate) fn describe(&self) -> String {
        let Self {
            processor,
            cores,
            kernel,
            redis,
            compiler,
            load,
        } = self;
        format!(
            "{processor}, {cores} cores; Linux {kernel}; Redis {redis}; {compiler}; load before the start {load}"
        )
    }
}

fn line(text: &str, field: &str, separator: char) -> String {
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == field).then(|| value.trim().to_owned())
    });
    value.unwrap_or_else(|| "unknown".to_owned())
}
