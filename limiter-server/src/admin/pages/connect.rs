//! The ways in which programs send the calls of an app.

use askama::Template;
use axum::extract::Path;
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use crate::admin::pages::app::{AppHead, AppTab};
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::policy_list::all_policies;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::{ALL_APPS, AdminAction};

/// The addresses of the gateway, from the API.
#[derive(Debug, Default, Deserialize)]
struct AddressesView {
    http: Option<String>,
    grpc: Option<String>,
    tls: bool,
    node: String,
    /// True if this node sees the calls of clients.
    sees_calls: bool,
    seen: Option<SeenView>,
}

/// The last call of an app, from the API.
#[derive(Debug, Deserialize)]
struct SeenView {
    policy: String,
    at: PageTime,
    from: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TestForm {
    policy: String,
}

/// The result of test calls, from the API.
#[derive(Debug, Deserialize)]
struct TestResultView {
    allowed: u8,
    denied: u8,
    would_deny: u8,
}

/// A text to copy.
#[derive(Debug)]
struct Snippet {
    title: &'static str,
    hint: &'static str,
    text: String,
}

#[derive(Template)]
#[template(path = "connect.html")]
struct ConnectTemplate {
    layout: Layout,
    head: AppHead,
    /// True if the snippets contain the addresses of this server.
    is_addressed: bool,
    sees_calls: bool,
    node: String,
    seen: Option<SeenView>,
    /// The policies to which the user may send test calls.
    policies: Vec<String>,
    test_href: String,
    /// The path of the form of a new token, and its scope; `None` if the user may not create one.
    new_token: Option<(String, String)>,
    snippets: Vec<Snippet>,
}

impl AddressesView {
    /// Returns whether both addresses are known.
    fn is_known(&self) -> bool {
        self.http.is_some() && self.grpc.is_some()
    }

    fn snippets(&self, environment: &str, app: &str, policy: &str) -> Vec<Snippet> {
        let scheme = if self.tls { "https" } else { "http" };
        let http = self.http.as_deref().unwrap_or("SERVER:8080");
        let grpc = self.grpc.as_deref().unwrap_or("SERVER:8081");
        let (host, port) = grpc.rsplit_once(':').unwrap_or((grpc, "8081"));
        let quoted = serde_json::Value::from(policy);
        // A text in single quotes of a shell.
        let body = serde_json::json!({ "policy": policy, "key": "ann" }).to_string();
        let body = body.replace('\'', "'\\''");
        vec![
            Snippet {
                title: "HTTP",
                hint: "200 allows the call, 429 denies it. Retry-After states the wait.",
                text: format!(
                    "curl -i -H 'authorization: Bearer TOKEN' -H 'content-type: application/json' \\\n    \
                     {scheme}://{http}/v1/check -d '{body}'"
                ),
            },
            Snippet {
                title: "nginx",
                hint: "The names of the limit are in the query. The server reads the client's address \
                       from this proxy only if --trusted-proxies contains the address of nginx.",
                text: format!(
                    "# limiter-server needs --trusted-proxies with the address of nginx\n\
                     location / {{\n    auth_request /_limit;\n    error_page 403 =429 @limited;\n    \
                     proxy_pass http://backend;\n}}\nlocation = /_limit {{\n    internal;\n    \
                     proxy_pass {scheme}://{http}/forward-auth?policy={}&key=client_ip&deny_status=403;\n    \
                     proxy_pass_request_body off;\n    proxy_set_header Content-Length \"\";\n    \
                     proxy_set_header Authorization \"Bearer TOKEN\";\n    \
                     proxy_set_header X-Forwarded-For $remote_addr;\n}}\n\
                     location @limited {{ return 429; }}",
                    links::encode(policy)
                ),
            },
            Snippet {
                title: "Envoy",
                hint: "A rule of the domain, or the value of generic_key, selects the policy.",
                text: format!(
                    "http_filters:\n- name: envoy.filters.http.ratelimit\n  typed_config:\n    \
                     \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit\n    \
                     domain: {}\n    failure_mode_deny: false\n    rate_limit_service:\n      \
                     transport_api_version: V3\n      grpc_service:\n        \
                     envoy_grpc: {{ cluster_name: limiter }}\n        initial_metadata:\n        - \
                     {{ key: authorization, value: \"Bearer TOKEN\" }}\n\
                     # on the route\nrate_limits:\n- actions:\n  - generic_key: {{ descriptor_value: {quoted} }}\n  \
                     - remote_address: {{}}\n\
                     # the cluster\n- name: limiter\n  type: STRICT_DNS\n  http2_protocol_options: {{}}\n  \
                     load_assignment:\n    cluster_name: limiter\n    endpoints:\n    - lb_endpoints:\n      \
                     - endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {port} }} }} }}",
                    serde_json::Value::from(app)
                ),
            },
            Snippet {
                title: "Rust",
                hint: "With limiter-core, the program decides itself and shares its limits by Redis.",
                text: format!(
                    "let limits = Limiter::redis(\"redis://…\").namespace({}).app({}).build()?;\n\
                     limits.redis_registry()?.follow().synced().await?;\n\
                     limits.named({quoted}).check(\"ann\").await?.require()?;",
                    serde_json::Value::from(environment),
                    serde_json::Value::from(app)
                ),
            },
        ]
    }
}

pub(super) async fn show(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    let head = AppHead::new(&caller, &environment, &app, AppTab::Connect)?;
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, &*head.name).await?;
    let mut path = links::api(&environment, &["connect"]);
    if app != ALL_APPS {
        path.push_str(&format!("?app={}", links::encode(&app)));
    }
    let addresses: AddressesView = caller.api.get(&path).await?;
    let mut policies = all_policies(&caller, &environment).await?;
    // Policies of the app come before those of all apps.
    policies.sort_by_key(|policy| policy.apps.is_none());
    policies.retain(|of| of.apps.as_ref().is_none_or(|apps| apps.contains(&app)));
    let first = policies
        .first()
        .map_or_else(|| "POLICY".to_owned(), |of| of.name.clone());
    policies.retain(|of| caller.may_edit(&environment, AdminAction::EditNumbers, of.apps.as_deref()));
    let tokens = links::page(&environment, &["tokens"]);
    let scope = match app.as_str() {
        ALL_APPS => "check:*".to_owned(),
        app => format!("check:app={app}"),
    };
    Ok(render(&ConnectTemplate {
        layout,
        head,
        is_addressed: addresses.is_known(),
        snippets: addresses.snippets(&environment, &app, &first),
        sees_calls: addresses.sees_calls,
        node: addresses.node,
        seen: addresses.seen,
        policies: policies.into_iter().map(|of| of.name).collect(),
        test_href: links::page(&environment, &["apps", &app, "connect", "test"]),
        new_token: caller.is_admin_of(&environment).then_some((tokens, scope)),
    }))
}

/// Sends test calls, and shows the plot that they appear in.
pub(super) async fn test(
    caller: PageCaller,
    Path((environment, _)): Path<(String, String)>,
    PageForm(form): PageForm<TestForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["policies", &form.policy, "test-calls"]);
    let sent = caller.api.send(Method::POST, &path, &[], &Value::Null).await?;
    let result: TestResultView = sent.read()?;
    let page = links::page(&environment, &["policies", &form.policy]);
    let TestResultView {
        allowed,
        denied,
        would_deny,
    } = result;
    Ok(see(&format!(
        "{page}?hours=1&allowed={allowed}&denied={denied}&would_deny={would_deny}"
    )))
}
