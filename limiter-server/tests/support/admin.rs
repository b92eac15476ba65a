//! A client of the admin API.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::http::{self, Response};
use super::server::{Directory, Server, wait_until};

pub(crate) const PASSWORD: &str = "correct horse battery";

/// The credentials of a caller.
#[derive(Clone, Debug)]
pub(crate) enum Credentials {
    None,
    Session(String),
    Token(String),
}

/// A caller of the admin API.
#[derive(Clone, Debug)]
pub(crate) struct AdminClient {
    address: SocketAddr,
    pub(crate) credentials: Credentials,
}

impl AdminClient {
    pub(crate) fn new(address: SocketAddr, credentials: Credentials) -> Self {
        Self { address, credentials }
    }

    /// Creates the first administrator by the link that the server printed.
    pub(crate) fn set_up(server: &Server) -> Self {
        let client = Self::new(server.admin(), Credentials::None);
        let link = setup_token(server);
        let body = json!({ "token": link, "user": "root", "password": PASSWORD });
        let answer = client.post_password("/setup", &body);
        assert_eq!(answer.status, 201, "{}", answer.body);
        client.with_session(&answer)
    }

    /// Signs a user in.
    pub(crate) fn sign_in(&self, user: &str) -> Self {
        self.sign_in_with(user, PASSWORD)
    }

    pub(crate) fn sign_in_with(&self, user: &str, password: &str) -> Self {
        let client = Self::new(self.address, Credentials::None);
        let body = json!({ "user": user, "password": password });
        let answer = client.post_password("/session", &body);
        assert_eq!(answer.status, 201, "{}", answer.body);
        client.with_session(&answer)
    }

    fn with_session(&self, answer: &Response) -> Self {
        let cookie = answer.header("set-cookie").expect("a cookie");
        let session = cookie.split(';').next().expect("a value").to_owned();
        Self::new(self.address, Credentials::Session(session))
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        self.send_text(method, path, headers, &body)
    }

    /// Sends a password. A server without an idle processor refuses it and asks for a repetition.
    fn post_password(&self, path: &str, body: &Value) -> Response {
        let mut answer = self.send("POST", path, &[], body);
        for _ in 0..10 {
            if answer.status != 503 || !answer.body.contains("try again") {
                break;
            }
            answer = self.send("POST", path, &[], body);
        }
        answer
    }

    pub(crate) fn send_text(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Response {
        let body = body.as_ref();
        let (host, length) = (self.address.to_string(), body.len().to_string());
        let mut all = vec![("host", host.as_str()), ("content-length", length.as_str())];
        if !body.is_empty() && !headers.iter().any(|(name, _)| *name == "content-type") {
            all.push(("content-type", "application/json"));
        }
        let credentials = match &self.credentials {
            Credentials::None => None,
            Credentials::Session(cookie) => Some(("cookie", cookie.clone())),
            Credentials::Token(token) => Some(("authorization", format!("Bearer {token}"))),
        };
        if let Some((name, value)) = &credentials {
            all.push((name, value));
        }
        all.extend(headers);
        let line = format!("{method} /admin/v1{path}");
        http::send(self.address, &line, &all, body).expect("an answer")
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], &Value::Null)
    }

    /// A page of the admin UI.
    pub(crate) fn page(&self, path: &str) -> Response {
        let host = self.address.to_string();
        let mut headers = vec![("host", host.as_str())];
        if let Credentials::Session(cookie) = &self.credentials {
            headers.push(("cookie", cookie));
        }
        http::get(self.address, path, &headers).expect("an answer")
    }

    /// Saves a policy; 0 creates it.
    pub(crate) fn put_policy(&self, name: &str, expected: i64, toml: &str) -> Response {
        let tag = expected.to_string();
        let condition = match expected {
            0 => ("if-none-match", "*"),
            _ => ("if-match", tag.as_str()),
        };
        let path = format!("/namespaces/default/policies/{name}");
        self.send(
            "PUT",
            &path,
            &[condition],
            &json!({ "toml": toml, "reason": "a test" }),
        )
    }

    /// Creates a user and signs it in.
    pub(crate) fn add_user(&self, name: &str, roles: &[(&str, &str)]) -> Self {
        let body = json!({ "name": name, "password": PASSWORD });
        let created = self.post_password("/users", &body);
        assert_eq!(created.status, 201, "{}", created.body);
        for (app, role) in roles {
            let path = format!("/namespaces/default/grants/user/{name}/{app}");
            let granted = self.send("PUT", &path, &[], &json!({ "role": role }));
            assert_eq!(granted.status, 204, "{}", granted.body);
        }
        self.sign_in(name)
    }
}

/// The token of the link of the first run.
pub(crate) fn setup_token(server: &Server) -> String {
    server.wait_for_log("/setup?token=");
    let log = server.log();
    let (_, rest) = log.split_once("/setup?token=").expect("a link");
    rest.lines().next().expect("a token").trim().to_owned()
}

/// A server with a new SQLite database and limits in the process.
pub(crate) fn with_sqlite(args: &[&str]) -> Server {
    let directory = Directory::new();
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    with_database(directory, &url, args)
}

/// A server with a new SQLite database, whose users a proxy with this address names by headers.
pub(crate) fn with_sign_in_proxy(address: &str) -> Server {
    with_sqlite(&[
        "--proxy-user-header",
        "X-Forwarded-User",
        "--proxy-groups-header",
        "X-Forwarded-Groups",
        "--sign-in-proxies",
        address,
    ])
}

/// A server with the admin part on a database, with these further arguments. Its routes answer.
pub(crate) fn with_database(directory: Directory, url: &str, args: &[&str]) -> Server {
    let usual = ["--database", url, "--admin", "127.0.0.1:0"];
    let server = Server::start(directory, &[&usual, args].concat());
    wait_until(
        || http::get(server.admin(), "/healthz", &[]).is_ok_and(|answer| answer.status == 200),
        || server.log(),
    );
    server
}

/// A policy of an app.
pub(crate) fn policy(name: &str, capacity: u32, app: &str) -> String {
    format!(
        "[policy.{name}]\nalgorithm = 'token_bucket'\ncapacity = {capacity}\nrate = '1/h'\napps = ['{app}']\n"
    )
}

/// A policy of all apps.
pub(crate) fn policy_of_all(name: &str, capacity: u32) -> String {
    format!("[policy.{name}]\nalgorithm = 'token_bucket'\ncapacity = {capacity}\nrate = '1/h'\n")
}
