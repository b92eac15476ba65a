//! Starting, reloading and ending the process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::io::Write as _;

use limiter_server::settings::Settings;
use limiter_testing::RedisServer;
use support::http;
use support::policies::SEARCH;
use support::server::{Directory, Server, command, run, wait_until};
use support::sockets;

#[test]
fn server_prints_addresses_and_replies_to_health_checks() {
    let server = Server::with_policies(SEARCH, &[]);
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.get("/readyz").body, "ready\n");
    assert_eq!(server.get("/metrics").status, 200);
    assert_eq!(server.get("/unknown").status, 404);
}

#[test]
fn namespace_without_registry_is_reported() {
    let redis = RedisServer::start();
    let args = ["--redis", &redis.url(), "--namespace", "unknown"];
    let server = Server::start(Directory::new(), &args);
    server.wait_for_log("Redis has no registry in this namespace");
    wait_until(|| server.get("/readyz").status == 200, || server.log());
    let ready = server.get("/readyz").body;
    assert!(ready.contains("without policies"), "{ready}");
}

#[test]
fn terminated_server_finishes_its_connections_and_succeeds() {
    let server = Server::with_policies(SEARCH, &[]);
    let mut open = sockets::send(server.http(), "GET /healthz HTTP/1.1\r\nhost: test\r\n");
    server.signal("TERM");
    server.wait_for_log("shutting down");
    // The rest of the request arrives during the shutdown.
    open.write_all(b"\r\n").unwrap();
    let answer = sockets::read_to_end(&mut open);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
    assert!(!log.contains("still in flight"), "{log}");
}

#[test]
fn hangup_applies_an_edit_and_rejects_an_invalid_one() {
    let server = Server::with_policies(SEARCH, &[]);
    server.directory().write(
        "policies.toml",
        "policy.search = { algorithm = 'token_bucket' }\n",
    );
    server.signal("HUP");
    server.wait_for_log("policy.search.capacity is missing");
    assert_eq!(server.get("/readyz").status, 200);
    server
        .directory()
        .write("policies.toml", &SEARCH.replace("5", "6"));
    server.signal("HUP");
    server.wait_for_log("policy file read again");
}

#[test]
fn server_without_policies_does_not_start() {
    let (code, output, errors) = run(&["serve"]);
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert!(errors.contains("no policies"), "{errors}");
}

#[test]
fn policy_file_with_errors_does_not_start_the_server() {
    let directory = Directory::new();
    let path = directory.write("policies.toml", "[policy.search]\nalgorithm = 'leaky'\n");
    let (code, _, errors) = run(&["serve", "--policies", path.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("policies.toml:2:13: policy.search.algorithm"),
        "{errors}"
    );
}

#[test]
fn listener_for_other_machines_needs_permission() {
    let (code, _, errors) = run(&["serve", "--example", "--grpc", "0.0.0.0:0"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("[[token]]"), "{errors}");
}

#[test]
fn variable_of_a_permission_precedes_the_file() {
    let directory = Directory::new();
    directory.write("policies.toml", SEARCH);
    let settings = "policies = 'policies.toml'\nhttp = '0.0.0.0:0'\nallow_unauthenticated = true\n";
    directory.write("limiter-server.toml", settings);
    let start = |variable: &[(&str, &str)], args: &[&str]| {
        let mut command = command();
        command
            .current_dir(directory.path())
            .envs(variable.iter().copied());
        // Without the permission, the server ends at once; with it, the second listener fails.
        let args = [&["serve", "--grpc", "unix:/absent/socket"], args].concat();
        let output = command.args(args).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let refuses = |variable: &[(&str, &str)], args: &[&str]| {
        let errors = start(variable, args);
        assert_eq!(
            errors.contains("[[token]]"),
            !errors.contains("/absent/socket"),
            "{errors}"
        );
        errors.contains("[[token]]")
    };
    let denied = [("LIMITER_ALLOW_UNAUTHENTICATED", "false")];
    assert!(!refuses(&[], &[]));
    assert!(refuses(&denied, &[]));
    assert!(refuses(&[], &["--allow-unauthenticated=false"]));
    assert!(!refuses(&denied, &["--allow-unauthenticated"]));
}

#[test]
fn commands_of_the_example_use_its_listener() {
    let directory = Directory::new();
    let socket = directory.path().join("http");
    let socket = socket.to_str().unwrap().to_owned();
    let server = Server::start(directory, &["--example", "--http", &format!("unix:{socket}")]);
    server.wait_for_log(&format!("curl --unix-socket '{socket}' http://localhost/readyz"));
    let server = Server::start(Directory::new(), &["--example"]);
    server.wait_for_log(&format!("curl http://{}/readyz", server.http()));
}

#[test]
fn settings_file_is_read_and_unknown_settings_are_rejected() {
    let directory = Directory::new();
    directory.write("policies.toml", SEARCH);
    directory.write(
        "limiter-server.toml",
        "policies = 'policies.toml'\nnode = 'edge-7'\n",
    );
    let server = Server::start(directory, &[]);
    assert_eq!(server.get("/readyz").status, 200);

    let directory = Directory::new();
    let config = directory.write("limiter-server.toml", "polices = 'p.toml'\n");
    let (code, _, errors) = run(&["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("unknown field `polices`"), "{errors}");
}

/// These values would be accepted and never match a request.
#[test]
fn values_that_match_no_request_are_rejected() {
    let directory = Directory::new();
    directory.write("empty", "\n");
    let empty = directory.path().join("empty");
    let empty = empty.to_str().unwrap();
    let peers = "sign_in_proxies = ['127.0.0.1']\ndatabase = 'sqlite:a.db'\n";
    for (settings, expected) in [
        ("allowed_hosts = ['a b']".to_owned(), "allowed_hosts is `a b`"),
        (
            "allowed_hosts = ['a.example', '']".to_owned(),
            "allowed_hosts is ``",
        ),
        (
            "allowed_hosts = [' a.example']".to_owned(),
            "allowed_hosts is ` a.example`",
        ),
        (
            "allowed_hosts = ['a.example:8080']".to_owned(),
            "without scheme and port",
        ),
        (
            "allowed_hosts = ['https://a.example']".to_owned(),
            "without scheme and port",
        ),
        (
            "allowed_hosts = ['*.example']".to_owned(),
            "allowed_hosts is `*.example`",
        ),
        (
            format!("{peers}proxy_user_header = 'x user'"),
            "proxy_user_header is `x user`",
        ),
        (
            format!("{peers}proxy_user_header = 'x-user'\nproxy_groups_header = 'x-groups:'"),
            "proxy_groups_header is `x-groups:`",
        ),
        (format!("key_secret_file = '{empty}'"), "the file is empty"),
        (format!("redis_file = '{empty}'"), "the file is empty"),
    ] {
        let file = directory.write("settings.toml", &format!("policies = 'p.toml'\n{settings}\n"));
        let error = Settings::of_file(&file).expect_err(&settings).to_string();
        assert!(error.contains(expected), "{settings}: {error}");
    }
    let hosts =
        "policies = 'p.toml'\nallowed_hosts = ['limits.example.com', 'under_score', '10.0.0.1', '[::1]']\n";
    assert_eq!(
        Settings::of_file(&directory.write("settings.toml", hosts))
            .unwrap()
            .allowed_hosts
            .len(),
        4
    );
}

#[test]
fn server_is_ready_after_first_policies_from_redis() {
    let redis = RedisServer::start();
    redis.pause();
    let server = Server::start(Directory::new(), &["--redis", &redis.url()]);
    assert_eq!(server.get("/readyz").status, 503);
    redis.resume();
    wait_until(|| server.get("/readyz").status == 200, || server.log());
}

#[test]
fn password_on_the_command_line_causes_a_warning() {
    let redis = RedisServer::start();
    let url = redis.url().replace("redis://", "redis://default:secret@");
    let server = Server::with_policies(SEARCH, &["--redis", &url]);
    server.wait_for_log("contains a password");
    assert!(!server.log().contains("secret"), "{}", server.log());
    let url = "postgres://user:secret@127.0.0.1:1/none";
    let server = Server::with_policies(SEARCH, &["--database", url]);
    server.wait_for_log("LIMITER_DATABASE, or a file such as redis_file or database_file");
    assert!(!server.log().contains("secret"), "{}", server.log());
}

/// Returns whether a decision of a server is stored in this Redis.
fn is_stored_in(redis: &RedisServer, server: &Server) -> bool {
    let body = r#"{ "policy": "search", "key": "ann" }"#;
    http::post(server.http(), "/v1/check", &[], body).unwrap();
    redis.command(&["DBSIZE"]).integer() > 0
}

#[test]
fn command_line_precedes_environment_and_environment_precedes_file() {
    let [on_command_line, in_environment, in_file] = [(); 3].map(|()| RedisServer::start());
    let url = in_environment
        .url()
        .replace("redis://", "redis://default:secret@");
    let variable = ("LIMITER_REDIS", url.as_str());
    let directory = || {
        let directory = Directory::new();
        directory.write("policies.toml", SEARCH);
        directory.write("redis-url", &in_file.url());
        let settings = "policies = 'policies.toml'\nredis_file = 'redis-url'\n";
        directory.write("limiter-server.toml", settings);
        directory
    };
    let server = Server::start(directory(), &[]);
    wait_until(|| is_stored_in(&in_file, &server), || server.log());
    let server = Server::start_with_variable(directory(), variable, &[]);
    wait_until(|| is_stored_in(&in_environment, &server), || server.log());
    assert!(!server.log().contains("contains a password"), "{}", server.log());
    let args = ["--redis", &on_command_line.url()];
    let server = Server::start_with_variable(directory(), variable, &args);
    wait_until(|| is_stored_in(&on_command_line, &server), || server.log());
}

/// Deployments pass on variables that are not set as empty ones.
#[test]
fn empty_variable_of_the_environment_is_absent() {
    for name in [
        "LIMITER_ALLOWED_HOSTS",
        "LIMITER_REDIS",
        "LIMITER_ADMIN",
        "LIMITER_STANDALONE",
        "LIMITER_DATABASE_FILE",
    ] {
        let server = Server::start_with_variable(Directory::new(), (name, ""), &["--example"]);
        let answer = http::get(server.http(), "/healthz", &[]).unwrap();
        assert_eq!(answer.status, 200, "{name}: {}", server.log());
    }
    let mut command = command();
    command.args(["token", "list"]).env("LIMITER_DATABASE", "");
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("no database: set --database"), "{errors}");
}

#[test]
fn check_prints_all_errors_with_their_places() {
    let directory = Directory::new();
    let valid = directory.write("valid.toml", SEARCH);
    let (code, output, errors) = run(&["check", valid.to_str().unwrap()]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(output.contains("policies: 1"), "{output}");

    let text = "[policy.a]\nalgorithm = 'token_bucket'\ncapacity = 0\nrate = 'x'\nsize = 1\n";
    let invalid = directory.write("invalid.toml", text);
    let (code, _, errors) = run(&["check", invalid.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    for expected in ["3:12:", "4:8:", "5:1:"] {
        assert!(errors.contains(expected), "{expected} in {errors}");
    }
    let (code, _, errors) = run(&["check", "/nonexistent.toml"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("cannot read"), "{errors}");
}

#[test]
fn completions_are_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, output, _) = run(&["completions", shell]);
        assert_eq!(code, Some(0), "{shell}");
        assert!(output.contains("limiter-server"), "{shell}");
    }
}

#[test]
fn http_client_of_the_tests_reads_headers() {
    let server = Server::with_policies(SEARCH, &[]);
    let answer = http::get(server.http(), "/healthz", &[("x-test", "1")]).unwrap();
    assert_eq!(answer.header("content-length"), Some("6"));
}
