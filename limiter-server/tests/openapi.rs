//! `/openapi.json` describes exactly the routes of the server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::collections::BTreeSet;

use limiter_core::Limiter;
use limiter_server::gateway::Gateway;
use limiter_server::gateway::readiness::Readiness;
use limiter_server::settings::Settings;
use metrics_exporter_prometheus::PrometheusBuilder;
use support::policies::SEARCH;
use support::server::{Directory, Server};
use support::sockets;

/// The methods that an operation of a path may have.
const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

fn status(server: &Server, method: &str, path: &str) -> u16 {
    let request = format!(
        "{} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\
         connection: close\r\n\r\n",
        method.to_uppercase()
    );
    let answer = sockets::read_to_end(&mut sockets::send(server.http(), request));
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The router of a gateway.
fn router() -> axum::Router {
    let directory = Directory::new();
    let settings = directory.write("limiter-server.toml", "policies = 'policies.toml'\n");
    let settings = Settings::of_file(&settings).unwrap();
    let gateway = Gateway::new(Limiter::in_process().build(), &settings, Readiness::new(true));
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    limiter_server::gateway::http::router(gateway, metrics)
}

/// The paths of a router, which its debug text contains as quoted texts.
fn paths_of(router: &axum::Router) -> BTreeSet<String> {
    let text = format!("{router:?}");
    let quoted = text.split('"').skip(1).step_by(2);
    // The fallback has the path `/`.
    let paths = quoted.filter(|text| text.starts_with('/') && text.len() > 1 && !text.contains("__private"));
    paths.map(str::to_owned).collect()
}

#[test]
fn document_has_the_paths_and_methods_of_the_router() {
    let server = Server::with_policies(SEARCH, &[]);
    let answer = server.get("/openapi.json");
    assert_eq!(answer.status, 200);
    let document = answer.json();
    assert_eq!(document["info"]["title"], "limiter-server");
    let paths = document["paths"].as_object().unwrap();
    let documented: BTreeSet<&str> = paths.keys().map(String::as_str).collect();
    let router = router();
    let routed = paths_of(&router);
    let routed: BTreeSet<&str> = routed.iter().map(String::as_str).collect();
    assert_eq!(documented, routed);
    assert!(
        routed.contains("/v1/check") && routed.contains("/readyz"),
        "{routed:?}"
    );
    // A route without a description would be found.
    let more = router.route("/undocumented", axum::routing::get(|| async {}));
    let added: Vec<String> = paths_of(&more)
        .into_iter()
        .filter(|of| !routed.contains(&**of))
        .collect();
    assert_eq!(added, ["/undocumented"]);
    for (path, operations) in paths {
        for method in METHODS {
            let status = status(&server, method, path);
            let is_documented = operations.get(method).is_some();
            assert_eq!(
                is_documented,
                ![404, 405].contains(&status),
                "{method} {path}: {status}"
            );
        }
    }
    assert_eq!(status(&server, "get", "/v2/check"), 404);
}

#[test]
fn references_of_the_document_exist() {
    let server = Server::with_policies(SEARCH, &[]);
    let answer = server.get("/openapi.json");
    let (document, body) = (answer.json(), answer.body);
    let references: Vec<&str> = body
        .split(r##""$ref":"#"##)
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(references.len() > 10, "{body}");
    for pointer in references {
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}
