//! The service behind the limits of the gRPC examples.

use tonic::{Request, Response, Status};

use crate::greeter::greeter_server::Greeter;
use crate::greeter::{GreetReply, GreetRequest};

/// Greets in English.
#[derive(Clone, Copy, Debug)]
pub struct English;

#[tonic::async_trait]
impl Greeter for English {
    async fn greet(&self, request: Request<GreetRequest>) -> Result<Response<GreetReply>, Status> {
        let message = format!("hello, {}", request.into_inner().name);
        Ok(Response::new(GreetReply { message }))
    }
}
