//! The database of commands that do not need a running server.

use std::path::PathBuf;

use clap::Args;

use crate::error_text::with_causes;
use crate::settings::DEFAULT_NAMESPACE;
use crate::store::{AuditLines, Store, StoreError};

/// The arguments that select a database and a namespace.
#[derive(Args, Debug)]
pub(super) struct DatabaseArgs {
    /// Database of the server: sqlite:FILE, postgres://… or mysql://….
    #[arg(long, value_name = "URL", env = "LIMITER_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// File that contains the URL of the database.
    #[arg(
        long,
        value_name = "FILE",
        env = "LIMITER_DATABASE_FILE",
        conflicts_with = "database"
    )]
    database_file: Option<PathBuf>,
    /// Namespace of the policies.
    #[arg(
        long,
        value_name = "NAME",
        env = "LIMITER_NAMESPACE",
        default_value = DEFAULT_NAMESPACE
    )]
    pub(super) namespace: String,
}

impl DatabaseArgs {
    /// Opens the database, creates it if it is absent, and runs a command on it.
    pub(super) fn run<T>(&self, command: impl AsyncFnOnce(Store) -> Result<T, String>) -> Result<T, String> {
        self.run_on(async |url: &str| Store::open(url).await, command)
    }

    /// Opens the database and runs a command on it. A command that only reads must not create a
    /// database from a URL with a mistake.
    pub(super) fn run_existing<T>(
        &self,
        command: impl AsyncFnOnce(Store) -> Result<T, String>,
    ) -> Result<T, String> {
        self.run_on(async |url: &str| Store::open_existing(url).await, command)
    }

    fn run_on<T>(
        &self,
        open: impl AsyncFnOnce(&str) -> Result<Store, StoreError>,
        command: impl AsyncFnOnce(Store) -> Result<T, String>,
    ) -> Result<T, String> {
        let url = match (&self.database, &self.database_file) {
            (Some(url), _) => url.clone(),
            (None, Some(path)) => std::fs::read_to_string(path)
                .map(|text| text.trim_end().to_owned())
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?,
            (None, None) => {
                return Err("no database: set --database, --database-file or LIMITER_DATABASE".to_owned());
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("cannot start the runtime: {error}"))?;
        runtime.block_on(async {
            let store = open(&url).await.map_err(|error| with_causes(&error))?;
            let store = store.with_audit_lines(AuditLines::Stderr);
            let result = command(store.clone()).await;
            store.close().await;
            result
        })
    }
}
