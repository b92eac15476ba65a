//! The contenders, and the programs they need.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use limiter_testing::RedisServer;

use crate::envoy::Envoy;
use crate::load::{Load, Sample};
use crate::process::{Server, free_address};
use crate::protocol::{Protocol, QUOTA};
use crate::wrk::{self, Wrk};

/// The rows that the bounds compare.
pub(crate) const FLOOR: &str = "always OK (tonic)";
pub(crate) const HTTP_FLOOR: &str = "always OK (axum)";
pub(crate) const IN_MEMORY: &str = "limiter-server, in memory";
pub(crate) const THROTTLECRAB: &str = "throttlecrab-server";
pub(crate) const ON_REDIS: &str = "limiter-server, Redis";
pub(crate) const LIBRARY: &str = "limiter-core, Redis";

/// The programs that the contenders run.
#[derive(Debug)]
pub(crate) struct Programs {
    /// limiter-server, from `LIMITER_SERVER`.
    ours: PathBuf,
    /// throttlecrab-server, from `THROTTLECRAB`; its rows are absent without it.
    throttlecrab: Option<PathBuf>,
    /// Envoy, from `ENVOY`; its rows are absent without it.
    envoy: Option<PathBuf>,
    /// wrk, from `WRK`; its rows are absent without it.
    wrk: Option<Wrk>,
    /// Policies of limiter-server: strict, and with token leases.
    strict: PathBuf,
    leased: PathBuf,
}

impl Programs {
    pub(crate) fn from_environment() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let file = |name: &str, lease: &str| {
            let path = std::env::temp_dir().join(format!("gateway-bench-{}-{name}.toml", std::process::id()));
            let text = format!(
                "[policy.requests]\nalgorithm = \"token_bucket\"\ncapacity = {QUOTA}\nrate = \"{QUOTA}/m\"\non_store_failure = \"error\"\n{lease}\n\
                 [[rule]]\ndomain = \"edge\"\nmatch = [\"remote_address\"]\npolicy = \"requests\"\n"
            );
            std::fs::write(&path, text).expect("a writable temporary directory");
            path
        };
        Self {
            ours: path("LIMITER_SERVER").expect("LIMITER_SERVER names the program limiter-server"),
            throttlecrab: path("THROTTLECRAB"),
            envoy: path("ENVOY"),
            wrk: wrk::from_environment(),
            strict: file("strict", ""),
            leased: file("leased", "lease = \"1s\"\n"),
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.strict);
        let _ = std::fs::remove_file(&self.leased);
    }
}

/// A server under load.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    pub(crate) protocol: Protocol,
    programs: &'a Programs,
    start: Start,
}

/// The start of a contender.
#[derive(Clone, Copy)]
enum Start {
    Floor(&'static str),
    Ours {
        on_redis: bool,
        leased: bool,
    },
    Throttlecrab,
    /// Envoy in front of a service, with the limits of limiter-server or without limits.
    Envoy {
        has_limits: bool,
    },
    Redis,
    /// The library in this process, on Redis.
    Library,
}

/// Returns the contenders; the first of each group is the one that the others are compared with.
pub(crate) fn contenders(programs: &Programs) -> Vec<Contender<'_>> {
    let memory = Start::Ours {
        on_redis: false,
        leased: false,
    };
    let redis = Start::Ours {
        on_redis: true,
        leased: false,
    };
    let leased = Start::Ours {
        on_redis: true,
        leased: true,
    };
    let [free, limited] = [false, true].map(|has_limits| Start::Envoy { has_limits });
    let rows = [
        (LIBRARY, Protocol::Library, Start::Library),
        (FLOOR, Protocol::EnvoyGrpc, Start::Floor("grpc")),
        (IN_MEMORY, Protocol::EnvoyGrpc, memory),
        (ON_REDIS, Protocol::EnvoyGrpc, redis),
        ("limiter-server, Redis with leases", Protocol::EnvoyGrpc, leased),
        (
            "limitador library behind tonic",
            Protocol::EnvoyGrpc,
            Start::Floor("limitador"),
        ),
        (THROTTLECRAB, Protocol::ThrottleGrpc, Start::Throttlecrab),
        (HTTP_FLOOR, Protocol::HttpCheck, Start::Floor("http")),
        (IN_MEMORY, Protocol::HttpCheck, memory),
        ("limiter-server, Redis", Protocol::HttpCheck, redis),
        (THROTTLECRAB, Protocol::HttpThrottle, Start::Throttlecrab),
        ("Envoy without limits", Protocol::ProxiedHttp, free),
        (
            "Envoy with limiter-server, in memory",
            Protocol::ProxiedHttp,
            limited,
        ),
        ("Envoy without limits", Protocol::ProxiedWrk, free),
        (
            "Envoy with limiter-server, in memory",
            Protocol::ProxiedWrk,
            limited,
        ),
        ("INCRBY on Redis", Protocol::RespIncrby, Start::Redis),
        (
            "limiter-server CL.THROTTLE, in memory",
            Protocol::RespThrottle,
            memory,
        ),
        ("limiter-server CL.THROTTLE, Redis", Protocol::RespThrottle, redis),
    ];
    let contender = |(name, protocol, start)| Contender {
        name,
        protocol,
        programs,
        start,
    };
    let mut contenders: Vec<_> = rows.into_iter().map(contender).collect();
    contenders.retain(|contender| match contender.start {
        Start::Throttlecrab => programs.throttlecrab.is_some(),
        Start::Envoy { .. } if contender.protocol == Protocol::ProxiedWrk => {
            programs.envoy.is_some() && programs.wrk.is_some()
        }
        Start::Envoy { .. } => programs.envoy.is_some(),
        Start::Floor(_) | Start::Ours { .. } | Start::Redis | Start::Library => true,
    });
    contenders
}

impl Contender<'_> {
    /// Starts the server, sends the load and stops the server.
    pub(crate) fn measure(&self, load: &Load) -> Sample {
        let programs = self.programs;
        match self.start {
            Start::Floor(kind) => load.run(self.protocol, &floor(kind)),
            Start::Ours { on_redis, leased } => {
                let redis = on_redis.then(RedisServer::start);
                let policies = if leased {
                    &programs.leased
                } else {
                    &programs.strict
                };
                let mut command = Command::new(&programs.ours);
                command.arg("serve").arg("--policies").arg(policies);
                let (option, label) = match self.protocol {
                    Protocol::EnvoyGrpc | Protocol::ThrottleGrpc => ("--grpc", "grpc"),
                    Protocol::HttpCheck
                    | Protocol::HttpThrottle
                    | Protocol::ProxiedHttp
                    | Protocol::ProxiedWrk
                    | Protocol::Library => ("--http", "http"),
                    Protocol::RespThrottle | Protocol::RespIncrby => ("--resp", "resp"),
                };
                command.args([option, "127.0.0.1:0"]);
                if let Some(redis) = &redis {
                    command.args(["--redis", &redis.url()]);
                }
                load.run(self.protocol, &Server::printing(command, label))
            }
            Start::Throttlecrab => {
                let program = programs.throttlecrab.as_ref().expect("only with the program");
                let address = free_address();
                let (protocol, port) = match self.protocol {
                    Protocol::ThrottleGrpc => ("--grpc", "--grpc-port"),
                    _ => ("--http", "--http-port"),
                };
                let mut command = Command::new(program);
                command.args([protocol, port, &address.port().to_string()]);
                command.args([&format!("{protocol}-host"), "127.0.0.1"]);
                load.run(self.protocol, &Server::listening(command, address))
            }
            Start::Envoy { has_limits } => {
                let program = programs.envoy.as_ref().expect("only with the program");
                let limiter = has_limits.then(|| {
                    let mut command = Command::new(&programs.ours);
                    command.arg("serve").arg("--policies").arg(&programs.strict);
                    command.args(["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
                    Server::printing(command, "grpc")
                });
                let envoy = Envoy::start(program, floor("http"), limiter);
                let address = envoy.server.address;
                match &programs.wrk {
                    Some(wrk) if self.protocol == Protocol::ProxiedWrk => {
                        wrk.run(load, address, || envoy.processor_time())
                    }
                    _ => load.run_on(self.protocol, address, || envoy.processor_time()),
                }
            }
            Start::Library => {
                let redis = RedisServer::start();
                let address = ([127, 0, 0, 1], redis.port()).into();
                load.run_on(self.protocol, address, || Duration::ZERO)
            }
            Start::Redis => {
                let redis = RedisServer::start();
                let address = ([127, 0, 0, 1], redis.port()).into();
                load.run_on(self.protocol, address, || time_of_redis(&redis))
            }
        }
    }
}

/// Returns a server of this program that decides nothing.
fn floor(kind: &str) -> Server {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["floor", kind]);
    Server::printing(command, "floor")
}

/// Returns the processor time that a Redis server reports.
fn time_of_redis(redis: &RedisServer) -> Duration {
    let info = redis.command(&["INFO", "cpu"]).text();
    let seconds = |field: &str| -> f64 {
        let value = info.lines().find_map(|line| line.strip_prefix(field));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    };
    Duration::from_secs_f64(seconds("used_cpu_sys:") + seconds("used_cpu_user:"))
}
