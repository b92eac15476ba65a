//! Completes the response of an allowed request.
//!
//! A decision is available before the inner service is called, and its headers, extensions and
//! settlement belong to the response. [`ResponseHooks`] stores them during the call and applies
//! them once. Most requests store nothing. Tests: `tests/decisions/headers.rs`,
//! `tests/http/answers.rs`.

use http::{Request, Response};
use limiter_core::{Decision, Enforcement};

use crate::headers::{Costs, RateLimitHeaders};
use crate::rate::config::LayerConfig;
use crate::rate::next_action::Grant;
use crate::responses::body::ResponseBody;
use crate::responses::{Protocol, ResponseFields};
use crate::settlement::Settling;

/// Values of the decision that the response needs.
#[derive(Debug, Default)]
pub(crate) struct ResponseHooks {
    /// The decision for the response's extensions.
    decision: Option<Box<Decision>>,
    /// Headers for the client.
    fields: Option<ResponseFields>,
    /// The charge to be settled.
    settling: Option<Box<Settling>>,
}

impl LayerConfig {
    /// Creates the hooks of an allowed request and inserts its decision into the extensions.
    #[inline]
    pub(crate) fn response_hooks<B>(&self, granted: Grant, request: &mut Request<B>) -> ResponseHooks {
        let Grant {
            decision,
            mut settling,
            costs,
        } = granted;
        let fields = match &mut settling {
            None => self.apply_fields(&decision, &costs, request),
            // The settlement writes the headers of the limits.
            Some(settling) => {
                settling.set_headers(self.dialect_for(request), costs);
                self.fields_for_unlimited(&decision)
            }
        };
        ResponseHooks {
            fields,
            decision: self.attach_decision(decision, request),
            settling,
        }
    }
}

impl LayerConfig {
    /// Returns the headers for the response to an allowed request. If the limiter does not enforce
    /// limits, only the header with the decision's source is returned.
    #[inline]
    pub(crate) fn apply_fields<B>(
        &self,
        decision: &Decision,
        costs: &Costs,
        request: &Request<B>,
    ) -> Option<ResponseFields> {
        let responder = self.responder();
        if responder.is_silent() {
            return None;
        }
        if self.limiter().enforcement() == Enforcement::Enforce {
            responder.fields_for(decision, costs, &Protocol::from_request(request))
        } else {
            self.fields_for_unlimited(decision)
        }
    }

    /// Returns the header with the decision's source, without rate limit headers.
    pub(crate) fn fields_for_unlimited(&self, decision: &Decision) -> Option<ResponseFields> {
        ResponseFields::new(None, self.responder().origin_header(decision))
    }

    /// Selects the rate limit headers of the response to a request.
    pub(crate) fn dialect_for<B>(&self, request: &Request<B>) -> RateLimitHeaders {
        match Protocol::from_request(request) {
            Protocol::Http if self.limiter().enforcement() == Enforcement::Enforce => {
                self.responder().dialect
            }
            _ => RateLimitHeaders::None,
        }
    }
}

impl ResponseHooks {
    /// Applies the hooks to the inner service's response. Call it once.
    pub(crate) fn respond<B>(&mut self, mut response: Response<B>) -> Response<ResponseBody<B>> {
        if let Some(decision) = self.decision.take() {
            // An existing decision comes from an inner layer, which is more specific.
            response.extensions_mut().get_or_insert_with(|| *decision);
        }
        if let Some(fields) = self.fields.take() {
            fields.write(response.headers_mut());
        }
        match self.settling.take() {
            None => response.map(ResponseBody::inner),
            Some(settling) => match settling.respond(response) {
                (response, Some(meter)) => response.map(|body| ResponseBody::metered(body, meter)),
                (response, None) => response.map(ResponseBody::inner),
            },
        }
    }
}
