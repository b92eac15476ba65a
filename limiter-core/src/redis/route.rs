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
            // On the heap, so that the future of other decisions stays small: see the test
            // `query_fits_small_allocation`.
            Self::Cluster(cluster) => Box::pin(cluster.execute(operation)).await,
        }
    }
}
