//! `limiter-server serve`: from the settings to listeners, until a signal ends the process.
//!
//! The order of a start: metrics, policies, limiter, listeners. The order of an end: health checks
//! report "not serving", listeners close, requests in flight finish, the limiter returns its
//! leases. The end takes at most [`Settings::drain`], also when a request does not finish. Tests:
//! `tests/lifecycle.rs`.

mod cache;
mod clients;
mod control;
pub(crate) mod limits;
mod listeners;
pub(crate) mod policies;
mod signals;
mod tokens;

use std::time::{Duration, Instant};

use axum::Router;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::sync::watch;

use crate::gateway::http::metrics_router;
use crate::gateway::readiness::Readiness;
use crate::gateway::{Gateway, grpc, http, resp};
use crate::listener::Listener;
use crate::publish::key_secret;
use crate::publish::tokens::DOCUMENT;
use crate::secret::Secret;
use crate::serve::clients::ClientFollower;
use crate::serve::control::ControlHandle;
use crate::serve::signals::Signal;
use crate::settings::{ControlSettings, ListenAddress, Policies, ProcessRole, Settings};
use crate::usage::{UsageCounts, UsageRecorder};

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
///
/// The reason as one message, when the server cannot start.
pub fn run(settings: &Settings) -> Result<(), String> {
    run_with(settings, |_, _| {})
}

/// The listeners with their addresses.
pub(crate) type Addresses = [(&'static str, ListenAddress)];

/// As [`run`], and calls a function when the listeners of the gateway accept connections.
pub(crate) fn run_with(
    settings: &Settings,
    on_start: impl FnOnce(&Addresses, Gateway),
) -> Result<(), String> {
    let usage = UsageCounts::default();
    let metrics = install_recorder(settings, &usage)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let served = runtime.block_on(serve(settings, metrics, usage, on_start));
    // A file system that does not answer must not keep the process.
    runtime.shutdown_timeout(BLOCKED_THREADS);
    served
}

/// The longest time at the end of [`Settings::drain`] that is kept for the return of leases, which
/// one unfinished request would prevent otherwise.
const RETURN_TIME: Duration = Duration::from_secs(1);
/// The longest time at the end for the threads that read files.
const BLOCKED_THREADS: Duration = Duration::from_millis(200);
/// The buckets of `limiter_decision_seconds`.
const SECONDS: [f64; 8] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1];
/// The buckets of `limiter_batch_requests`.
const REQUESTS: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// Installs the recorder of the metrics. With a database, it also counts the usage of policies.
fn install_recorder(settings: &Settings, usage: &UsageCounts) -> Result<PrometheusHandle, String> {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full("limiter_decision_seconds".to_owned()), &SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Full("limiter_batch_requests".to_owned()), &REQUESTS)
        })
        .map_err(|error| format!("cannot configure the metrics recorder: {error}"))?
        .build_recorder();
    let handle = recorder.handle();
    let installed = match &settings.control {
        Some(_) => metrics::set_global_recorder(UsageRecorder::new(recorder, usage.clone())).is_ok(),
        None => metrics::set_global_recorder(recorder).is_ok(),
    };
    match installed {
        true => Ok(handle),
        false => Err("cannot install the metrics recorder: there is another one".to_owned()),
    }
}

/// Logs to standard error, filtered by `RUST_LOG`, or else from the level info.
pub(crate) fn init_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // A second call keeps the first subscriber.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // One line per call if the filter enables the spans of calls.
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .try_init();
}

async fn serve(
    settings: &Settings,
    metrics: PrometheusHandle,
    usage: UsageCounts,
    on_start: impl FnOnce(&Addresses, Gateway),
) -> Result<(), String> {
    let mut signals = signals::Signals::new().map_err(|error| format!("cannot handle signals: {error}"))?;
    let source = policies::Source::open(&settings.policies, settings.state_dir.as_deref())?;
    let limiter = limits::build(&settings.store, source.policies())?;
    let readiness = Readiness::new(source.has_policies());
    policies::subscribe(
        &limiter,
        control::namespace(&settings.store),
        (&readiness, source.cached().is_some()),
    );
    if let Some(directory) = &settings.state_dir {
        tokens::cache(&settings.access, directory);
    }
    if let Ok(registry) = limiter.redis_registry() {
        tokens::follow(&settings.access, registry.document(DOCUMENT)).await;
    }
    tokio::spawn(tokens::expire(
        settings.access.clone(),
        settings.unconfirmed_tokens,
    ));
    let clients = ClientFollower::start(&settings.access, &settings.client_source);
    tokio::spawn(run_upkeep(metrics.clone()));

    let (end, ended) = watch::channel(false);
    let gateway = Gateway::new(limiter.clone(), settings, readiness.clone());
    share_fingerprints(settings, &gateway);
    let admission = gateway.admission().clone();
    if let Some(cached) = source.cached() {
        gateway.served_revision().restore(cached);
    }
    if let Some(directory) = &settings.state_dir {
        tokio::spawn(cache::follow(
            directory.clone(),
            gateway.served_revision().clone(),
            source.cached().is_some(),
        ));
    }
    let mut servers = tokio::task::JoinSet::new();
    let mut addresses = match settings.role {
        ProcessRole::Admin => Vec::new(),
        _ => start_gateway(settings, gateway.clone(), metrics.clone(), &ended, &mut servers).await?,
    };
    // The HTTP listener serves the metrics, if there is one.
    let metrics = (settings.role == ProcessRole::Admin).then(|| metrics_router(gateway.clone(), metrics));
    let bound = bind_control(settings, &mut addresses)?;
    // The addresses are the first lines of the output; the control plane adds lines of the audit.
    listeners::announce(&addresses);
    let observers = (usage, metrics);
    let mut control = start_control(settings, bound, &gateway, observers, &ended, &addresses)?;
    on_start(&addresses, gateway);
    if settings.policies == Policies::Example
        && let Some((_, http)) = addresses.iter().find(|(name, _)| *name == "http")
    {
        listeners::print_commands(http, settings.tls.as_ref());
    }

    let failed = loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Signal::Reload => {
                    source.reload();
                    clients.reload();
                }
                Signal::End => break None,
            },
            ended = servers.join_next(), if !servers.is_empty() => break Some(ended),
            reason = control_failure(&mut control) => break Some(Some(Ok(Err(reason)))),
        }
    };
    let started = Instant::now();
    readiness.end();
    tracing::info!(drain = ?settings.drain, "shutting down");
    // The receivers can only be gone with their servers.
    let _ = end.send(true);
    let drained = async {
        while servers.join_next().await.is_some() {}
        admission.idle().await;
        if let Some(control) = control {
            control.join().await;
        }
    };
    let kept = RETURN_TIME.min(settings.drain / 5);
    let finished = tokio::time::timeout(settings.drain.saturating_sub(kept), drained).await;
    if finished.is_err() {
        tracing::warn!("requests were still in flight at the end of the drain time");
    }
    limiter
        .shutdown(settings.drain.saturating_sub(started.elapsed()))
        .await;
    match failed {
        Some(Some(Ok(Err(error)))) => Err(error),
        Some(Some(Err(error))) => Err(format!("a listener failed: {error}")),
        _ => Ok(()),
    }
}

/// Shares one secret for the fingerprints of keys among the nodes of the namespace. Without Redis
/// and without a database, there is one node, and the secret lasts as long as its process.
fn share_fingerprints(settings: &Settings, gateway: &Gateway) {
    let fingerprints = gateway.fingerprints();
    if fingerprints.is_configured() {
        return;
    }
    if let Ok(registry) = gateway.limiter().redis_registry() {
        let document = registry.document(key_secret::DOCUMENT);
        tokio::spawn(key_secret::follow(fingerprints.clone(), document));
    } else if settings.control.is_none() {
        fingerprints.share(Secret::generate("").reveal());
    }
}

/// Binds the listeners of the gateway and serves them. Returns their addresses.
async fn start_gateway(
    settings: &Settings,
    gateway: Gateway,
    metrics: PrometheusHandle,
    ended: &watch::Receiver<bool>,
    servers: &mut tokio::task::JoinSet<Result<(), String>>,
) -> Result<Vec<(&'static str, ListenAddress)>, String> {
    let (limits, tls) = (&settings.limits, settings.tls.as_ref());
    let grpc = Listener::bind("grpc", &settings.grpc, limits, tls).await?;
    let http = Listener::bind("http", &settings.http, limits, tls).await?;
    let mut addresses = vec![("grpc", grpc.address().clone()), ("http", http.address().clone())];
    servers.spawn(grpc::serve(gateway.clone(), grpc, ended.clone()));
    servers.spawn(http::serve(gateway.clone(), metrics, http, ended.clone()));
    if let Some(address) = &settings.resp {
        let resp = Listener::bind("resp", address, limits, tls).await?;
        addresses.push(("resp", resp.address().clone()));
        servers.spawn(resp::serve(gateway, resp, ended.clone()));
    }
    Ok(addresses)
}

/// The settings of the control plane, and its listener if this process has one.
type BoundControl = (ControlSettings, Option<std::net::TcpListener>);

/// Binds the listener of the control plane, if there is a database. Adds its address.
fn bind_control(
    settings: &Settings,
    addresses: &mut Vec<(&'static str, ListenAddress)>,
) -> Result<Option<BoundControl>, String> {
    let Some(control) = &settings.control else {
        return Ok(None);
    };
    let mut control = control.clone();
    let listener = match settings.role {
        ProcessRole::Gateway => None,
        ProcessRole::Admin | ProcessRole::All => {
            let failed = |error| format!("cannot listen on {} for admin: {error}", control.admin);
            let listener = std::net::TcpListener::bind(control.admin).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            control.admin = address;
            addresses.push(("admin", ListenAddress::Tcp(address)));
            Some(listener)
        }
    };
    Ok(Some((control, listener)))
}

/// Starts the control plane, if there is a database.
fn start_control(
    settings: &Settings,
    bound: Option<BoundControl>,
    gateway: &Gateway,
    observers: (UsageCounts, Option<Router>),
    ended: &watch::Receiver<bool>,
    addresses: &[(&'static str, ListenAddress)],
) -> Result<Option<ControlHandle>, String> {
    let Some((control, listener)) = bound else {
        return Ok(None);
    };
    let ended = ended.clone();
    // The pages show the ports that the listeners use, where the settings have port 0.
    let mut settings = settings.clone();
    for (name, address) in addresses {
        match *name {
            "grpc" => settings.grpc = address.clone(),
            "http" => settings.http = address.clone(),
            _ => {}
        }
    }
    control::start(&settings, &control, listener, gateway, observers, ended).map(Some)
}

/// Waits for a failure of the control plane.
async fn control_failure(control: &mut Option<ControlHandle>) -> String {
    match control {
        Some(control) => control.failed().await,
        None => std::future::pending().await,
    }
}

/// Folds the samples of histograms, which otherwise grow until the next scrape.
async fn run_upkeep(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}
