//! The pages while the database does not answer: the policies, rules and suspensions in force.
//!
//! They are read from the registry and not by the routes of the API, which show the saved state. No
//! request waits for the database, and forms are refused. Users without a recent session see a
//! static page with the command that suspends policies. Tests:
//! `tests/control_plane/outage_pages.rs`.

use askama::Template;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use limiter_core::registry::{PolicyRegistry, SuspensionScope};
use percent_encoding::percent_decode_str;

use crate::admin::api::problem::SUSPEND_COMMAND;
use crate::admin::pages::assets::{self, AssetLinks};
use crate::admin::pages::caller::peer_of;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::overlays::{consequence, scope_text};
use crate::admin::pages::time::PageTime;
use crate::admin::pages::{Pages, links, render};
use crate::admin::permissions::{Actor, AdminAction, Object, Permission, may};
use crate::admin::sentence::sentence;
use crate::policy_text::{PolicyText, rules_to_toml};
use crate::publish::timestamp;
use crate::store::now_micros;

/// A policy in force.
#[derive(Debug)]
struct PolicyInForce {
    name: String,
    href: String,
    sentence: String,
    enforcement: String,
    toml: String,
}

/// An active suspension or block.
#[derive(Debug)]
struct OverlayInForce {
    object: String,
    consequence: &'static str,
    until: Option<PageTime>,
}

#[derive(Template)]
#[template(path = "outage.html")]
struct OutageTemplate {
    assets: &'static AssetLinks,
    environment: String,
    environments: Vec<(String, String)>,
    user: String,
    suspend_command: &'static str,
    /// `None` if Redis does not answer either.
    in_force: Option<InForce>,
}

/// The registry in force, as far as the user may read it.
#[derive(Debug)]
struct InForce {
    /// True on the page of a single policy.
    is_single: bool,
    list_href: String,
    policies: Vec<PolicyInForce>,
    overlays: Vec<OverlayInForce>,
    rules: String,
}

/// Answers requests itself while the database does not answer.
pub(super) async fn answer(State(pages): State<Pages>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let (is_safe, path) = (parts.method.is_safe(), parts.uri.path().to_owned());
    let peer = peer_of(&parts);
    let mut outage_parts = parts.clone();
    outage_parts.extensions.clear();
    if !pages.admin.is_database_down() {
        let response = next.run(Request::from_parts(parts, body)).await;
        let begins = response.status() == StatusCode::SERVICE_UNAVAILABLE && pages.admin.is_database_down();
        // The answer to a form states whether its change may have been saved.
        if !begins || !is_safe {
            return response;
        }
    }
    let Some(actor) = pages.admin.remembered(&outage_parts, peer) else {
        return PageFailure::no_recent_session().into_response();
    };
    match is_safe {
        true => show(&pages, &actor, &path).await,
        false => PageFailure::read_only().into_response(),
    }
}

/// Returns the page of an environment or of a policy.
async fn show(pages: &Pages, actor: &Actor, path: &str) -> Response {
    let segments: Vec<String> = path
        .split('/')
        .skip(1)
        .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
        .collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let names = pages.admin.namespaces().filter(|of| actor.has_namespace(of));
    let names: Vec<&str> = names.collect();
    let (environment, policy) = match segments.as_slice() {
        ["e", environment, "policies", policy, ..] => (Some(*environment), Some(*policy)),
        ["e", environment, ..] => (Some(*environment), None),
        _ => (names.first().copied(), None),
    };
    let environment = environment.filter(|of| names.contains(of));
    let publisher = environment.and_then(|of| pages.admin.publisher(of));
    let (Some(environment), Some(publisher)) = (environment, publisher) else {
        return PageFailure::not_found().into_response();
    };
    let in_force = match publisher.registry_in_force().await {
        Err(error) => {
            tracing::debug!(%error, "cannot read the registry in force");
            None
        }
        Ok(registry) => {
            let in_force = InForce::new(&registry, actor, environment, policy);
            if policy.is_some() && in_force.policies.is_empty() {
                return PageFailure::not_found().into_response();
            }
            Some(in_force)
        }
    };
    let others = names
        .iter()
        .map(|name| ((*name).to_owned(), links::page(name, &["apps"])));
    render(&OutageTemplate {
        assets: assets::links(),
        environment: environment.to_owned(),
        environments: others.collect(),
        user: actor.name.clone(),
        suspend_command: SUSPEND_COMMAND,
        in_force,
    })
}

impl InForce {
    fn new(registry: &PolicyRegistry, actor: &Actor, environment: &str, only: Option<&str>) -> Self {
        let now = timestamp(now_micros());
        let is_readable = |apps: Option<&[String]>| {
            let object = Object::Policy {
                namespace: environment,
                apps,
            };
            may(actor, AdminAction::Read, object) == Permission::Allowed
        };
        let texts = registry.names().into_iter();
        let texts = texts
            .filter(|name| only.is_none_or(|only| only == name))
            .filter_map(|name| PolicyText::of(registry, &name))
            .filter(|text| !text.is_ended_at(now) && is_readable(text.apps().as_deref()));
        let policies = texts.map(|text| PolicyInForce {
            name: text.name().to_owned(),
            href: links::page(environment, &["policies", text.name()]),
            sentence: sentence(&text),
            enforcement: text.entry().policy().enforcement().to_string(),
            toml: text.to_toml(),
        });
        let apps_of = |scope: &SuspensionScope| match scope {
            SuspensionScope::App(app) => Some(vec![app.clone()]),
            SuspensionScope::Policy(name) => PolicyText::of(registry, name).and_then(|text| text.apps()),
            _ => None,
        };
        let suspensions = registry.suspensions().into_iter();
        let suspensions = suspensions
            .filter(|of| of.is_active_at(now) && is_readable(apps_of(of.scope()).as_deref()))
            .map(|of| OverlayInForce {
                object: format!("Suspended: {}", scope_text(&of.scope().to_string())),
                consequence: consequence(&of.mode().to_string()),
                until: i64::try_from(of.end().as_micros()).ok().map(PageTime),
            });
        let blocks = registry.blocks().into_iter();
        let blocks = blocks
            .filter(|of| of.is_active_at(now))
            .filter(|of| {
                is_readable(
                    of.app()
                        .map(|app| [app.to_owned()])
                        .as_ref()
                        .map(<[String; 1]>::as_slice),
                )
            })
            .map(|of| OverlayInForce {
                object: format!("Blocked: {}", of.target()),
                consequence: "All calls of these keys are denied.",
                until: of
                    .end()
                    .and_then(|end| i64::try_from(end.as_micros()).ok())
                    .map(PageTime),
            });
        Self {
            is_single: only.is_some(),
            list_href: links::page(environment, &["apps"]),
            policies: policies.collect(),
            overlays: suspensions.chain(blocks).collect(),
            rules: rules_to_toml(&registry.rules()).unwrap_or_default(),
        }
    }
}
