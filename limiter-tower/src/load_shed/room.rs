//! The capacity of a load shedding layer.

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

/// How much may be in flight, and what is said to the rest.
#[derive(Clone, Debug)]
pub(crate) struct ShedConfig {
    /// The bound for all.
    pub(super) at_most: usize,
    /// What is kept for each class.
    pub(super) reserved: PerPriority<usize>,
    /// How many are in flight, of whatever class, where one of a class is not admitted any more.
    pub(super) most: PerPriority<usize>,
    pub(super) gauge: Arc<InFlightCounter>,
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
        self.gauge.enter(class, *self.most.get(class))
    }

    pub(super) fn reserve_for(&mut self, class: Priority, places: usize) {
        *self.reserved.get_mut(class) = places;
        self.most = PerPriority::from_fn(|class| self.at_most.saturating_sub(self.reserved_above(class)));
    }

    /// How many places are reserved for the classes above this one.
    fn reserved_above(&self, class: Priority) -> usize {
        let above = Priority::ALL.into_iter().filter(|other| *other > class);
        above.fold(0, |places: usize, other| {
            places.saturating_add(*self.reserved.get(other))
        })
    }

    /// Fails if no request is ever admitted, or if a reservation leaves nothing to the lowest
    /// class.
    pub(super) fn verify(&self) -> Result<(), ConfigError> {
        let invalid = |what, value: String, expected: String| {
            Err(ConfigError::Invalid {
                what,
                value,
                expected,
            })
        };
        if self.at_most == 0 {
            return invalid(
                "number of requests in flight",
                "0".to_owned(),
                "at least 1".to_owned(),
            );
        }
        let lowest = Priority::Sheddable;
        if *self.reserved.get(lowest) > 0 || self.reserved_above(lowest) >= self.at_most {
            return invalid(
                "reserved places",
                format!(
                    "{} above and {} for {lowest:?}",
                    self.reserved_above(lowest),
                    self.reserved.get(lowest)
                ),
                format!(
                    "fewer than {} in total, for classes above {lowest:?}",
                    self.at_most
                ),
            );
        }
        Ok(())
    }

    /// Logs a mistake that [`verify`](Self::verify) would return, once for all clones of the layer.
    pub(super) fn log_mistakes(&self) {
        if let Err(error) = self.verify() {
            if !self.has_logged.swap(true, Ordering::Relaxed) {
                tracing::error!(layer = "LoadShedLayer", %error, "a layer is misconfigured");
            }
        }
    }
}
