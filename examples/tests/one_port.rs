//! One quota for both protocols, with the responses of each protocol.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

const EXPECTED: &str = "\
HTTP, call 1: 200, RateLimit: \"greet\";r=2;t=60, Retry-After: -
gRPC, call 1: Ok: hello, ann
HTTP, call 2: 200, RateLimit: \"greet\";r=0;t=60, Retry-After: -
gRPC, call 2: ResourceExhausted: rate limit reached, retry after 60 seconds
HTTP, call 3: 429, RateLimit: \"greet\";r=0;t=60, Retry-After: 60
gRPC, call 3: ResourceExhausted: rate limit reached, retry after 60 seconds
";

#[test]
fn http_and_grpc_share_quota_and_use_own_responses() {
    let output = Command::new(env!("CARGO_BIN_EXE_one_port"))
        .env_remove("REDIS_URL")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // A machine under load may take a second or two.
    let text = String::from_utf8_lossy(&output.stdout)
        .replace("59", "60")
        .replace("58", "60");
    assert_eq!(text, EXPECTED);
}
