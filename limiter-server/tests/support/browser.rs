//! A browser without scripts: it keeps the session cookie and sends forms.

use std::net::SocketAddr;
use std::time::Duration;

use super::admin::PASSWORD;
use super::http::{self, RawResponse, Response};
use super::server::Server;

/// A browser without scripts.
#[derive(Clone, Debug)]
pub(crate) struct Browser {
    address: SocketAddr,
    /// The cookie as `name=value`.
    pub(crate) cookie: Option<String>,
}

impl Browser {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            cookie: None,
        }
    }

    /// A browser with a session of this user. The user has the password of the tests.
    pub(crate) fn signed_in(server: &Server, user: &str) -> Self {
        let mut browser = Self::new(server.admin());
        let answer = browser.post("/signin", &[("user", user), ("password", PASSWORD)]);
        assert_eq!(answer.status, 303, "{}", answer.body);
        browser
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], "")
    }

    /// Sends a form and keeps the cookie of the answer.
    pub(crate) fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Response {
        let fields = fields
            .iter()
            .map(|(name, value)| format!("{name}={}", encode(value)));
        let body = fields.collect::<Vec<_>>().join("&");
        let answer = self.send("POST", path, &[("sec-fetch-site", "same-origin")], &body);
        if let Some(cookie) = answer.header("set-cookie") {
            let pair = cookie.split(';').next().unwrap_or_default();
            self.cookie = Some(pair.to_owned()).filter(|pair| !pair.ends_with('='));
        }
        answer
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        self.with_headers(method, headers, body, |headers| {
            http::send(self.address, &format!("{method} {path}"), headers, body)
        })
        .expect("an answer")
    }

    /// Sends a request whose answer may be compressed.
    pub(crate) fn send_raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> RawResponse {
        let line = format!("{method} {path}");
        self.with_headers(method, headers, body, |headers| {
            http::send_raw(Duration::from_secs(20), self.address, &line, headers, body)
        })
        .expect("an answer")
    }

    /// Calls a function with the headers of a request.
    fn with_headers<T>(
        &self,
        method: &str,
        headers: &[(&str, &str)],
        body: &str,
        send: impl FnOnce(&[(&str, &str)]) -> T,
    ) -> T {
        let (host, length) = (self.address.to_string(), body.len().to_string());
        let mut usual = vec![("host", host.as_str()), ("content-length", length.as_str())];
        if method == "POST" {
            usual.push(("content-type", "application/x-www-form-urlencoded"));
        }
        if let Some(cookie) = &self.cookie {
            usual.push(("cookie", cookie));
        }
        usual.retain(|(name, _)| headers.iter().all(|(given, _)| given != name));
        usual.extend(headers);
        send(&usual)
    }
}

/// A value of a form.
pub(crate) fn encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let encoded = text.bytes().map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}
