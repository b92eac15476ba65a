//! `limiter-server demo`: a server with generated content and traffic, in a temporary directory.
//!
//! Tests: `tests/demo.rs`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::admin::auth::password::Passwords;
use crate::demo::{content, temporary, traffic};
use crate::error_text::with_causes;
use crate::secret::{Secret, random_id};
use crate::serve;
use crate::settings::{DEFAULT_NAMESPACE, ListenAddress, ServeArgs, Settings};
use crate::store::{Store, now_micros};

/// The length of the password of the demonstration.
const PASSWORD_LENGTH: usize = 16;

#[derive(Args, Debug)]
pub(super) struct DemoArgs {
    /// Address of the admin UI; port 0 selects a free port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8082")]
    admin: SocketAddr,
    /// Address of the HTTP listener of the gateway.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    http: ListenAddress,
    /// Address of the gRPC listener of the gateway.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    grpc: ListenAddress,
}

/// A directory that is removed at the end.
#[derive(Debug)]
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn create() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("limiter-demo-{}", random_id()));
        let failed = |error| format!("cannot create the directory {}: {error}", path.display());
        std::fs::create_dir(&path).map_err(failed)?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Runs the demonstration until SIGTERM or SIGINT.
pub(super) fn run(args: DemoArgs) -> Result<(), String> {
    serve::init_log();
    let directory = TemporaryDirectory::create()?;
    let settings = settings(args, &directory.0)?;
    let mut password = Secret::generate("").reveal().to_owned();
    password.truncate(PASSWORD_LENGTH);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let token = runtime.block_on(fill(&settings, &password))?;
    drop(runtime);
    serve::run_with(&settings, move |addresses, gateway| {
        if let Some((_, admin)) = addresses.iter().find(|(name, _)| *name == "admin") {
            println!(
                "The demonstration runs at http://{admin}/signin?user={}",
                content::ADMIN
            );
            println!("Password of demo, olivia (owner), eddie (editor) and vera (viewer): {password}");
        }
        tokio::spawn(traffic::run(gateway, token));
    })
}

/// Returns settings that do not depend on files and variables of the user, which name real servers.
fn settings(args: DemoArgs, directory: &Path) -> Result<Settings, String> {
    let config = directory.join("limiter-server.toml");
    std::fs::write(&config, "").map_err(|error| format!("cannot write {}: {error}", config.display()))?;
    let database = format!("sqlite:{}", directory.join("demo.db").display());
    let serve = ServeArgs::of_demo(config, database, args.admin, args.http, args.grpc);
    Settings::resolve(serve).map_err(|error| error.to_string())
}

/// Fills the database. Returns the token of the traffic.
async fn fill(settings: &Settings, password: &str) -> Result<Secret, String> {
    let Some(control) = &settings.control else {
        return Err("the demonstration has no database".to_owned());
    };
    let store = Store::open(&control.database).await;
    let store = store.map_err(|error| with_causes(&error))?;
    let hash = Passwords::new()?.hash(password.to_owned()).await;
    let hash = hash.map_err(|error| format!("cannot hash the password: {error:?}"))?;
    let (namespace, now) = (DEFAULT_NAMESPACE, now_micros());
    let filled = async {
        content::fill(&store, namespace, &hash, now).await?;
        temporary::fill(&store, namespace, now).await?;
        traffic::add_token(&store, namespace, now).await
    };
    let filled = filled.await;
    store.close().await;
    filled
}
