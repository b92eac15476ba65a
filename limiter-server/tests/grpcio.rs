//! An independent client, grpcio with the messages of xds-protos, reads every field.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::process::Command;

use support::access;
use support::server::Server;

const POLICIES: &str = "
[policy.search]
algorithm = 'sliding_window'
limit = 3
window = '10m'
";

/// The variable that names a Python with the packages of `tests/clients/requirements.txt`.
const VARIABLE: &str = "RLS_PYTHON";

#[test]
fn independent_client_reads_every_field() {
    let server = Server::with_token(
        POLICIES,
        &[
            "--node",
            "edge-1",
            "--override-domains",
            "edge",
            "--key-in-metadata",
            "plain",
        ],
    );
    let python = std::env::var_os(VARIABLE)
        .expect("set RLS_PYTHON to a Python with grpcio and xds-protos, or run `cargo xtask server`");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/rls_client.py");
    let output = Command::new(python)
        .arg(script)
        .arg(server.grpc().to_string())
        .arg(access::TOKEN)
        .output()
        .expect("Python starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}{}", server.log());
}
