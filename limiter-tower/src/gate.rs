//! The common implementation of the four services: the inner service, and the configuration that
//! all clones share.
//!
//! Invariant: the instance that was polled ready is the instance that is called. A clone, which is
//! not ready, replaces it.
//!
//! Tests: `tests/contract.rs` (`ready_instance_is_called_and_denial_calls_none`),
//! `tests/contract/paths.rs`, `tests/load/in_flight.rs`, `tests/load/shed.rs`,
//! `tests/outbound/contract.rs`.

use std::mem;
use std::sync::Arc;

/// An inner service behind a layer with the configuration `C` and the extractor (or classifier)
/// `E`.
///
/// Servers clone a service for each request, so the shared state is behind one pointer.
pub(crate) struct Gate<S, C, E> {
    pub(crate) inner: S,
    pub(crate) shared: Arc<Shared<C, E>>,
}

/// The state shared by the clones of a service.
#[derive(Debug)]
pub(crate) struct Shared<C, E> {
    pub(crate) config: Arc<C>,
    pub(crate) key: Arc<E>,
}

impl<S, C, E> Gate<S, C, E> {
    pub(crate) fn new(inner: S, config: Arc<C>, key: Arc<E>) -> Self {
        let shared = Arc::new(Shared { config, key });
        Self { inner, shared }
    }
}

impl<S: Clone, C, E> Gate<S, C, E> {
    /// Takes the inner service that is ready. A clone, which is not ready, replaces it.
    pub(crate) fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }

    /// Drops the ready inner service, so that other callers can use the capacity it has reserved.
    pub(crate) fn release_ready(&mut self) {
        drop(self.take_ready());
    }
}

impl<S: Clone, C, E> Clone for Gate<S, C, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

/// Implements the methods and traits that the four services have in common.
macro_rules! impl_service {
    ($service:ident, $config:ty) => {
        impl<S, E> $service<S, E> {
            pub(crate) fn new(inner: S, config: ::std::sync::Arc<$config>, key: ::std::sync::Arc<E>) -> Self {
                Self {
                    gate: $crate::gate::Gate::new(inner, config, key),
                }
            }

            /// Returns the inner service.
            pub fn get_ref(&self) -> &S {
                &self.gate.inner
            }

            /// Returns a mutable reference to the inner service.
            pub fn get_mut(&mut self) -> &mut S {
                &mut self.gate.inner
            }

            /// Returns the inner service.
            pub fn into_inner(self) -> S {
                self.gate.inner
            }
        }

        impl<S: Clone, E> Clone for $service<S, E> {
            fn clone(&self) -> Self {
                Self {
                    gate: self.gate.clone(),
                }
            }
        }

        impl<S: ::std::fmt::Debug, E> ::std::fmt::Debug for $service<S, E> {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($service))
                    .field("inner", &self.gate.inner)
                    .field("config", &self.gate.shared.config)
                    .finish_non_exhaustive()
            }
        }

        #[cfg(feature = "tonic")]
        impl<S: ::tonic::server::NamedService, E> ::tonic::server::NamedService for $service<S, E> {
            const NAME: &'static str = S::NAME;
        }
    };
}
pub(crate) use impl_service;
