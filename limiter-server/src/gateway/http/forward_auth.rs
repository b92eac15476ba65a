//! `GET /forward-auth`: decisions for nginx `auth_request`, Caddy `forward_auth` and Traefik.
//!
//! The proxy's configuration names the policy and the parts of the key in the query, so the client
//! of the proxy cannot choose them. `X-Forwarded-*` headers are read from configured peers only,
//! because any other peer can write them itself. Tests: `tests/forward_auth.rs` and
//! `tests/proxies.rs`.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use limiter_core::{Amount, Decision, Key, LimitRequest, Policy, Rejection};
use limiter_tower::RateLimitHeaders;
use limiter_tower::key::{Extraction, KeyExtractor};

use crate::access::Action;
use crate::gateway::RecordedDecision;
use crate::gateway::http::caller::Caller;
use crate::gateway::http::guard::AdmittedCall;
use crate::gateway::http::openapi::{ProblemDocument, ProblemResponses};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::resolved_limits::require_kind;
use crate::host_name;
use crate::key_text::joined;

/// The largest number of parts of a key.
const MAX_PARTS: usize = 16;

/// The parameters of the query.
#[derive(Debug, PartialEq, Eq)]
struct ForwardAuthQuery {
    policy: String,
    parts: Vec<KeyPart>,
    cost: Amount,
    deny_status: StatusCode,
}

/// A part of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyPart {
    /// The address of the client.
    ClientIp,
    /// `X-Forwarded-Method`
    Method,
    /// The name in `X-Forwarded-Host`
    Host,
    /// The path of `X-Forwarded-Uri`
    Path,
    /// A header of the request.
    Header(String),
    /// One text for all requests.
    Text(String),
}

/// `GET /forward-auth`
#[utoipa::path(
    get,
    path = "/forward-auth",
    params(
        ("policy" = String, Query, description = "the policy"),
        ("key" = Option<Vec<String>>, Query,
            description = "parts of the key: client_ip, method, host, path, header:NAME or text:VALUE"),
        ("cost" = Option<f64>, Query, description = "the cost; 1 by default"),
        ("deny_status" = Option<u16>, Query, description = "the status of a limited request; 429 by default"),
    ),
    responses(
        (status = 200, description = "allowed, with rate limit headers"),
        (status = 429, description = "limited; or the status of deny_status", body = ProblemDocument,
            content_type = "application/problem+json"),
        ProblemResponses,
    ),
)]
pub(super) async fn forward_auth(call: AdmittedCall) -> Result<Response, Problem> {
    let AdmittedCall { caller, parts, .. } = call;
    let (caller, request) = (&caller, &Request::from_parts(parts, ()));
    let query = ForwardAuthQuery::parse(request.uri().query().unwrap_or_default())?;
    caller.require(Action::Check, &query.policy)?;
    let gateway = &caller.gateway;
    let key = key(caller, &query.parts, request)?;
    let shown = shown_key(caller, &query.parts, request);
    let rejected =
        |rejection: &Rejection| Problem::of_rejection(gateway, rejection).with_deny_status(query.deny_status);
    let policy = gateway.limiter().policy(&query.policy, &key);
    let policy: Policy = policy.map_err(|rejection| rejected(&rejection))?;
    require_kind(&policy, Action::Check)?;
    let limit = LimitRequest::new(&policy, &key).cost(query.cost);
    let checked = gateway.limiter().check_all([limit]).await;
    let denied_key = shown.clone();
    if let Ok(decision) = &checked {
        // Without a shown key, the call is recorded without its result.
        let decided = RecordedDecision {
            peer: caller.peer,
            is_allowed: shown.is_none() || decision.is_allowed(),
            origin: decision.origin(),
            outcome: shown.as_ref().and_then(|_| decision.outcome_at(0)),
        };
        gateway.record_call(&query.policy, decided, || (shown.unwrap_or_default(), None));
    }
    let allowed = match checked.and_then(Decision::require) {
        Ok(allowed) => allowed,
        Err(rejection) => {
            let mut problem = rejected(&rejection);
            if matches!(rejection, Rejection::NeverFits { .. })
                && let Ok(peeked) = gateway.limiter().peek(&policy, &key).await
            {
                problem = problem.with_numbers(&peeked, |_| true);
            }
            return Err(match denied_key {
                Some(key) => problem.with_key(gateway, &key),
                None => problem,
            });
        }
    };
    let mut response = StatusCode::OK.into_response();
    // HTTP/2 would send an empty body without its length.
    response.headers_mut().insert(header::CONTENT_LENGTH, 0.into());
    RateLimitHeaders::default().write(&allowed.into_decision(), response.headers_mut());
    Ok(response)
}

impl ForwardAuthQuery {
    fn parse(query: &str) -> Result<Self, Problem> {
        let invalid = |name: &str, value: &str, expected: &str| {
            Problem::bad_request(format!("`{name}` is `{value:.80}`, expected {expected}").into())
        };
        let (mut policy, mut parts) = (None, Vec::new());
        let (mut cost, mut deny_status) = (None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = decode(value).ok_or_else(|| invalid(name, value, "percent-encoded UTF-8"))?;
            match name {
                "policy" if policy.is_none() => policy = Some(value),
                "key" if parts.len() < MAX_PARTS => parts
                    .push(KeyPart::parse(&value).ok_or_else(|| invalid(name, &value, KeyPart::EXPECTED))?),
                "cost" if cost.is_none() => {
                    let parsed = Amount::try_from(value.as_str());
                    cost = Some(parsed.map_err(|_| invalid(name, &value, "a number such as 1 or 0.5"))?);
                }
                "deny_status" if deny_status.is_none() => {
                    let parsed = value
                        .parse()
                        .ok()
                        .and_then(|code| StatusCode::from_u16(code).ok());
                    let parsed = parsed
                        .filter(StatusCode::is_client_error)
                        .ok_or_else(|| invalid(name, &value, "a status from 400 to 499"))?;
                    deny_status = Some(parsed);
                }
                _ => {
                    return Err(invalid(
                        "query",
                        parameter,
                        "one policy, up to 16 times key, and at most one cost and deny_status",
                    ));
                }
            }
        }
        if parts.is_empty() {
            parts.push(KeyPart::ClientIp);
        }
        Ok(Self {
            policy: policy.ok_or_else(|| Problem::bad_request("`policy` is missing in the query".into()))?,
            parts,
            cost: cost.unwrap_or(Amount::ONE),
            deny_status: deny_status.unwrap_or(StatusCode::TOO_MANY_REQUESTS),
        })
    }
}

impl KeyPart {
    const EXPECTED: &'static str = "client_ip, method, host, path, header:NAME or text:VALUE";

    fn parse(text: &str) -> Option<Self> {
        Some(match text.split_once(':') {
            None => match text {
                "client_ip" => Self::ClientIp,
                "method" => Self::Method,
                "host" => Self::Host,
                "path" => Self::Path,
                _ => return None,
            },
            Some(("header", name)) if !name.is_empty() => Self::Header(name.to_ascii_lowercase()),
            Some(("text", value)) => Self::Text(value.to_owned()),
            Some(_) => return None,
        })
    }
}

/// Returns the key of the request, with each part escaped.
fn key(caller: &Caller, parts: &[KeyPart], request: &Request<()>) -> Result<Key<'static>, Problem> {
    let mut key = Key::global().into_owned();
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            key = key.text(":");
        }
        key = match part {
            KeyPart::ClientIp => {
                forwarded_lines(caller, request, "x-forwarded-for")?;
                match caller.gateway.proxies().client_ip().extract(request) {
                    Extraction::Key(address) => key.key(&address),
                    _ => {
                        return Err(Problem::bad_request(
                            "x-forwarded-for names no client, expected addresses".into(),
                        ));
                    }
                }
            }
            KeyPart::Method => key.part(forwarded(caller, request, "x-forwarded-method")?),
            KeyPart::Host => key.part(host_of(&forwarded(caller, request, "x-forwarded-host")?)),
            KeyPart::Path => key.part(path_of(&forwarded(caller, request, "x-forwarded-uri")?)),
            KeyPart::Header(name) => key.part(text_of_header(request.headers(), name)?),
            KeyPart::Text(text) => key.part(text),
        };
    }
    Ok(key.into_owned())
}

/// Returns the key as text for the admin UI; `None` if no text denotes it.
fn shown_key(caller: &Caller, parts: &[KeyPart], request: &Request<()>) -> Option<String> {
    let of_header = |name: &str| text_of_header(request.headers(), name).ok();
    let texts = parts.iter().map(|part| match part {
        KeyPart::ClientIp => shown_client(caller, request),
        KeyPart::Method => of_header("x-forwarded-method"),
        KeyPart::Host => of_header("x-forwarded-host").map(|host| host_of(&host)),
        KeyPart::Path => of_header("x-forwarded-uri").map(|uri| path_of(&uri).to_owned()),
        KeyPart::Header(name) => of_header(name),
        KeyPart::Text(text) => Some(text.clone()),
    });
    let texts: Option<Vec<String>> = texts.collect();
    texts.map(joined)
}

/// Returns the address of the client as text, if it denotes the key of the client.
fn shown_client(caller: &Caller, request: &Request<()>) -> Option<String> {
    let proxies = caller.gateway.proxies();
    let text = proxies.client_text(request.headers())?;
    match proxies.client_ip().extract(request) {
        Extraction::Key(address) => {
            (Key::global().part(&text) == Key::global().key(&address)).then_some(text)
        }
        _ => None,
    }
}

/// Returns the only value of a header that configured peers write. A proxy forwards the bytes of
/// its client, which need not be ASCII.
fn forwarded(caller: &Caller, request: &Request<()>, name: &str) -> Result<String, Problem> {
    forwarded_lines(caller, request, name)?;
    text_of_header(request.headers(), name)
}

/// Returns the name of a host in lower case, without its port: proxies serve one host under all
/// spellings, and its client chooses among them.
fn host_of(host: &str) -> String {
    let name = host_name::without_port(host);
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Returns the path of a URI.
fn path_of(uri: &str) -> &str {
    uri.split(['?', '#']).next().unwrap_or_default()
}

/// Requires that a configured peer wrote a header.
fn forwarded_lines(caller: &Caller, request: &Request<()>, name: &str) -> Result<(), Problem> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    if !peer.is_some_and(|ConnectInfo(peer)| caller.gateway.proxies().trusts(peer.ip())) {
        let detail = match peer.map(|ConnectInfo(peer)| peer.ip()) {
            Some(peer) => format!("{name} from {peer} is not read: add the address to trusted_proxies"),
            None => format!(
                "{name} from a unix socket is not read, expected a TCP connection from an address of \
                 trusted_proxies"
            ),
        };
        return Err(Problem::bad_request(detail.into()));
    }
    match request.headers().contains_key(name) {
        true => Ok(()),
        false => Err(Problem::bad_request(format!("expected the header {name}").into())),
    }
}

/// Returns the only value of a header as text, which is empty without the header. Clients whose
/// values are no ASCII have keys of their own, and a repeated header does not lead to the key of
/// those without it.
fn text_of_header(headers: &HeaderMap, name: &str) -> Result<String, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(String::new()),
        (Some(value), None) => Ok(match str::from_utf8(value.as_bytes()) {
            Ok(text) => text.to_owned(),
            // Latin-1, the encoding of older clients: each value has a text of its own.
            Err(_) => value.as_bytes().iter().copied().map(char::from).collect(),
        }),
        (Some(_), Some(_)) => Err(Problem::bad_request(
            format!("the header {name} is repeated, expected it once").into(),
        )),
    }
}

/// Decodes a value of a query.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(16 * high + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_names_the_policy_and_the_parts_of_the_key() {
        let parsed = ForwardAuthQuery::parse(
            "policy=edge&key=path&key=header:X-User&key=text:a%2Bb+c&cost=2&deny_status=403",
        );
        let expected = ForwardAuthQuery {
            policy: "edge".to_owned(),
            parts: vec![
                KeyPart::Path,
                KeyPart::Header("x-user".to_owned()),
                KeyPart::Text("a+b c".to_owned()),
            ],
            cost: Amount::from(2_u64),
            deny_status: StatusCode::FORBIDDEN,
        };
        assert_eq!(parsed.unwrap(), expected);
        let short = ForwardAuthQuery::parse("policy=edge").unwrap();
        assert_eq!(
            (short.parts, short.deny_status.as_u16()),
            (vec![KeyPart::ClientIp], 429)
        );
    }

    #[test]
    fn each_value_of_a_header_has_a_text() {
        let text = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-user", value.try_into().unwrap());
            text_of_header(&headers, "x-user").unwrap()
        };
        assert_eq!(text("é".as_bytes()), "é");
        assert_ne!(text(b"ren\xe9"), text(b"ren\xe8"));
    }

    #[test]
    fn malformed_queries_are_rejected() {
        for query in [
            "",
            "key=path",
            "policy=a&policy=b",
            "policy=a&key=cookie",
            "policy=a&key=header:",
            "policy=a&key=text:%zz",
            "policy=a&key=text:%ff",
            "policy=a&cost=-1",
            "policy=a&deny_status=200",
            "policy=a&deny_status=x",
            "policy=a&surplus=1",
            &format!("policy=a{}", "&key=path".repeat(17)),
        ] {
            assert!(ForwardAuthQuery::parse(query).is_err(), "{query}");
        }
    }
}
