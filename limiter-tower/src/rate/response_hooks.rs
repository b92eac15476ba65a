//! What is done with the response to an allowed request.

use http::{Request, Response};
use limiter_core::{Decision, Enforcement};

use crate::headers::{Costs, RateLimitHeaders};
use crate::rate::action::Grant;
use crate::rate::config::LayerConfig;
use crate::responses::body::ResponseBody;
use crate::responses::{Protocol, ResponseFields};
use crate::settlement::Settling;

/// What is known when the inner service is called, and used when it answers. Mostly nothing.
#[derive(Debug, Default)]
pub(crate) struct ResponseHooks {
    /// For layers further out.
    shown: Option<Box<Decision>>,
    /// For the client.
    told: Option<ResponseFields>,
    /// What is charged until it is known what the request came to.
    settling: Option<Box<Settling>>,
}

impl LayerConfig {
    /// Of a request that goes on.
    #[inline]
    pub(crate) fn response_hooks<B>(&self, granted: Grant, request: &mut Request<B>) -> ResponseHooks {
        let Grant {
            decision,
            mut settling,
            costs,
        } = granted;
        let told = match &mut settling {
            None => self.apply_fields(&decision, &costs, request),
            // Of its limits it tells itself, when it is known what the request came to.
            Some(settling) => {
                settling.set_headers(self.dialect_for(request), costs);
                self.fields_for_unlimited(&decision)
            }
        };
        ResponseHooks {
            told,
            shown: self.attach_decision(decision, request),
            settling,
        }
    }
}

impl LayerConfig {
    /// What the response to a request that this decision allows tells its client. Nothing where the
    /// limiter does not enforce its limits, but for who decided.
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

    /// The same without its limits.
    pub(crate) fn fields_for_unlimited(&self, decision: &Decision) -> Option<ResponseFields> {
        ResponseFields::new(None, self.responder().origin_header(decision))
    }

    /// In which headers the response to a request tells of its limits.
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
    /// What becomes of the inner service's response. To be asked once.
    pub(crate) fn respond<B>(&mut self, mut response: Response<B>) -> Response<ResponseBody<B>> {
        if let Some(decision) = self.shown.take() {
            // One that is there already is a more specific layer's, further in.
            response.extensions_mut().get_or_insert_with(|| *decision);
        }
        if let Some(told) = self.told.take() {
            told.write(response.headers_mut());
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
