//! Messages, client and server of `proto/greeter.proto`, in the shape that tonic's generator gives
//! them. They are committed, so that building needs nothing but Rust.

/// The name to greet.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct GreetRequest {
    /// A name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A greeting.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct GreetReply {
    /// Its text.
    #[prost(string, tag = "1")]
    pub message: String,
}

/// The client.
pub mod greeter_client {
    use tonic::client::GrpcService;
    use tonic::codegen::http::uri::PathAndQuery;
    use tonic::codegen::{Body, Bytes, GrpcMethod, StdError};

    /// Calls a `greeter.Greeter`.
    #[derive(Clone, Debug)]
    pub struct GreeterClient<T> {
        inner: tonic::client::Grpc<T>,
    }

    impl GreeterClient<tonic::transport::Channel> {
        /// Connects to the server at `endpoint`.
        ///
        /// # Errors
        ///
        /// Fails if the endpoint is malformed or no server listens there.
        pub async fn connect<D>(endpoint: D) -> Result<Self, tonic::transport::Error>
        where
            D: TryInto<tonic::transport::Endpoint, Error: Into<StdError>>,
        {
            let channel = tonic::transport::Endpoint::new(endpoint)?.connect().await?;
            Ok(Self::new(channel))
        }
    }

    impl<T> GreeterClient<T>
    where
        T: GrpcService<tonic::body::Body, Error: Into<StdError>>,
        T::ResponseBody: Body<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
    {
        /// Calls through `inner`.
        pub fn new(inner: T) -> Self {
            Self {
                inner: tonic::client::Grpc::new(inner),
            }
        }

        /// Requests a greeting.
        ///
        /// # Errors
        ///
        /// The status of the server or of a failed connection.
        pub async fn greet(
            &mut self,
            request: impl tonic::IntoRequest<super::GreetRequest>,
        ) -> Result<tonic::Response<super::GreetReply>, tonic::Status> {
            self.inner.ready().await.map_err(|error| {
                tonic::Status::unknown(format!("Service was not ready: {}", error.into()))
            })?;
            let codec = tonic_prost::ProstCodec::default();
            let path = PathAndQuery::from_static("/greeter.Greeter/Greet");
            let mut request = request.into_request();
            request
                .extensions_mut()
                .insert(GrpcMethod::new("greeter.Greeter", "Greet"));
            self.inner.unary(request, path, codec).await
        }
    }
}

/// The server.
pub mod greeter_server {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use tonic::codegen::{Body, BoxFuture, Service, StdError, http};

    /// The interface of a server.
    #[tonic::async_trait]
    pub trait Greeter: Send + Sync + 'static {
        /// Greets.
        async fn greet(
            &self,
            request: tonic::Request<super::GreetRequest>,
        ) -> Result<tonic::Response<super::GreetReply>, tonic::Status>;
    }

    /// Serves a [`Greeter`].
    #[derive(Debug)]
    pub struct GreeterServer<T> {
        inner: Arc<T>,
    }

    impl<T> GreeterServer<T> {
        /// Serves `inner`.
        pub fn new(inner: T) -> Self {
            Self {
                inner: Arc::new(inner),
            }
        }
    }

    impl<T> Clone for GreeterServer<T> {
        fn clone(&self) -> Self {
            Self {
                inner: Arc::clone(&self.inner),
            }
        }
    }

    impl<T, B> Service<http::Request<B>> for GreeterServer<T>
    where
        T: Greeter,
        B: Body<Error: Into<StdError> + Send + 'static> + Send + 'static,
    {
        type Response = http::Response<tonic::body::Body>;
        type Error = Infallible;
        type Future = BoxFuture<Self::Response, Self::Error>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<B>) -> Self::Future {
            match request.uri().path() {
                "/greeter.Greeter/Greet" => {
                    let method = GreetMethod(Arc::clone(&self.inner));
                    Box::pin(async move {
                        let codec = tonic_prost::ProstCodec::default();
                        Ok(tonic::server::Grpc::new(codec).unary(method, request).await)
                    })
                }
                _ => Box::pin(async { Ok(tonic::Status::unimplemented("").into_http()) }),
            }
        }
    }

    struct GreetMethod<T>(Arc<T>);

    impl<T: Greeter> tonic::server::UnaryService<super::GreetRequest> for GreetMethod<T> {
        type Response = super::GreetReply;
        type Future = BoxFuture<tonic::Response<Self::Response>, tonic::Status>;

        fn call(&mut self, request: tonic::Request<super::GreetRequest>) -> Self::Future {
            let inner = Arc::clone(&self.0);
            Box::pin(async move { inner.greet(request).await })
        }
    }

    impl<T> tonic::server::NamedService for GreeterServer<T> {
        const NAME: &'static str = "greeter.Greeter";
    }
}
