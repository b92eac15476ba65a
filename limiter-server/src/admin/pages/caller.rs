//! The user of a page.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, OriginalUri, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::admin::auth::AuthError;
use crate::admin::pages::Pages;
use crate::admin::pages::api_client::PageApi;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links::sign_in_href;
use crate::admin::permissions::{Actor, AdminAction, Object, Permission, may};

/// The identified user of a page, and the API on its behalf.
#[derive(Debug)]
pub(super) struct PageCaller {
    pub(super) actor: Actor,
    pub(super) api: PageApi,
    pub(super) pages: Pages,
}

/// Returns the address of the client.
pub(super) fn peer_of(parts: &Parts) -> SocketAddr {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    peer.map_or(SocketAddr::from(([0, 0, 0, 0], 0)), |info| info.0)
}

impl FromRequestParts<Pages> for PageCaller {
    type Rejection = PageFailure;

    async fn from_request_parts(parts: &mut Parts, pages: &Pages) -> Result<Self, Self::Rejection> {
        let peer = peer_of(parts);
        let actor = match pages.admin.identify(parts, peer).await {
            Ok(actor) => actor,
            Err(AuthError::Unauthenticated) => {
                // The router removes the prefix of nested routes from the URI.
                let original = parts.extensions.get::<OriginalUri>();
                let uri = original.map_or(&parts.uri, |original| &original.0);
                // A redirect would discard the values of a form.
                return Err(match parts.method.is_safe() {
                    true => PageFailure::see(sign_in_href(
                        uri.path_and_query().map_or("/", |next| next.as_str()),
                    )),
                    false => PageFailure::signed_out(),
                });
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            api: PageApi::new(pages.api.clone(), Some(actor.clone()), peer, &parts.headers),
            actor,
            pages: pages.clone(),
        })
    }
}

impl PageCaller {
    /// Fails unless the environment is configured and the user may read it.
    pub(super) fn require_environment(&self, environment: &str) -> Result<(), PageFailure> {
        let is_configured = self.pages.admin.publisher(environment).is_some();
        match is_configured && self.actor.has_namespace(environment) {
            true => Ok(()),
            false => Err(PageFailure::not_found()),
        }
    }

    /// Returns whether the user may act on policies of these apps; `None` denotes all apps.
    pub(super) fn may_edit(&self, environment: &str, action: AdminAction, apps: Option<&[String]>) -> bool {
        let object = Object::Policy {
            namespace: environment,
            apps,
        };
        matches!(may(&self.actor, action, object), Permission::Allowed)
    }

    /// Returns whether the user administrates the environment.
    pub(super) fn is_admin_of(&self, environment: &str) -> bool {
        let object = Object::Namespace(environment);
        may(&self.actor, AdminAction::ManageNamespace, object) == Permission::Allowed
    }
}

/// A form of a page.
#[derive(Debug)]
pub(super) struct PageForm<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Pages> for PageForm<T> {
    type Rejection = PageFailure;

    async fn from_request(request: Request, pages: &Pages) -> Result<Self, Self::Rejection> {
        let form = axum::Form::<T>::from_request(request, pages).await;
        form.map(|form| Self(form.0))
            .map_err(|error| PageFailure::new(error.status(), error.body_text()))
    }
}

/// Returns a text of a form; `None` if it is empty.
pub(super) fn optional(text: Option<String>) -> Option<String> {
    text.map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
}
