//! A newcomer's crate: outside the workspace, with `limiter-core` as its only dependency and an
//! annotated function.
#![cfg(feature = "macros")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const MAIN: &str = r#"
#![deny(warnings)]
#![forbid(unsafe_code)]

use limiter_core::{FromRejection, Limiter, Rejection, token_limiter};

#[derive(Debug, PartialEq)]
enum Greeting { Hello(String), Later(String) }

impl FromRejection for Greeting {
    fn from_rejection(rejection: Rejection) -> Self { Greeting::Later(rejection.to_string()) }
}

#[token_limiter(name = "greet", capacity = 1, rate = "1/h", key = "user:{name}")]
async fn greet(name: &str) -> Greeting { Greeting::Hello(format!("hello {name}")) }

struct Desk { limits: Limiter }

impl Desk {
    #[token_limiter(name = "ask", capacity = 1, rate = "1/h", limiter = self.limits, fallback = self.busy, pass_args)]
    async fn ask(&self, question: String) -> String { format!("{question}? yes") }

    fn busy(&self, question: String) -> String { format!("{question}? later") }
}

/// In process a decision is ready at the first poll, so this executor suffices.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("not ready at the first poll"),
    }
}

fn main() {
    limiter_core::annotations::install(Limiter::in_process().build()).unwrap();
    limiter_core::annotations::verify_annotations().unwrap();
    assert_eq!(block_on(greet("ann")), Greeting::Hello("hello ann".to_owned()));
    assert!(matches!(block_on(greet("ann")), Greeting::Later(_)));
    assert_eq!(block_on(greet("bob")), Greeting::Hello("hello bob".to_owned()));
    let desk = Desk { limits: Limiter::in_process().build() };
    assert_eq!(block_on(desk.ask("tea".to_owned())), "tea? yes");
    assert_eq!(block_on(desk.ask("tea".to_owned())), "tea? later");
    println!("all as expected");
}
"#;

#[test]
fn annotated_function_needs_only_this_crate() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crate_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("newcomer");
    fs::create_dir_all(crate_dir.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"newcomer\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\nlimiter-core = {{ path = {core:?} }}\n\n[workspace]\n\n[profile.dev.package.\"*\"]\ndebug = false\n"
    );
    fs::write(crate_dir.join("Cargo.toml"), manifest).unwrap();
    fs::write(crate_dir.join("src/main.rs"), MAIN).unwrap();
    // The versions that are here already, so that nothing has to be fetched.
    fs::copy(core.join("../Cargo.lock"), crate_dir.join("Cargo.lock")).unwrap();

    // Contains most dependencies, compiled for this workspace.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["run", "--quiet", "--offline"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(&crate_dir)
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && stdout.contains("all as expected"),
        "{stdout}\n{stderr}"
    );
}
