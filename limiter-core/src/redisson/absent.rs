//! Without the features `registry` and `redis` no rate stands in Redis.

use crate::decision::Rejection;
use crate::error::{ConfigError, StoreError};
use crate::limiter::Limiter;
use crate::registry::{Edit, PolicyEntry};

/// There is none.
#[derive(Debug)]
pub(super) enum Remote {}

impl Remote {
    pub(super) fn from_limiter(_: &Limiter) -> Option<Self> {
        None
    }

    pub(super) async fn sync(&self, _is_known: bool) -> Result<(), Rejection> {
        match *self {}
    }

    pub(super) async fn sync_until(&self, _: impl Fn() -> bool) -> Result<(), StoreError> {
        match *self {}
    }

    pub(super) async fn change<T>(
        &self,
        _: &Limiter,
        _: &str,
        _: impl FnMut(Option<&PolicyEntry>) -> Result<(T, Edit), ConfigError>,
    ) -> Result<T, Rejection> {
        match *self {}
    }
}
