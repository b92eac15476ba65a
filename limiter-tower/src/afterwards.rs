//! What is done with the response to an allowed request.

use http::{Request, Response};
use limiter_core::Decision;

use crate::body::ResponseBody;
use crate::decide::Limits;
use crate::next::Granted;
use crate::respond::Told;
use crate::settle::Settling;

/// What is known when the inner service is called, and used when it answers. Mostly nothing.
#[derive(Debug, Default)]
pub(crate) struct Afterwards {
    /// For layers further out.
    shown: Option<Box<Decision>>,
    /// For the client.
    told: Option<Told>,
    /// What is charged until it is known what the request came to.
    settling: Option<Box<Settling>>,
}

impl Limits {
    /// Of a request that goes on.
    #[inline]
    pub(crate) fn afterwards<B>(&self, granted: Granted, request: &mut Request<B>) -> Afterwards {
        let Granted {
            decision,
            mut settling,
            costs,
        } = granted;
        let told = match &mut settling {
            None => self.told(&decision, &costs, request),
            // Of its limits it tells itself, when it is known what the request came to.
            Some(settling) => {
                settling.tell(self.dialect_for(request), costs);
                self.told_beside_limits(&decision)
            }
        };
        Afterwards {
            told,
            shown: self.show(decision, request),
            settling,
        }
    }
}

impl Afterwards {
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
            Some(settling) => settling.respond(response),
        }
    }
}
