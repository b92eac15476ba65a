//! TLS and client certificates, by the independent client curl.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::Limiter;
use limiter_server::gateway::readiness::Readiness;
use limiter_server::gateway::{Gateway, resp};
use limiter_server::listener::Listener;
use limiter_server::settings::Settings;
use limiter_testing::tls::Authority;
use prost::Message as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use support::access::{TOKEN, bearer, entry};
use support::descriptors::{DescriptorExt as _, descriptor_of, request};
use support::resp::encode;
use support::rls::frame;
use support::server::{Directory, Server, run, wait_until};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::sync::watch;

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
            "[[client]]\nname = '{name}'\ncertificate = '{certificate}'\nscopes = ['refund:policy=search', 'check:policy=search']\n"
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
    Server::start(directory, &["--resp", "127.0.0.1:0"])
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

/// The status of gRPC of a refund of a descriptor, with the certificate of a client.
fn grpc_refund(server: &Server, identity: Option<&str>) -> String {
    let refund = descriptor_of(&[("generic_key", "search"), ("user", "ann")]);
    let refund = request(&[refund.hits(1).negative()]);
    let message = frame(&refund.encode_to_vec());
    std::fs::write(server.directory().path().join("message"), message).unwrap();
    let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let url = format!("https://localhost:{}/{path}", server.grpc().port());
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--http2"])
        .args([
            "--cacert",
            "ca.pem",
            "--dump-header",
            "-",
            "--output",
            "/dev/null",
        ])
        .args([
            "--header",
            "content-type: application/grpc",
            "--header",
            "te: trailers",
        ])
        .args(["--data-binary", "@message"]);
    if let Some(name) = identity {
        curl.args(["--cert", &format!("{name}.pem"), "--key", &format!("{name}.key")]);
    }
    let ended = curl.arg(url).current_dir(server.directory().path()).output();
    let ended = ended.expect("curl");
    let headers = String::from_utf8_lossy(&ended.stdout).into_owned();
    let status = headers
        .lines()
        .find_map(|line| line.strip_prefix("grpc-status: "));
    let failed = || format!("no status: {}", String::from_utf8_lossy(&ended.stderr));
    status.map_or_else(failed, |status| status.trim().to_owned())
}

#[test]
fn certificate_identifies_a_client_of_grpc() {
    let server = start();
    for (identity, expected) in [
        (Some("named"), "0"),
        (Some("common"), "0"),
        (Some("unknown"), "16"),
        (None, "16"),
    ] {
        // An answer before the end of the request is an error for some versions of curl.
        wait_until(|| grpc_refund(&server, identity) == expected, || server.log());
    }
    let foreign = grpc_refund(&server, Some("foreign"));
    assert!(foreign.starts_with("no status: "), "{foreign}");
}

/// A client of a directory with the files of its authority and of its identity.
fn client(directory: &Path, identity: Option<&str>) -> ClientConnection {
    let file = |name: &str| directory.join(name);
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(file("ca.pem")).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let certificate = CertificateDer::from_pem_file(file(&format!("{name}.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(file(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let localhost = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::new(config), localhost).unwrap()
}

/// The replies to commands of a Redis client with a certificate, or the error.
fn run_commands(server: &Server, identity: Option<&str>, commands: &[&[&str]]) -> std::io::Result<String> {
    let connection = client(server.directory().path(), identity);
    let stream = TcpStream::connect(server.resp())?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = StreamOwned::new(connection, stream);
    let commands = commands.iter().copied().chain([&["QUIT"][..]]);
    stream.write_all(&commands.flat_map(encode).collect::<Vec<_>>())?;
    let mut replies = String::new();
    match stream.read_to_string(&mut replies) {
        Err(error) if replies.is_empty() => Err(error),
        _ => Ok(replies),
    }
}

#[test]
fn certificate_identifies_a_redis_client() {
    let server = start();
    let check = &["CL.THROTTLE", "policy:search:ann", "0", "1", "1"][..];
    let stated = &["CL.THROTTLE", "ann", "0", "1", "1"][..];
    for identity in ["named", "common"] {
        let replies = run_commands(&server, Some(identity), &[check]).unwrap();
        assert!(
            replies.starts_with("*5\r\n:0\r\n:100\r\n"),
            "{identity}: {replies}"
        );
        // The certificate has no scope for limits of the command itself.
        let replies = run_commands(&server, Some(identity), &[stated]).unwrap();
        assert!(replies.starts_with("-NOPERM"), "{identity}: {replies}");
    }
    for identity in [Some("unknown"), None] {
        let replies = run_commands(&server, identity, &[check]).unwrap();
        assert!(replies.starts_with("-NOAUTH"), "{identity:?}: {replies}");
        let replies = run_commands(&server, identity, &[&["AUTH", TOKEN], check]).unwrap();
        assert!(
            replies.starts_with("+OK\r\n*5\r\n:0\r\n"),
            "{identity:?}: {replies}"
        );
    }
    let foreign = run_commands(&server, Some("foreign"), &[check]);
    assert!(foreign.is_err(), "{foreign:?}");
}

/// The largest buffer of a socket of the next test.
const SMALL: u32 = 4_096;

/// Serves Redis clients by sockets with small buffers.
async fn serve_with_small_buffers(settings: &Settings, end: watch::Receiver<bool>) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    // Accepted sockets inherit the size.
    socket.set_send_buffer_size(SMALL).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap().into_std().unwrap();
    let address = listener.local_addr().unwrap();
    let (limits, tls) = (&settings.limits, settings.tls.as_ref());
    let listener = Listener::from_std("resp", listener, limits, tls).unwrap();
    let gateway = Gateway::new(Limiter::in_process().build(), settings, Readiness::new(true));
    tokio::spawn(resp::serve(gateway, listener, end));
    address
}

/// TLS accepts a reply at once, and sends the part that fits into the socket.
#[test]
fn reply_above_the_buffer_of_the_socket_arrives_completely() {
    let directory = Directory::new();
    let authority = Authority::new();
    let identity = authority.server(&["localhost"]);
    directory.write("ca.pem", authority.certificate());
    let [certificate, key] = [
        ("server.pem", &identity.certificate),
        ("server.key", &identity.key),
    ]
    .map(|(name, text)| directory.write(name, text).display().to_string());
    let text = format!("policies = 'p.toml'\n[tls]\ncert_file = '{certificate}'\nkey_file = '{key}'\n");
    let settings = Settings::of_file(&directory.write("limiter-server.toml", &text)).unwrap();
    let runtime = Runtime::new().unwrap();
    let (_end, ended) = watch::channel(false);
    let stream = runtime.block_on(async {
        let address = serve_with_small_buffers(&settings, ended).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(SMALL).unwrap();
        socket.connect(address).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut stream = StreamOwned::new(client(directory.path(), None), stream);
    let message = "x".repeat(60_000);
    stream.write_all(&encode(&["ECHO", &message])).unwrap();
    let expected = format!("${}\r\n{message}\r\n", message.len());
    let mut reply = vec![0; expected.len()];
    stream.read_exact(&mut reply).expect("the whole reply");
    assert!(reply == expected.as_bytes());
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
