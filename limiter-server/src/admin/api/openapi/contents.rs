//! Bodies, parameters and headers of the routes, from the types that the handlers read.
//!
//! The match statements map a route of `ROUTES` to the type of its handler, and `CONDITIONAL` lists
//! the routes with `If-Match`. The schemas come from the types, so a changed field changes the
//! document. Tests: `bodies_and_parameters_are_documented` and `numbers_in_queries_are_documented`
//! in `tests/api_lists.rs`.

use serde_json::{Value, json};
use utoipa::openapi::path::ParameterIn;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::{Components, RefOr};
use utoipa::{IntoParams, ToSchema};

use crate::admin::api::activity::{ActivityQuery, DenialQuery};
use crate::admin::api::connect::ConnectQuery;
use crate::admin::api::import::ImportBody;
use crate::admin::api::keys::{KeyQuery, ResetBody};
use crate::admin::api::overlays::{AtQuery, BlockBody, BlockQuery, EndBody, SuspensionBody};
use crate::admin::api::paging::ListPageQuery;
use crate::admin::api::people::{AppBody, GrantBody, NewUserBody, PasswordBody, UserBody};
use crate::admin::api::policies::{ListQuery, ReasonBody, RestoreBody, SaveBody};
use crate::admin::api::preview::PreviewBody;
use crate::admin::api::proposals::ProposalQuery;
use crate::admin::api::quotas::{QuotaBody, RemovedQuotaBody};
use crate::admin::api::records::{AuditQuery, NamespaceBody, UserAuditQuery};
use crate::admin::api::revisions::RevisionListQuery;
use crate::admin::api::routes::Route;
use crate::admin::api::rules::{RulesBody, TestedDescriptor};
use crate::admin::api::sessions::{SetupBody, SigninBody};
use crate::admin::api::tokens::{RotateBody, TokenBody};
use crate::admin::api::trials::{DecisionBody, TrialBody};
use crate::admin::api::usage::RangeQuery;

/// The routes whose changes name the revision that the caller read.
const CONDITIONAL: [(&str, &str); 9] = [
    ("PUT", "/policies/{name}"),
    ("DELETE", "/policies/{name}"),
    ("POST", "/policies/{name}/restore"),
    ("POST", "/policies/{name}/quotas"),
    ("DELETE", "/policies/{name}/quotas"),
    ("PUT", "/policies/{name}/trial"),
    ("DELETE", "/policies/{name}/trial"),
    ("POST", "/policies/{name}/trial/adopt"),
    ("PUT", "/rules"),
];

/// The schemas to which bodies refer.
#[derive(Default)]
pub(super) struct SchemaList(Vec<(String, RefOr<Schema>)>);

impl SchemaList {
    fn add<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        T::schemas(&mut self.0);
        self.0.push((name.clone(), T::schema()));
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    /// Returns the schemas as the member `schemas` of the components.
    pub(super) fn into_json(self) -> Value {
        let mut components = Components::new();
        components.schemas.extend(self.0);
        json!(components.schemas)
    }
}

/// Returns the path of a route of a namespace below it, or the path of another route.
fn below_namespace(route: &Route) -> &'static str {
    let rest = route.path.strip_prefix("/namespaces/{namespace}");
    rest.filter(|rest| !rest.is_empty()).unwrap_or(route.path)
}

/// Returns the schema of the body of a request; `None` for a route without a body.
pub(super) fn body(route: &Route, schemas: &mut SchemaList) -> Option<Value> {
    Some(match (route.method, below_namespace(route)) {
        ("POST", "/setup") => schemas.add::<SetupBody>(),
        ("POST", "/session") => schemas.add::<SigninBody>(),
        ("PUT", "/namespaces/{namespace}") => schemas.add::<NamespaceBody>(),
        ("PUT", "/policies/{name}") => schemas.add::<SaveBody>(),
        ("POST", "/policies/{name}/restore") => schemas.add::<RestoreBody>(),
        ("POST", "/policies/{name}/preview") => schemas.add::<PreviewBody>(),
        ("POST", "/policies/{name}/keys/reset") => schemas.add::<ResetBody>(),
        ("POST", "/policies/{name}/quotas") => schemas.add::<QuotaBody>(),
        ("DELETE", "/policies/{name}/quotas") => schemas.add::<RemovedQuotaBody>(),
        ("PUT", "/policies/{name}/trial") => schemas.add::<TrialBody>(),
        ("POST", "/policies/{name}/trial/adopt") => schemas.add::<DecisionBody>(),
        ("POST", "/import") => schemas.add::<ImportBody>(),
        ("POST", "/rules/match") => schemas.add::<TestedDescriptor>(),
        ("POST", "/rules/preview") | ("PUT", "/rules") => schemas.add::<RulesBody>(),
        ("POST", "/suspensions") => schemas.add::<SuspensionBody>(),
        ("POST", "/blocks") => schemas.add::<BlockBody>(),
        ("PUT", "/suspensions/{id}" | "/blocks/{id}") => schemas.add::<EndBody>(),
        ("PUT", "/apps/{app}") => schemas.add::<AppBody>(),
        ("PUT", "/grants/{kind}/{subject}/{app}") => schemas.add::<GrantBody>(),
        ("POST", "/tokens") => schemas.add::<TokenBody>(),
        ("POST", "/tokens/{id}/rotate") => schemas.add::<RotateBody>(),
        ("POST", "/proposals/{id}/approve" | "/proposals/{id}/reject") => schemas.add::<ReasonBody>(),
        ("POST", "/users") => schemas.add::<NewUserBody>(),
        ("PUT", "/users/{name}") => schemas.add::<UserBody>(),
        ("PUT", "/users/{name}/password") => schemas.add::<PasswordBody>(),
        _ => return None,
    })
}

/// Returns the parameters of the query and the conditional headers of a route.
pub(super) fn parameters(route: &Route) -> Vec<Value> {
    fn query<T: IntoParams>() -> Vec<Value> {
        let parameters = T::into_params(|| Some(ParameterIn::Query));
        parameters.iter().map(|parameter| json!(parameter)).collect()
    }
    let path = below_namespace(route);
    let mut parameters = match (route.method, path) {
        ("GET", "/policies") => query::<ListQuery>(),
        ("GET", "/policies/{name}/history" | "/rules/history") => query::<RevisionListQuery>(),
        ("GET", "/audit") if path == route.path => query::<UserAuditQuery>(),
        ("GET", "/audit") => query::<AuditQuery>(),
        ("GET", "/policies/{name}/usage" | "/usage") => query::<RangeQuery>(),
        ("GET", "/keys") => query::<KeyQuery>(),
        ("GET", "/keys/activity") => query::<ActivityQuery>(),
        ("GET", "/denials") => query::<DenialQuery>(),
        ("GET", "/connect") => query::<ConnectQuery>(),
        ("GET", "/proposals") => query::<ProposalQuery>(),
        ("GET", "/suspensions") => [query::<AtQuery>(), query::<ListPageQuery>()].concat(),
        ("GET", "/blocks") => [query::<BlockQuery>(), query::<ListPageQuery>()].concat(),
        ("GET", "/users" | "/apps" | "/grants" | "/tokens" | "/subscribers") => query::<ListPageQuery>(),
        _ => Vec::new(),
    };
    let mut header = |name: &str, description: &str| {
        parameters.push(json!({
            "name": name, "in": "header", "required": false,
            "description": description, "schema": { "type": "string" },
        }));
    };
    if route.method == "GET" {
        header(
            "If-None-Match",
            "The ETag of an earlier answer; an unchanged answer has the status 304.",
        );
    }
    if CONDITIONAL.contains(&(route.method, path)) {
        header("If-Match", "The ETag of the version that the author read.");
        header("If-None-Match", "`*` for a new object.");
    }
    parameters
}
