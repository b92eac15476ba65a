//! The admin part: policies, roles, tokens and history over HTTP.
//!
//! [`api`] translates HTTP to operations, [`permissions`] decides whether a caller may act,
//! [`edit`] validates and saves policies. `tests/routes_by_role.rs` sends every route with every
//! role.

pub mod api;
pub mod auth;
pub mod bounds;
pub mod edit;
mod entity_tag;
mod numbers;
mod outage;
pub mod pages;
pub mod permissions;
pub mod preview;
pub mod sentence;
pub(crate) mod tokens;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::HeaderMap;
use limiter_core::Key;
use limiter_core::usage::FleetUsage;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::admin::auth::SigninLimits;
use crate::admin::auth::password::Passwords;
use crate::admin::outage::Outage;
use crate::gateway::Gateway;
use crate::library_usage::LibraryUsageStatus;
use crate::publish::Publisher;
use crate::secret::Secret;
use crate::secret::fingerprint::KeyFingerprints;
use crate::settings::{ForwardingProxies, ProxySettings, RetentionSettings};
use crate::store::{NamespaceLook, Store, StoreError, micros, now_micros};

/// The lifetime of the link of the first run.
const SETUP_LINK: Duration = Duration::from_secs(24 * 3_600);

/// The state of the admin part. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admin(Arc<AdminInner>);

#[derive(Debug)]
struct AdminInner {
    store: Store,
    publishers: BTreeMap<String, Publisher>,
    passwords: Passwords,
    signin_limits: SigninLimits,
    proxy: ProxySettings,
    node: String,
    addresses: OnceLock<GatewayAddresses>,
    looks: OnceLock<BTreeMap<String, NamespaceLook>>,
    fleet_usage: OnceLock<(BTreeMap<String, FleetUsage>, LibraryUsageStatus)>,
    retention: OnceLock<RetentionSettings>,
    forwarding: OnceLock<ForwardingProxies>,
    fingerprints: OnceLock<BTreeMap<String, KeyFingerprints>>,
    gateway: Option<GatewayHandle>,
    outage: Outage,
}

/// The addresses at which clients reach the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GatewayAddresses {
    /// The host and port of HTTP; `None` if it is not known.
    pub http: Option<String>,
    /// The host and port of gRPC.
    pub grpc: Option<String>,
    /// True if clients use TLS.
    pub tls: bool,
}

/// The gateway of this process. Its limiter is called on the runtime of the gateway, to which the
/// connections to Redis belong.
#[derive(Clone, Debug)]
pub struct GatewayHandle {
    /// The namespace whose limits the gateway decides.
    pub namespace: String,
    /// The gateway.
    pub gateway: Gateway,
    /// True if the gateway answers calls; false in a process of the admin part alone.
    pub answers_calls: bool,
    /// The runtime of the gateway.
    pub runtime: Handle,
}

impl Admin {
    /// Creates the admin part of the namespaces that these publishers publish.
    ///
    /// # Errors
    ///
    /// The reason as one message.
    pub fn new(
        store: Store,
        publishers: impl IntoIterator<Item = Publisher>,
        proxy: ProxySettings,
        node: String,
        gateway: Option<GatewayHandle>,
    ) -> Result<Self, String> {
        let publishers = publishers.into_iter();
        Ok(Self(Arc::new(AdminInner {
            store,
            publishers: publishers.map(|of| (of.namespace().to_owned(), of)).collect(),
            passwords: Passwords::new()?,
            signin_limits: SigninLimits::new()?,
            proxy,
            node,
            addresses: OnceLock::new(),
            looks: OnceLock::new(),
            fleet_usage: OnceLock::new(),
            retention: OnceLock::new(),
            forwarding: OnceLock::new(),
            fingerprints: OnceLock::new(),
            gateway,
            outage: Outage::default(),
        })))
    }

    /// Sets the addresses of the gateway for the snippets of the pages. The first call counts.
    #[must_use]
    pub fn with_addresses(self, addresses: GatewayAddresses) -> Self {
        // Later calls have no effect, as documented.
        let _ = self.0.addresses.set(addresses);
        self
    }

    /// Returns the addresses of the gateway of a namespace, as far as they are known. The gateway
    /// of this process serves one namespace.
    #[must_use]
    pub fn addresses(&self, namespace: &str) -> GatewayAddresses {
        let other = self
            .0
            .gateway
            .as_ref()
            .is_some_and(|of| of.namespace != namespace);
        let addresses = self.0.addresses.get().filter(|_| !other);
        addresses.cloned().unwrap_or_default()
    }

    /// Sets the names and colours of namespaces in the settings file. The first call counts.
    #[must_use]
    pub fn with_looks(self, looks: BTreeMap<String, NamespaceLook>) -> Self {
        // Later calls have no effect, as documented.
        let _ = self.0.looks.set(looks);
        self
    }

    /// Sets the usage that library processes report, by namespace, and the state of its records.
    /// The first call counts.
    #[must_use]
    pub fn with_fleet_usage(self, usage: BTreeMap<String, FleetUsage>, status: LibraryUsageStatus) -> Self {
        // Later calls have no effect, as documented.
        let _ = self.0.fleet_usage.set((usage, status));
        self
    }

    /// Sets how long records are kept. The first call counts. Default: that of the settings.
    #[must_use]
    pub fn with_retention(self, retention: RetentionSettings) -> Self {
        // Later calls have no effect, as documented.
        let _ = self.0.retention.set(retention);
        self
    }

    /// Sets the proxies that name the addresses of clients. The first call counts. Default: none.
    #[must_use]
    pub fn with_forwarding(self, proxies: ForwardingProxies) -> Self {
        // Later calls have no effect, as documented.
        let _ = self.0.forwarding.set(proxies);
        self
    }

    /// Sets the fingerprints of keys of the namespaces. The first call counts.
    #[must_use]
    pub fn with_fingerprints(self, fingerprints: BTreeMap<String, KeyFingerprints>) -> Self {
        // Later calls have no effect, as documented.
        let _ = self.0.fingerprints.set(fingerprints);
        self
    }

    /// Returns the fingerprint of a key in a namespace, with its parts separated by ` / `; `None`
    /// while the secret of the namespace is not known.
    #[must_use]
    pub fn key_fingerprint(&self, namespace: &str, key: &str) -> Option<String> {
        self.0.fingerprints.get()?.get(namespace)?.of(key)
    }

    /// Returns the address of the client of a request, as a key.
    fn client_address(&self, headers: &HeaderMap, peer: SocketAddr) -> Key<'static> {
        let proxies = self.0.forwarding.get_or_init(|| ForwardingProxies::new([]));
        proxies.client_of(headers, peer)
    }

    /// Returns the time for which records are kept.
    #[must_use]
    pub fn retention(&self) -> RetentionSettings {
        self.0.retention.get().cloned().unwrap_or_default()
    }

    /// Returns the usage that the library processes of a namespace report; `None` without Redis.
    #[must_use]
    pub fn fleet_usage(&self, namespace: &str) -> Option<&FleetUsage> {
        self.0.fleet_usage.get()?.0.get(namespace)
    }

    /// Returns the state of the recording of library usage, with the reason of a failure: the
    /// result of [`LibraryUsageStatus::last`]; `None` also without Redis.
    #[must_use]
    pub fn library_usage(&self, namespace: &str) -> Option<Option<String>> {
        self.0.fleet_usage.get()?.1.last(namespace)
    }

    /// Returns the name and the colour of a namespace: those that an administrator chose, or else
    /// those of the settings file.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn look(&self, namespace: &str) -> Result<NamespaceLook, StoreError> {
        if let Some(chosen) = self.store().namespace_look(namespace).await? {
            return Ok(chosen);
        }
        let configured = self.0.looks.get().and_then(|looks| looks.get(namespace));
        Ok(configured.cloned().unwrap_or_default())
    }

    /// Returns the database.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Returns the name of this node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// Returns the gateway of this process; `None` if it does not know the limits of the namespace.
    #[must_use]
    pub fn gateway(&self, namespace: &str) -> Option<&GatewayHandle> {
        let gateway = self.0.gateway.as_ref();
        gateway.filter(|gateway| gateway.namespace == namespace)
    }

    /// Returns the configured namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.0.publishers.keys().map(String::as_str)
    }

    /// Returns the publisher of a namespace; `None` if it is not configured.
    #[must_use]
    pub fn publisher(&self, namespace: &str) -> Option<&Publisher> {
        self.0.publishers.get(namespace)
    }

    /// Computes passwords.
    #[must_use]
    pub fn passwords(&self) -> &Passwords {
        &self.0.passwords
    }

    /// Returns whether the database does not answer, so that pages are read-only.
    #[must_use]
    pub fn is_database_down(&self) -> bool {
        self.outage().is_active()
    }

    fn outage(&self) -> &Outage {
        &self.0.outage
    }

    fn signin_limits(&self) -> &SigninLimits {
        &self.0.signin_limits
    }

    fn proxy(&self) -> &ProxySettings {
        &self.0.proxy
    }

    /// Creates the link of the first run, if there is no user yet.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database fails.
    pub async fn offer_setup(&self) -> Result<Option<Secret>, StoreError> {
        let secret = Secret::generate("");
        let expires_at = now_micros().saturating_add(micros(SETUP_LINK));
        let is_offered = self.store().offer_setup(&secret.hash(), expires_at).await?;
        Ok(is_offered.then_some(secret))
    }
}

/// Returns the routes of the API and of the pages. `allowed_hosts` are the accepted names in the
/// header `Host`, besides addresses and `localhost`.
pub fn router(admin: Admin, allowed_hosts: &[String]) -> axum::Router {
    let api = api::router(admin.clone());
    pages::router(admin, api, allowed_hosts)
}

/// Serves the admin part until `end` is true, then finishes the requests in flight.
///
/// # Errors
///
/// The reason why the listener failed.
pub async fn serve(
    admin: Admin,
    listener: TcpListener,
    mut end: watch::Receiver<bool>,
) -> Result<(), String> {
    let ended = async move {
        // An error means that the sender is gone, which is an end as well.
        let _ = end.wait_for(|end| *end).await;
    };
    let service = router(admin, &[]).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(ended)
        .await
        .map_err(|error| format!("the admin listener failed: {error}"))
}
