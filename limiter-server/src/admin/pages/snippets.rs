//! The texts that connect an app to the gateway, with the addresses of this server, the domain and
//! entries of a rule, and a token.
//!
//! `tests/pages/snippets.rs` runs the texts for curl, nginx and Envoy, and compiles that for Rust.

use limiter_core::registry::{EntryPattern, Rule};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links;
use crate::policy_text::parse_rules;

/// The text for Rust, with placeholders in capitals.
const RUST: &str = include_str!("snippets/rust.rs");
/// The placeholder of a token.
const TOKEN: &str = "TOKEN";

/// A text to copy.
#[derive(Debug)]
pub(super) struct Snippet {
    pub(super) title: &'static str,
    pub(super) hint: String,
    pub(super) text: String,
}

/// The addresses of the gateway, from the API.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GatewayUrls {
    http: Option<String>,
    grpc: Option<String>,
    tls: bool,
}

/// The object that the texts connect.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnippetClient<'a> {
    pub(super) environment: &'a str,
    pub(super) app: &'a str,
    pub(super) policy: &'a str,
    /// A token that was created a moment ago; `None` for a placeholder.
    pub(super) token: Option<&'a str>,
}

#[derive(Debug, Deserialize)]
struct RulesText {
    toml: String,
}

impl GatewayUrls {
    /// Returns whether both addresses are known.
    pub(super) fn is_known(&self) -> bool {
        self.http.is_some() && self.grpc.is_some()
    }

    /// Returns the texts of a connection.
    pub(super) async fn snippets(
        &self,
        caller: &PageCaller,
        of: SnippetClient<'_>,
    ) -> Result<Vec<Snippet>, PageFailure> {
        let rules: RulesText = caller.api.get(&links::api(of.environment, &["rules"])).await?;
        let rules = parse_rules(&rules.toml).unwrap_or_default();
        Ok(vec![
            self.http(of),
            self.nginx(of),
            self.envoy(of, &rules),
            rust(of),
        ])
    }

    /// Returns the URL of the HTTP listener.
    fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.http.as_deref().unwrap_or("SERVER:8080"))
    }

    fn http(&self, of: SnippetClient<'_>) -> Snippet {
        // A text in single quotes of a shell.
        let body = json!({ "policy": of.policy, "key": "ann" }).to_string();
        let body = body.replace('\'', "'\\''");
        Snippet {
            title: "HTTP",
            hint: "200 allows the call, 429 denies it. Retry-After states the wait.".to_owned(),
            text: format!(
                "curl -i -H 'authorization: Bearer {}' -H 'content-type: application/json' \\\n    \
                 {}/v1/check -d '{body}'",
                of.token.unwrap_or(TOKEN),
                self.url(),
            ),
        }
    }

    fn nginx(&self, of: SnippetClient<'_>) -> Snippet {
        let hint = "The names of the limit are in the query. The server reads the client's address from this \
                    proxy only if --trusted-proxies contains the address of nginx.";
        Snippet {
            title: "nginx",
            hint: hint.to_owned(),
            text: format!(
                "# limiter-server needs --trusted-proxies with the address of nginx\n\
                 location / {{\n    auth_request /_limit;\n    \
                 auth_request_set $limit_retry_after $upstream_http_retry_after;\n    \
                 error_page 403 = @limited;\n    \
                 proxy_pass http://backend;\n}}\nlocation = /_limit {{\n    internal;\n    \
                 proxy_pass {}/forward-auth?policy={}&key=client_ip&deny_status=403;\n    \
                 proxy_pass_request_body off;\n    proxy_pass_request_headers off;\n    \
                 proxy_set_header Content-Length \"\";\n    \
                 proxy_set_header Authorization \"Bearer {}\";\n    \
                 proxy_set_header X-Forwarded-For $remote_addr;\n}}\n\
                 location @limited {{\n    \
                 # A blocked or suspended key cannot retry.\n    \
                 if ($limit_retry_after = \"\") {{ return 403; }}\n    \
                 add_header Retry-After $limit_retry_after always;\n    return 429;\n}}",
                self.url(),
                links::encode(of.policy),
                of.token.unwrap_or(TOKEN),
            ),
        }
    }

    fn envoy(&self, of: SnippetClient<'_>, rules: &[Rule]) -> Snippet {
        let grpc = self.grpc.as_deref().unwrap_or("SERVER:8081");
        let (host, port) = grpc.rsplit_once(':').unwrap_or((grpc, "8081"));
        // Envoy has no brackets around an address of IPv6.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let tls = match self.tls {
            true => {
                "\n  transport_socket:\n    name: envoy.transport_sockets.tls\n    typed_config:\n      \
                 # Add sni and a validation_context: without it, Envoy verifies no certificate.\n      \
                 \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n      \
                 common_tls_context: { alpn_protocols: [h2] }"
            }
            false => "",
        };
        let rule = rules.iter().find(|rule| rule.policy() == of.policy);
        let domain = rule.and_then(Rule::domain).unwrap_or(of.app);
        let actions = match rule {
            Some(rule) => rule.patterns().iter().map(action).collect(),
            None => vec![
                format!("generic_key: {{ descriptor_value: {} }}", json!(of.policy)),
                "remote_address: {}".to_owned(),
            ],
        };
        let hint = match (rule, rules.is_empty()) {
            (Some(_), _) => {
                "The domain and the entries are those of the first rule of the policy.".to_owned()
            }
            (None, true) => "There are no rules, so the value of generic_key names the policy.".to_owned(),
            (None, false) => format!(
                "No rule leads to the policy {} yet: create one for the domain {domain} with these entries.",
                of.policy
            ),
        };
        Snippet {
            title: "Envoy",
            hint,
            text: format!(
                "http_filters:\n- name: envoy.filters.http.ratelimit\n  typed_config:\n    \
                 \"@type\": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit\n    \
                 domain: {}\n    failure_mode_deny: false\n    rate_limit_service:\n      \
                 transport_api_version: V3\n      grpc_service:\n        \
                 envoy_grpc: {{ cluster_name: limiter }}\n        initial_metadata:\n        - \
                 {{ key: authorization, value: \"Bearer {}\" }}\n\
                 # on the route\nrate_limits:\n- actions:\n  - {}\n\
                 # the cluster\n- name: limiter\n  type: STRICT_DNS\n  http2_protocol_options: {{}}\n  \
                 load_assignment:\n    cluster_name: limiter\n    endpoints:\n    - lb_endpoints:\n      \
                 - endpoint: {{ address: {{ socket_address: {{ address: {}, port_value: {port} }} }} }}{tls}",
                json!(domain),
                of.token.unwrap_or(TOKEN),
                actions.join("\n  - "),
                json!(host),
            ),
        }
    }
}

/// Returns the action of Envoy that sends an entry of this pattern.
fn action(pattern: &EntryPattern) -> String {
    let key = json!(pattern.key());
    match (pattern.key(), pattern.exact_value()) {
        ("generic_key", Some(value)) => format!("generic_key: {{ descriptor_value: {} }}", json!(value)),
        (_, Some(value)) => {
            format!(
                "generic_key: {{ descriptor_key: {key}, descriptor_value: {} }}",
                json!(value)
            )
        }
        ("remote_address", None) => "remote_address: {}".to_owned(),
        (name, None) => {
            let header = Value::from(format!("x-{}", name.replace('_', "-").to_lowercase()));
            format!("request_headers: {{ header_name: {header}, descriptor_key: {key} }}")
        }
    }
}

fn rust(of: SnippetClient<'_>) -> Snippet {
    let text = [
        ("\"ENVIRONMENT\"", of.environment),
        ("\"APP\"", of.app),
        ("\"POLICY\"", of.policy),
    ]
    .iter()
    .fold(RUST.to_owned(), |text, (placeholder, value)| {
        text.replace(placeholder, &json!(value).to_string())
    });
    Snippet {
        title: "Rust",
        hint: "With limiter-core and its feature registry, the program decides itself. It reads the policies from the \
               Redis of this server, and shares its limits by it: enter its URL."
            .to_owned(),
        text: text.trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_rule_are_actions() {
        let rules =
            "[[rule]]\nmatch = ['route=login', 'generic_key=a', 'remote_address', 'api_key']\npolicy = 'p'\n";
        let rules = parse_rules(rules).unwrap();
        let actions: Vec<String> = rules[0].patterns().iter().map(action).collect();
        assert_eq!(
            actions,
            [
                r#"generic_key: { descriptor_key: "route", descriptor_value: "login" }"#,
                r#"generic_key: { descriptor_value: "a" }"#,
                "remote_address: {}",
                r#"request_headers: { header_name: "x-api-key", descriptor_key: "api_key" }"#,
            ]
        );
    }
}
