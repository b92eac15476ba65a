//! The servers, started when they are first needed, and where they are.

use std::sync::OnceLock;
use std::time::Duration;

use limiter_testing::{Proxy, RedisCluster, RedisServer, acl};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo};

/// The location of a workload's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Server,
    /// A server behind a proxy with this delay in each direction.
    Delayed(Duration),
    Cluster,
}

/// The servers and proxies of the benchmark, which are stopped when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    /// The nodes of the cluster; 3 if it is not given.
    nodes: Option<u16>,
    /// The path of the module redis-cell.
    cell: Option<String>,
    server: OnceLock<RedisServer>,
    cluster: OnceLock<RedisCluster>,
    proxy: OnceLock<Proxy>,
}

impl Environment {
    /// Servers with a cluster of this number of nodes.
    pub(crate) fn with_nodes(nodes: u16) -> Self {
        Self {
            nodes: Some(nodes),
            ..Self::default()
        }
    }

    /// Servers with the module redis-cell, if its path is given.
    pub(crate) fn with_cell(cell: Option<String>) -> Self {
        Self {
            cell,
            ..Self::default()
        }
    }

    pub(crate) fn server(&self) -> &RedisServer {
        self.server.get_or_init(|| {
            let builder = RedisServer::builder();
            match &self.cell {
                Some(path) => builder.arg("loadmodule", path).start(),
                None => builder.start(),
            }
        })
    }

    /// Returns the servers that decide at this place.
    pub(crate) fn servers(&self, place: Place) -> Vec<&RedisServer> {
        match place {
            Place::Server | Place::Delayed(_) => vec![self.server()],
            Place::Cluster => self.cluster().nodes().iter().collect(),
        }
    }

    pub(crate) fn address(&self, place: Place) -> Address {
        match place {
            Place::Server => Address::Server(self.server().port()),
            Place::Delayed(delay) => {
                let proxy = self.proxy.get_or_init(|| Proxy::start(self.server().port()));
                proxy.set_delay(delay);
                Address::Server(proxy.port())
            }
            Place::Cluster => {
                Address::Cluster(self.cluster().nodes().iter().map(RedisServer::port).collect())
            }
        }
    }

    fn cluster(&self) -> &RedisCluster {
        self.cluster
            .get_or_init(|| RedisCluster::builder().primaries(self.nodes.unwrap_or(3)).start())
    }
}

/// The loopback ports of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Server(u16),
    Cluster(Vec<u16>),
}

impl Address {
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns the URLs with a user that has only the permissions of a limiter.
    pub(crate) fn limited_user(&self) -> Vec<String> {
        self.urls(&format!("{}@", acl::LOGIN))
    }

    /// To one server, without the delay with which small packets are gathered.
    pub(crate) fn connection(&self) -> ConnectionInfo {
        let info = self.urls("")[0]
            .as_str()
            .into_connection_info()
            .expect("the URL is valid");
        info.set_tcp_settings(nodelay())
    }

    /// Returns one connection for all calls, and no timer for each.
    pub(crate) async fn multiplexed(&self) -> MultiplexedConnection {
        let client = Client::open(self.connection()).expect("the URL is valid");
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        connection.expect("Redis answers")
    }

    /// Returns one connection to each node, for all calls.
    pub(crate) async fn cluster(&self) -> ClusterConnection {
        let client = ClusterClient::builder(self.urls(""))
            .tcp_settings(nodelay())
            .build();
        let client = client.expect("the URLs are valid");
        client.get_async_connection().await.expect("the cluster answers")
    }

    fn urls(&self, login: &str) -> Vec<String> {
        let ports = match self {
            Self::Server(port) => std::slice::from_ref(port),
            Self::Cluster(ports) => ports,
        };
        ports
            .iter()
            .map(|port| format!("redis://{login}127.0.0.1:{port}/"))
            .collect()
    }
}

fn nodelay() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}
