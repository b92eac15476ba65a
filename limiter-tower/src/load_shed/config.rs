//! The configuration of a load shedding layer, shared by its clones.
//!
//! Capacity is reserved for each priority, but admission compares one counter with one number.
//! Every reservation computes the bounds again: the maximum minus the reservations for higher
//! priorities. The counter is shared, so all services of a layer have one capacity.
//!
//! Invariant: a higher priority never has a lower bound (`priority_uses_unreserved_capacity` in
//! `tests/load/shed.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use limiter_core::ConfigError;

use super::classify::Classify;
use super::in_flight_counter::{InFlightCounter, InFlightGuard, PerPriority};
use super::priority::Priority;
use crate::responses::Responder;
use crate::skip::{Paths, SkipRequest};

/// The capacity of a layer and the responses to shed requests.
#[derive(Clone, Debug)]
pub(crate) struct ShedConfig {
    /// The bound for requests of all priorities.
    pub(super) max_in_flight: usize,
    /// Capacity reserved for each priority.
    pub(super) reserved: PerPriority<usize>,
    /// The number of requests in flight, of all priorities, from which a priority is shed.
    pub(super) bounds: PerPriority<usize>,
    pub(super) counter: Arc<InFlightCounter>,
    pub(super) probes: Option<Paths>,
    pub(super) retry_after: Option<Duration>,
    pub(super) responder: Responder,
    pub(super) has_logged: Arc<AtomicBool>,
}

impl ShedConfig {
    #[inline]
    pub(super) fn class_of<B>(&self, classify: &impl Classify<B>, request: &Request<B>) -> Option<Priority> {
        match &self.probes {
            Some(probes) if probes.skips(request) => None,
            _ => classify.classify(request),
        }
    }

    #[inline]
    pub(super) fn enter(&self, class: Priority) -> Option<InFlightGuard> {
        self.counter.enter(class, *self.bounds.get(class))
    }

    pub(super) fn reserve_for(&mut self, class: Priority, places: usize) {
        *self.reserved.get_mut(class) = places;
        self.bounds =
            PerPriority::from_fn(|class| self.max_in_flight.saturating_sub(self.reserved_above(class)));
    }

    /// Returns the capacity reserved for higher priorities.
    fn reserved_above(&self, class: Priority) -> usize {
        let above = Priority::ALL.into_iter().filter(|other| *other > class);
        above.fold(0, |places: usize, other| {
            places.saturating_add(*self.reserved.get(other))
        })
    }

    /// Fails if no request is ever admitted, or if reservations leave no capacity for the lowest
    /// priority.
    pub(super) fn verify(&self) -> Result<(), ConfigError> {
        let invalid = |subject, value: String, expected: String| {
            Err(ConfigError::Invalid {
                field: subject,
                value,
                expected,
            })
        };
        if self.max_in_flight == 0 {
            return invalid(
                "number of requests in flight",
                "0".to_owned(),
                "at least 1".to_owned(),
            );
        }
        let lowest = Priority::Sheddable;
        if *self.reserved.get(lowest) > 0 || self.reserved_above(lowest) >= self.max_in_flight {
            return invalid(
                "reserved places",
                format!(
                    "{} above and {} for {lowest:?}",
                    self.reserved_above(lowest),
                    self.reserved.get(lowest)
                ),
                format!(
                    "fewer than {} in total, for classes above {lowest:?}",
                    self.max_in_flight
                ),
            );
        }
        Ok(())
    }

    /// Logs an error of [`verify`](Self::verify), once for all clones of the layer.
    pub(super) fn log_errors(&self) {
        if let Err(error) = self.verify() {
            if !self.has_logged.swap(true, Ordering::Relaxed) {
                tracing::error!(layer = "LoadShedLayer", %error, "a layer is misconfigured");
            }
        }
    }
}
