//! TLS and client certificates, by the independent client curl.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::process::Command;

use limiter_testing::tls::Authority;
use support::access::{TOKEN, bearer, entry};
use support::server::{Directory, Server, run, wait_until};

const POLICIES: &str = "policy.search = { algorithm = 'sliding_window', limit = 100, window = '1h' }\n";
const BODY: &str = r#"{"policy":"search","key":"ann"}"#;

/// A server with TLS, whose directory has the files of some clients.
fn start() -> Server {
    let directory = Directory::new();
    let (authority, other) = (Authority::new(), Authority::new());
    directory.write("policies.toml", POLICIES);
    directory.write("ca.pem", authority.certificate());
    let identities = [
        ("server", authority.server(&["localhost"])),
        (
            "named",
            authority.client_named(&["spiffe://org/edge", "edge.internal"]),
        ),
        ("common", authority.client()),
        ("unknown", authority.client_named(&["other.internal"])),
        ("foreign", other.client_named(&["edge.internal"])),
    ];
    for (name, identity) in identities {
        directory.write(&format!("{name}.pem"), &identity.certificate);
        directory.write(&format!("{name}.key"), &identity.key);
    }
    let client = |name: &str, certificate: &str| {
        format!(
            "[[client]]\nname = '{name}'\ncertificate = '{certificate}'\nscopes = ['refund:policy=search']\n"
        )
    };
    let settings = [
        "policies = 'policies.toml'\n[tls]\ncert_file = 'server.pem'\nkey_file = 'server.key'\nclient_ca_file = 'ca.pem'\n",
        &client("edge", "spiffe://org/edge"),
        // The common name that the library of the certificates sets.
        &client("common", "rcgen self signed cert"),
        &entry("ann", TOKEN, &["check:*"]),
    ];
    directory.write("limiter-server.toml", &settings.concat());
    Server::start(directory, &[])
}

/// The status of a request by curl, and its error.
fn curl(server: &Server, path: &str, args: &[&str]) -> (String, String) {
    let url = format!("https://localhost:{}{path}", server.http().port());
    let ended = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "20",
            "--output",
            "/dev/null",
        ])
        .args(["--cacert", "ca.pem", "--write-out", "%{http_code}"])
        .args(["--header", "content-type: application/json", "--data", BODY])
        .args(args)
        .arg(url)
        .current_dir(server.directory().path())
        .output()
        .expect("curl");
    (
        String::from_utf8_lossy(&ended.stdout).into_owned(),
        String::from_utf8_lossy(&ended.stderr).into_owned(),
    )
}

#[test]
fn certificate_identifies_a_client() {
    let server = start();
    for (identity, expected) in [("named", "200"), ("common", "200"), ("unknown", "401")] {
        let files = [format!("{identity}.pem"), format!("{identity}.key")];
        let args = ["--cert", &files[..1].concat(), "--key", &files[1..].concat()];
        let (status, error) = curl(&server, "/v1/refund", &args);
        assert_eq!(status, expected, "{identity}: {error}");
        if expected == "200" {
            let (status, _) = curl(&server, "/v1/reset", &args);
            assert_eq!(status, "403", "{identity}");
        }
        // A token takes precedence.
        let token = format!("authorization: {}", bearer(TOKEN));
        let (status, _) = curl(&server, "/v1/check", &[&args[..], &["--header", &token]].concat());
        assert_eq!(status, "200", "{identity}");
    }
    let (status, _) = curl(
        &server,
        "/v1/refund",
        &["--cert", "foreign.pem", "--key", "foreign.key"],
    );
    assert_eq!(status, "000", "the handshake with a foreign authority fails");
    // A client without a certificate needs a token.
    let (status, error) = curl(&server, "/v1/check", &[]);
    assert_eq!(status, "401", "{error}");
}

#[test]
fn replaced_certificate_applies_to_new_connections() {
    let server = start();
    let files = server.directory();
    let token = format!("authorization: {}", bearer(TOKEN));
    let status = || curl(&server, "/v1/check", &["--header", &token]).0;
    assert_eq!(status(), "200");
    let authority = Authority::new();
    let identity = authority.server(&["localhost"]);
    // The certificate and the key do not fit together.
    files.write("server.pem", &identity.certificate);
    server.wait_for_log("TLS files rejected");
    assert_eq!(status(), "200");
    files.write("server.key", &identity.key);
    files.write("ca.pem", authority.certificate());
    wait_until(|| status() == "200", || server.log());
    assert!(server.log().contains("TLS files reloaded"), "{}", server.log());
}

#[test]
fn plain_text_does_not_reach_a_listener_with_tls() {
    let server = start();
    let answer = support::http::post(server.http(), "/v1/check", &[], BODY);
    assert!(answer.is_err(), "{answer:?}");
    let token = format!("authorization: {}", bearer(TOKEN));
    assert_eq!(curl(&server, "/v1/check", &["--header", &token]).0, "200");
}

#[test]
fn unusable_files_do_not_start_the_server() {
    let directory = Directory::new();
    let empty = directory.write("empty.pem", "");
    let empty = empty.to_str().unwrap();
    for (args, expected) in [
        (vec!["--tls-cert-file", empty], "both"),
        (
            vec!["--tls-cert-file", empty, "--tls-key-file", empty],
            "empty.pem",
        ),
    ] {
        let serve = [
            "serve",
            "--example",
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
        ];
        let (code, _, errors) = run(&[&serve[..], &args].concat());
        assert_eq!(code, Some(1));
        assert!(errors.contains(expected), "{errors}");
    }
}
