//! The commands `user` and `token` on the database of a running server: effects, exit codes and
//! messages.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};
use support::admin::{AdminClient, Credentials, PASSWORD, policy_of_all, with_sqlite};
use support::calls::post_as;
use support::databases::execute;
use support::server::{Directory, Server, command, run, wait_until};

type Ended = (Option<i32>, String, String);

fn database_of(server: &Server) -> String {
    format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    )
}

/// Runs the command with this standard input.
fn run_with_input(args: &[&str], input: &[u8]) -> Ended {
    let mut child = command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The entries of the audit that a command has written to standard error.
fn audit(errors: &str) -> Vec<Value> {
    let lines = errors.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sign_in_status(server: &Server, user: &str, password: &str) -> u16 {
    let body = json!({ "user": user, "password": password });
    let anonymous = AdminClient::new(server.admin(), Credentials::None);
    anonymous.send("POST", "/session", &[], &body).status
}

/// Fails unless a command of `dave` wrote one audit line, with this action and object.
fn require_entry(errors: &str, action: &str, object: &str) {
    let entries = audit(errors);
    let [entry] = &entries[..] else {
        unreachable!("{errors}")
    };
    assert_eq!(
        (&entry["action"], &entry["object"], &entry["actor"]),
        (&json!(action), &json!(object), &json!("command:dave"))
    );
}

#[test]
fn new_password_replaces_the_old_one_and_ends_sessions() {
    const NEW: &str = "battery staple horse";
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let ann = root.add_user("ann", &[]);
    let database = database_of(&server);
    let args = [
        "user",
        "password",
        "ann",
        "--author",
        "dave",
        "--database",
        &database,
    ];
    let (code, output, errors) = run_with_input(&args, format!("{NEW}\r\n").as_bytes());
    assert_eq!((code, output.as_str()), (Some(0), ""), "{errors}");
    require_entry(&errors, "user.password", "ann");
    assert!(!errors.contains(NEW), "{errors}");
    assert_eq!(ann.get("/session").status, 401, "the session has ended");
    assert_eq!(root.get("/session").status, 200, "other sessions stay");
    assert_eq!(sign_in_status(&server, "ann", PASSWORD), 401);
    let again = root.sign_in_with("ann", NEW);
    assert_eq!(again.get("/session").status, 200);
}

/// Each mistake leaves the password and the sessions as they are.
#[test]
fn unsuitable_password_and_unknown_user_are_refused() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let database = database_of(&server);
    let missing = format!("{database}.missing");
    let long = "x".repeat(1_025);
    let of = |database: &str, user: &str, input: &[u8]| {
        run_with_input(&["user", "password", user, "--database", database], input)
    };
    for ((code, output, errors), expected) in [
        (of(&database, "root", b"short\n"), "at least 12 characters"),
        (of(&database, "root", b""), "at least 12 characters"),
        (of(&database, "root", long.as_bytes()), "at most 1024 bytes"),
        (
            of(&database, "root", b"not UTF-8: \xff\xff\xff\xff"),
            "cannot read the password from standard input",
        ),
        (
            of(&database, "bob", b"battery staple horse\n"),
            "there is no user `bob`; `user list` lists all",
        ),
        // Before the password is read.
        (
            of(&database, "bob", b"short\n"),
            "there is no user `bob`; `user list` lists all",
        ),
        (
            of(&missing, "root", b"battery staple horse\n"),
            "there is no database of limiter-server",
        ),
        (
            of("sqlite:/no/such/file.db", "root", b"battery staple horse\n"),
            "there is no directory /no/such for the database",
        ),
        (
            run_with_input(&["user", "password", "root"], b"battery staple horse\n"),
            "no database: set --database",
        ),
        (
            run_with_input(&["user", "remove", "bob", "--database", &database], b""),
            "there is no user `bob`",
        ),
        (
            run_with_input(&["user", "remove", "root", "--database", &database], b""),
            "the last administrator cannot be removed",
        ),
        (
            run_with_input(
                &["user", "add", "root", "--database", &database],
                b"battery staple horse\n",
            ),
            "the user `root` exists; `user password` sets another password",
        ),
        (
            run_with_input(&["user", "add", "root", "--database", &database], b"short\n"),
            "the user `root` exists; `user password` sets another password",
        ),
        (
            run_with_input(
                &["user", "add", "a:b", "--database", &database],
                b"battery staple horse\n",
            ),
            "expected a name of 1 to 255 bytes without `:`",
        ),
    ] {
        assert_eq!((code, output.as_str()), (Some(1), ""), "{expected}: {errors}");
        assert!(errors.contains(expected), "{expected}: {errors}");
        assert_eq!(audit(&errors), [] as [Value; 0], "{errors}");
    }
    let (code, _, errors) = run(&["user", "password", "--database", &database]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("<NAME>"), "{errors}");
    assert_eq!(root.get("/session").status, 200);
    assert_eq!(sign_in_status(&server, "root", PASSWORD), 201);
    let file = missing.strip_prefix("sqlite:").unwrap();
    assert!(!std::path::Path::new(file).exists(), "no database is created");
}

/// A token that the restoration of a database has suspended is accepted at the gateway again.
#[test]
fn confirmed_token_is_valid_again() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 100));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let database = database_of(&server);
    let token = |args: &[&str]| run(&[&["token"], args, &["--database", &database]].concat());
    let (code, secret, errors) = token(&["issue", "--name", "edge", "--scope", "peek:*"]);
    assert_eq!(code, Some(0), "{errors}");
    let (_, other, _) = token(&["issue", "--name", "other", "--scope", "peek:*"]);
    let status = |secret: &str| {
        let body = json!({ "policy": "search", "key": "ann" });
        post_as(&server, Some(secret.trim_end()), "/v1/peek", &body).status
    };
    wait_until(
        || (status(&secret), status(&other)) == (200, 200),
        || server.log(),
    );
    // The server does so for all tokens of a restored database.
    execute(&database, &["UPDATE token SET suspended = 1".to_owned()]);
    wait_until(
        || (status(&secret), status(&other)) == (401, 401),
        || server.log(),
    );

    let state = |name: &str| {
        let listed = token(&["list"]).1;
        let mut lines = listed.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let found = lines.find(|fields| fields[1] == name).unwrap();
        (found[0].to_owned(), found[2].to_owned())
    };
    let (id, suspended) = state("edge");
    assert_eq!(suspended, "suspended");
    for args in [
        &["confirm", "unknown"][..],
        &["confirm", &id, "--namespace", "staging"],
    ] {
        let (code, output, errors) = token(args);
        assert_eq!((code, output.as_str()), (Some(1), ""), "{errors}");
        assert!(
            errors.contains("no token of this id in the expected state"),
            "{errors}"
        );
        assert!(errors.contains("`token list` lists all"), "{errors}");
    }
    assert_eq!(state("edge").1, "suspended");
    let (code, output, errors) = token(&["confirm", &id, "--author", "dave"]);
    assert_eq!((code, output.as_str()), (Some(0), ""), "{errors}");
    require_entry(&errors, "token.confirm", &id);
    assert_eq!(
        (state("edge").1.as_str(), state("other").1.as_str()),
        ("valid", "suspended")
    );
    wait_until(|| status(&secret) == 200, || server.log());
    assert_eq!(status(&other), 401, "other tokens stay suspended");

    let (code, _, errors) = token(&["confirm", &id]);
    assert_eq!(code, Some(1), "a valid token is not suspended");
    assert!(errors.contains("in the expected state"), "{errors}");
    let (code, _, errors) = token(&["confirm"]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("<ID>"), "{errors}");
    let missing = Directory::new();
    let missing = format!("sqlite:{}", missing.path().join("none.db").display());
    let (code, _, errors) = run(&["token", "confirm", &id, "--database", &missing]);
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("there is no database of limiter-server"),
        "{errors}"
    );
}
