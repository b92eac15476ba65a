//! The route of a call to the server that decides it.

use crate::error::StoreError;
use crate::redis::cluster::Cluster;
use crate::redis::dispatch::BatchPart;
use crate::redis::node::Node;
use crate::redis::node::NodeOperation;

/// The route to the server that decides. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    Standalone(Node),
    Cluster(Cluster),
}

impl Route {
    pub(crate) async fn run<E: NodeOperation>(&self, operation: &E) -> Result<E::Output, StoreError> {
        match self {
            Self::Standalone(node) => Ok(operation.execute(node, BatchPart::default()).await?),
            Self::Cluster(cluster) => cluster.execute(operation).await,
        }
    }
}
