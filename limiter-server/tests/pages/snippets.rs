//! The texts of the page Connect work: curl, nginx and Envoy run them, and the compiler reads that
//! for Rust.

use std::process::Command;

use limiter_testing::tls::Authority;

use crate::support::admin::{AdminClient, policy, with_database, with_sqlite};
use crate::support::browser::Browser;
use crate::support::envoy::Envoy;
use crate::support::proxy::{ConfigFile, Proxy};
use crate::support::server::{Directory, Server, wait_until};

use super::attacks::unescape;

/// The text for Rust, with its placeholders.
#[expect(dead_code, reason = "the compiler reads the text")]
mod rust {
    include!("../../src/admin/pages/snippets/rust.rs");
}

const NGINX: [ConfigFile; 1] = [(
    "nginx.conf",
    "worker_processes 1;\npid nginx.pid;\nerror_log stderr warn;\nevents {}\nhttp {\naccess_log off;\n\
     upstream backend { server 127.0.0.1:9000; }\nserver {\nlisten 127.0.0.1:10000;\nSNIPPET\n}\n}\n",
)];

const ENVOY: &str = r#"
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 9901 } } }
static_resources:
  listeners:
  - name: edge
    address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          use_remote_address: true
FILTERS
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: service
              domains: ["*"]
              routes:
              - match: { prefix: / }
                route:
                  cluster: service
ROUTE
  clusters:
  - name: service
    type: STATIC
    load_assignment:
      cluster_name: service
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 9000 } } }
CLUSTER
"#;

const RULES: &str =
    "[[rule]]\ndomain = 'edge'\nmatch = ['route=search', 'remote_address']\npolicy = 'search'\n";

/// The text under a title.
fn snippet(page: &str, title: &str) -> String {
    let (_, rest) = page
        .split_once(&format!("<h2>{title}</h2>"))
        .unwrap_or_else(|| panic!("{title}: {page}"));
    let (_, rest) = rest.split_once("<code>").unwrap();
    unescape(rest.split("</code>").next().unwrap())
}

/// A server with the policy `search` of two calls, and the page after "Create a token" of its app.
fn with_token() -> (Server, AdminClient, String) {
    let server = with_sqlite(&["--trusted-proxies", "127.0.0.1", "--decision-deadline", "5s"]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 2, "shop"));
    let page = create_token(&server);
    (server, root, page)
}

fn create_token(server: &Server) -> String {
    let mut browser = Browser::signed_in(server, "root");
    let fields = [
        ("name", "shop"),
        ("scopes", "check:app=shop"),
        ("days", "90"),
        ("app", "shop"),
    ];
    let created = browser.post("/e/default/tokens", &fields);
    assert_eq!(created.status, 200, "{}", created.body);
    created.body
}

/// Requires that two calls are allowed and the third is denied, after the policy and the token are
/// in force.
fn require_two_calls(mut status: impl FnMut() -> u16, log: impl Fn() -> String) {
    wait_until(|| status() == 200, log);
    assert_eq!([status(), status()], [200, 429]);
}

#[test]
fn text_for_curl_sends_a_call_with_the_new_token() {
    let (server, _root, page) = with_token();
    let curl = snippet(&page, "HTTP");
    assert!(
        curl.contains(&server.http().to_string()) && curl.contains("lim_"),
        "{curl}"
    );
    let status = || {
        let output = Command::new("sh")
            .args(["-c", &curl])
            .env("NO_PROXY", "*")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        output
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0)
    };
    require_two_calls(status, || server.log());
}

#[test]
fn text_for_nginx_limits_requests() {
    let (server, _root, page) = with_token();
    let text = snippet(&page, "nginx");
    let args = ["-p", "DIRECTORY", "-c", "nginx.conf", "-g", "daemon off;"];
    let proxy = Proxy::start("nginx", &args, &NGINX, server.http(), &[("SNIPPET", &text)]);
    require_two_calls(|| proxy.get("/").status, || server.log());
}

#[test]
fn text_for_envoy_uses_the_listener_of_the_server() {
    let directory = Directory::new();
    let identity = Authority::new().server(&["localhost"]);
    directory.write("server.pem", &identity.certificate);
    directory.write("server.key", &identity.key);
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let tls = ["--tls-cert-file", "server.pem", "--tls-key-file", "server.key"];
    let server = with_database(directory, &url, &[&tls[..], &["--grpc", "[::1]:0"]].concat());
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 2, "shop"));
    let text = snippet(&create_token(&server), "Envoy");
    assert!(
        text.contains("UpstreamTlsContext") && text.contains("alpn_protocols: [h2]"),
        "{text}"
    );
    assert!(
        text.contains("socket_address: { address: \"::1\", port_value: "),
        "{text}"
    );
    let (server, _root, page) = with_token();
    let text = snippet(&page, "Envoy");
    assert!(!text.contains("UpstreamTlsContext"), "{}: {text}", server.log());
}

#[test]
fn text_for_envoy_limits_requests_by_the_rule_of_the_policy() {
    for rules in ["", RULES] {
        let (server, root, page) = with_token();
        let page = match rules {
            "" => page,
            rules => {
                let body = serde_json::json!({ "toml": rules });
                let path = "/namespaces/default/rules";
                let saved = root.send("PUT", path, &[("if-none-match", "*")], &body);
                assert_eq!(saved.status, 200, "{}", saved.body);
                create_token(&server)
            }
        };
        let text = snippet(&page, "Envoy");
        let domain = if rules.is_empty() { "shop" } else { "edge" };
        assert!(text.contains(&format!("domain: \"{domain}\"")), "{text}");
        // A loaded machine must not decide the outcome of a test.
        let text = text.replace(
            "failure_mode_deny: false",
            "failure_mode_deny: true\n    timeout: 5s",
        );
        let (filters, rest) = text.split_once("# on the route\n").unwrap();
        let (route, cluster) = rest.split_once("# the cluster\n").unwrap();
        let indented = |text: &str, width: usize| {
            let lines = text.lines().map(|line| format!("{:width$}{line}", ""));
            lines.collect::<Vec<_>>().join("\n")
        };
        let configuration = ENVOY
            .replace("FILTERS", &indented(filters, 10))
            .replace("ROUTE", &indented(route, 18))
            .replace("CLUSTER", &indented(cluster, 2));
        let envoy = Envoy::start_with(&configuration, server.grpc(), &[]);
        require_two_calls(|| envoy.get("/", &[]).status, || server.log());
    }
}

#[test]
fn connect_page_states_addresses_domain_and_seconds_of_the_last_call() {
    let (server, root, _) = with_token();
    let page = root.page("/e/default/apps/shop/connect").body;
    for expected in [
        server.http().to_string(),
        server.grpc().port().to_string(),
        "Bearer TOKEN".to_owned(),
        "named(&#34;search&#34;)".to_owned(),
    ] {
        assert!(page.contains(&expected), "{expected}: {page}");
    }
    let sent = root.send(
        "POST",
        "/namespaces/default/policies/search/test-calls",
        &[],
        &serde_json::Value::Null,
    );
    assert_eq!(sent.status, 200, "{}", sent.body);
    let page = root.page("/e/default/apps/shop/connect").body;
    let (_, seen) = page
        .split_once("Seen</span> at <time")
        .unwrap_or_else(|| panic!("{page}"));
    let (_, time) = seen.split_once(" data-seconds>").unwrap();
    let time = time.split('<').next().unwrap();
    assert_eq!(time.len(), "2026-11-23 12:01:07 UTC".len(), "{time}");
}

#[test]
fn test_calls_name_a_policy_without_checks() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let text = "[policy.export]\nalgorithm = 'concurrency'\nmax = 2\n";
    assert_eq!(root.put_policy("export", 0, text).status, 200);
    let path = "/namespaces/default/policies/export/test-calls";
    let sent = root.send("POST", path, &[], &serde_json::Value::Null);
    assert_eq!(sent.status, 422, "{}", sent.body);
    assert!(sent.body.contains("concurrent requests"), "{}", sent.body);
}
