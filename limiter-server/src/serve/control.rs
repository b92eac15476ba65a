//! Runs the control plane on a runtime of its own, so that sign-ins and large pages do not delay
//! decisions.
//!
//! The admin listener answers 503 until the database has answered once; decisions do not wait for
//! it. A node without Redis registers itself, and refuses to start beside another one. Tests:
//! `tests/isolation.rs`, `tests/control_plane.rs`.

mod admin_listener;
mod fingerprints;
mod first_import;
mod monitor;
mod presentation;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use futures_util::future::join_all;
use limiter_core::registry::PolicyRegistry;
use limiter_core::usage::FleetUsage;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::admin::{self, Admin, GatewayHandle};
use crate::denials::{self, DenialRecorder};
use crate::gateway::Gateway;
use crate::library_usage::{self, LibraryUsageStatus};
use crate::listener::Listener;
use crate::priority;
use crate::publish::tokens::TokenPublisher;
use crate::publish::{PublicationTarget, Publisher};
use crate::retention;
use crate::secret::random_id;
use crate::serve::control::admin_listener::{offer_setup, serve};
use crate::serve::control::fingerprints::{fingerprints_of, share_fingerprints};
use crate::serve::control::first_import::import_file;
use crate::serve::control::presentation::{addresses, looks};
use crate::serve::limits;
use crate::settings::{ControlSettings, Policies, ProcessRole, Settings, StoreSettings};
use crate::store::{AuditLines, NodeRecord, Store, StoreError, micros, now_micros};
use crate::usage::{self, UsageCounts};
use crate::webhook;

/// The number of threads of the control plane.
const THREADS: usize = 2;
/// The interval between attempts to reach the database at the start.
const RETRY: Duration = Duration::from_secs(1);
/// The interval between heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A node without a heartbeat for this time has ended.
const NODE_TIMEOUT: Duration = Duration::from_secs(7);

/// The state of the control plane that its parts share.
#[derive(Debug)]
struct ControlPlane {
    settings: Settings,
    control: ControlSettings,
    /// The gateway of this node. Without Redis, its registry follows SQL.
    gateway: Gateway,
    /// The runtime of the gateway.
    runtime: Handle,
    usage: UsageCounts,
    /// The metrics for the admin listener.
    metrics: Option<Router>,
    instance: String,
}

/// The handle of the running control plane.
#[derive(Debug)]
pub(super) struct ControlHandle {
    failed: oneshot::Receiver<String>,
    /// Closed at the end of the thread.
    ended: oneshot::Receiver<Infallible>,
}

impl ControlHandle {
    /// Waits for a failure that must end the process.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(super) async fn failed(&mut self) -> String {
        match (&mut self.failed).await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until the control plane has ended.
    pub(super) async fn join(self) {
        // A task that joins the thread would keep the process until the thread ends: a runtime
        // waits for its blocking tasks.
        let _ = self.ended.await;
    }
}

/// Returns the namespace that a process serves.
pub(super) fn namespace(store: &StoreSettings) -> &str {
    store.namespace()
}

/// Starts the control plane.
pub(super) fn start(
    settings: &Settings,
    control: &ControlSettings,
    listener: Option<std::net::TcpListener>,
    gateway: &Gateway,
    (usage, metrics): (UsageCounts, Option<Router>),
    end: watch::Receiver<bool>,
) -> Result<ControlHandle, String> {
    let plane = Arc::new(ControlPlane {
        settings: settings.clone(),
        control: control.clone(),
        gateway: gateway.clone(),
        runtime: Handle::current(),
        usage,
        metrics,
        instance: random_id(),
    });
    let (report, failed) = oneshot::channel();
    let (running, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("control")
        .on_thread_start(priority::lower)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime of the control plane: {error}"))?;
    let run = move || {
        priority::lower();
        if let Err(reason) = runtime.block_on(plane.run(listener, end)) {
            // The receiver can only be gone at the end of the process.
            let _ = report.send(reason);
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
        drop(running);
    };
    let thread = std::thread::Builder::new().name("control".to_owned()).spawn(run);
    thread.map_err(|error| format!("cannot start the control plane: {error}"))?;
    Ok(ControlHandle { failed, ended })
}

impl ControlPlane {
    async fn run(
        self: Arc<Self>,
        listener: Option<std::net::TcpListener>,
        mut end: watch::Receiver<bool>,
    ) -> Result<(), String> {
        let router: Arc<OnceLock<Router>> = Arc::default();
        let mut server = tokio::task::JoinSet::new();
        if let Some(listener) = listener {
            let tls = admin_listener::tls(&self.settings, self.control.admin);
            let listener = Listener::from_std("admin", listener, &self.settings.limits, tls)?;
            let routers = (Arc::clone(&router), self.metrics.clone());
            server.spawn(serve(listener, routers, end.clone()));
        }
        let store = tokio::select! {
            store = self.open() => store?,
            _ = end.wait_for(|end| *end) => return Ok(()),
        };
        let work = self.work(&store, &router);
        let result = tokio::select! {
            result = work => result,
            _ = end.wait_for(|end| *end) => Ok(()),
        };
        if result.is_err() {
            // The listener ends with the process otherwise, which waits for this error.
            server.abort_all();
        }
        while server.join_next().await.is_some() {}
        // The entry is removed by other nodes if the database does not answer.
        let _ = store.remove_node(&self.instance).await;
        store.close().await;
        result
    }

    /// Opens the database, again while it does not answer.
    async fn open(&self) -> Result<Store, String> {
        let mut is_reported = false;
        loop {
            let error = match Store::open(&self.control.database).await {
                Ok(store) => return Ok(store.with_audit_lines(AuditLines::Stdout)),
                Err(error @ StoreError::Url(_)) => return Err(error.to_string()),
                Err(error) => error,
            };
            if !std::mem::replace(&mut is_reported, true) {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "the database does not answer; trying again");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn work(&self, store: &Store, router: &OnceLock<Router>) -> Result<(), String> {
        let namespace = namespace(&self.settings.store);
        let shares_limits = matches!(self.settings.store, StoreSettings::Redis { .. });
        let mut fleets = BTreeMap::new();
        let target = match &self.settings.store {
            StoreSettings::InProcess { .. } => {
                PublicationTarget::Gateway(self.gateway.limiter().registry().clone())
            }
            redis => {
                let (target, usage) = redis_target(redis)?;
                fleets.extend(usage.map(|usage| (namespace.to_owned(), usage)));
                target
            }
        };
        if !shares_limits && !self.control.is_standalone {
            self.require_alone(store).await?;
        }
        if let Policies::Database { import: Some(path) } = &self.settings.policies {
            import_file(store, namespace, path).await?;
        }
        let publisher = Publisher::new(namespace, store.clone(), target);
        let mut publishers = vec![publisher.clone()];
        for other in self.control.namespaces.iter().filter(|of| of.name != namespace) {
            let (target, usage) = redis_target(&other.store)?;
            fleets.extend(usage.map(|usage| (other.name.clone(), usage)));
            publishers.push(Publisher::new(&other.name, store.clone(), target));
        }
        // Before tokens are accepted: the first pass suspends those of a restored copy.
        let first_passes = join_all(publishers.iter().map(Publisher::publish)).await;
        let mut tokens: Vec<TokenPublisher> = publishers.iter().map(TokenPublisher::new).collect();
        if let Some(own) = tokens.first_mut() {
            own.accept_at(&self.settings.access).await;
        }
        let fingerprints = fingerprints_of(&self.gateway, &publishers, &self.settings);
        let library_status = LibraryUsageStatus::default();
        if self.settings.role != ProcessRole::Gateway {
            let proxy = self.control.proxy.clone();
            let node = self.settings.node.clone();
            let gateway = self.known_gateway(shares_limits);
            let admin = Admin::new(store.clone(), publishers.clone(), proxy, node, gateway)?;
            let admin = admin
                .with_addresses(addresses(&self.settings))
                .with_fleet_usage(fleets.clone(), library_status.clone())
                .with_retention(self.control.retention.clone())
                .with_forwarding(self.settings.trusted_proxies.clone())
                .with_looks(looks(&self.control.namespaces))
                .with_fingerprints(fingerprints.clone());
            offer_setup(&admin, &self.settings, self.control.admin).await;
            // The lock is empty, since this is the only place that sets it.
            let _ = router.set(admin::router(admin, &self.settings.allowed_hosts));
        }
        if !shares_limits {
            match first_passes.into_iter().next() {
                Some(Err(reason)) => {
                    tracing::warn!(%reason, "cannot read the policies of the database; trying again")
                }
                _ => self.gateway.readiness().policies_received(),
            }
        }
        let heartbeats = self.send_heartbeats(store, shares_limits);
        let ready = self.report_ready(&publisher, shares_limits);
        let usage = usage::fold(self.usage.clone(), store.clone(), namespace.to_owned());
        let retention = retention::run(
            store.clone(),
            self.control.retention.clone(),
            publishers.iter().map(|of| of.namespace().to_owned()).collect(),
            self.instance.clone(),
        );
        let publishing = async {
            let mut running: tokio::task::JoinSet<()> =
                publishers.iter().map(|of| of.clone().run()).collect();
            while running.join_next().await.is_some() {}
        };
        let webhook = async {
            if let Some(webhook) = self.control.webhook.clone() {
                let (node, instance) = (self.settings.node.clone(), self.instance.clone());
                webhook::run(store.clone(), webhook, node, instance).await;
            }
        };
        let denials = denials::run(self.denial_recorders(store, &publishers, &fleets));
        let library_usage = library_usage::run(fleets, store.clone(), library_status);
        let monitor = monitor::run(store.clone(), publishers.clone(), self.settings.access.clone());
        let publishing_tokens = async {
            let mut running: tokio::task::JoinSet<()> = tokens.into_iter().map(TokenPublisher::run).collect();
            while running.join_next().await.is_some() {}
        };
        tokio::join!(
            publishing_tokens,
            share_fingerprints(&publishers, &fingerprints),
            publishing,
            heartbeats,
            ready,
            usage,
            denials,
            library_usage,
            retention,
            webhook,
            monitor
        );
        Ok(())
    }

    /// Returns the recorders of all namespaces: the gateway serves one of them.
    fn denial_recorders(
        &self,
        store: &Store,
        publishers: &[Publisher],
        fleets: &BTreeMap<String, FleetUsage>,
    ) -> Vec<DenialRecorder> {
        let own = namespace(&self.settings.store);
        let recorders = publishers.iter().map(|of| {
            let name = of.namespace();
            let mut recorder = DenialRecorder::new(store.clone(), name);
            if let Some(fleet) = fleets.get(name) {
                recorder = recorder.with_library(fleet.clone());
            }
            match name == own && self.settings.role != ProcessRole::Admin {
                true => recorder.with_gateway(self.gateway.clone(), &self.settings.node, &self.instance),
                false => recorder,
            }
        });
        recorders.collect()
    }

    /// Returns the gateway, unless the limits are those of other processes.
    fn known_gateway(&self, shares_limits: bool) -> Option<GatewayHandle> {
        let knows_limits = shares_limits || self.settings.role != ProcessRole::Admin;
        knows_limits.then(|| GatewayHandle {
            namespace: namespace(&self.settings.store).to_owned(),
            gateway: self.gateway.clone(),
            answers_calls: self.settings.role != ProcessRole::Admin,
            runtime: self.runtime.clone(),
        })
    }

    /// Without Redis, the gateway is ready when the policies of the database were read.
    async fn report_ready(&self, publisher: &Publisher, shares_limits: bool) {
        while !shares_limits && !self.gateway.readiness().is_ready() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let status = publisher.status();
            if status.passes > 0 && status.error.is_none() {
                self.gateway.readiness().policies_received();
            }
        }
    }

    fn record(&self, shares_limits: bool) -> NodeRecord {
        NodeRecord {
            name: self.settings.node.clone(),
            instance: self.instance.clone(),
            role: self.settings.role.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            shares_limits,
            seen: now_micros(),
        }
    }

    async fn send_heartbeats(&self, store: &Store, shares_limits: bool) {
        loop {
            let oldest = now_micros().saturating_sub(micros(NODE_TIMEOUT));
            if let Err(error) = store.heartbeat(&self.record(shares_limits), oldest).await {
                tracing::debug!(%error, "cannot record the heartbeat of this node");
            }
            tokio::time::sleep(HEARTBEAT).await;
        }
    }

    /// Fails if another node without Redis is running: each would count by itself.
    async fn require_alone(&self, store: &Store) -> Result<(), String> {
        let alive = async || -> Result<Vec<NodeRecord>, String> {
            let nodes = store.nodes().await.map_err(|error| error.to_string())?;
            let oldest = now_micros().saturating_sub(micros(NODE_TIMEOUT));
            let others = nodes.into_iter().filter(|node| node.instance != self.instance);
            Ok(others
                .filter(|node| !node.shares_limits && node.seen > oldest && node.role != "admin")
                .collect())
        };
        let before = alive().await?;
        if before.is_empty() {
            return Ok(());
        }
        // The entry of a process that was killed is not renewed.
        tokio::time::sleep(HEARTBEAT * 2).await;
        let now = alive().await?;
        let is_renewed = |node: &&NodeRecord| {
            let old = before.iter().find(|old| old.instance == node.instance);
            old.is_none_or(|old| node.seen > old.seen)
        };
        match now.iter().find(is_renewed) {
            None => Ok(()),
            Some(node) => Err(format!(
                "the node `{}` uses the same database without Redis, so limits would be counted per node: \
                 set redis for both nodes, or standalone to accept it",
                node.name
            )),
        }
    }
}

/// Returns the registry of a namespace in Redis, and the usage of its processes.
fn redis_target(store: &StoreSettings) -> Result<(PublicationTarget, Option<FleetUsage>), String> {
    let limiter = limits::build(store, &PolicyRegistry::new())?;
    let registry = limiter.redis_registry().map_err(|error| error.to_string())?;
    Ok((PublicationTarget::Redis(registry), limiter.fleet_usage()))
}
