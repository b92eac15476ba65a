//! `limiter-server token`: bearer tokens of the settings file and of the database.
//!
//! `new` creates a token for the settings file and needs no database. The other commands list and
//! change the tokens in the database with all permissions, because access to the database permits
//! everything.
//!
//! Invariants: a secret is printed once and stored only as a hash; none of the commands creates a
//! database. Tests: `tests/policy_command.rs`, `tests/account_commands.rs`.

use std::time::SystemTime;

use clap::{Args, Subcommand};

use crate::access::{AccessTable, Expiry, Scope, Token, TokenSecret};
use crate::admin::tokens::{self, IssuedToken, TokenFailure, TokenRequest};
use crate::cli::author::AuthorArgs;
use crate::cli::database::DatabaseArgs;
use crate::cli::print_text;
use crate::error_text::with_causes;
use crate::store::{StoreError, TokenChange, now_micros};

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Create a token, and print it with its entry for limiter-server.toml.
    New(NewToken),
    /// Issue a token in the database, and print it.
    Issue {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Name of the token in logs and in the audit.
        #[arg(long)]
        name: String,
        /// Permitted action and target, such as check:domain=edge or admin:viewer. Can be repeated.
        #[arg(long = "scope", value_name = "SCOPE", required = true)]
        scopes: Vec<String>,
        /// Days until the token expires.
        #[arg(long, value_name = "DAYS", default_value_t = 90)]
        days: i64,
        #[command(flatten)]
        author: AuthorArgs,
    },
    /// List the tokens of the database, without their secrets.
    List {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Replace a token of the database by one with the same scopes, and print it.
    Rotate {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The id in `token list`.
        id: String,
        /// Seconds for which the previous token remains valid.
        #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
        overlap: i64,
        #[command(flatten)]
        author: AuthorArgs,
    },
    /// Revoke a token of the database.
    Revoke {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The id in `token list`.
        id: String,
        #[command(flatten)]
        author: AuthorArgs,
    },
    /// Accept a token again that was suspended because the database was restored.
    Confirm {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The id in `token list`.
        id: String,
        #[command(flatten)]
        author: AuthorArgs,
    },
}

/// The arguments of `token new`.
#[derive(Args, Debug)]
pub(super) struct NewToken {
    /// Name of the token in logs.
    #[arg(long)]
    name: String,
    /// Permitted action and target, such as check:domain=edge, refund:policy=search*, reset:* or
    /// namespace. Can be repeated.
    #[arg(long = "scope", value_name = "SCOPE", required = true)]
    scopes: Vec<String>,
    /// Days until the token expires.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Runs the command.
pub(super) fn run(command: TokenCommand) -> Result<(), String> {
    match command {
        TokenCommand::New(args) => new(args),
        TokenCommand::Issue {
            database,
            name,
            scopes,
            days,
            author,
        } => {
            let request = TokenRequest {
                namespace: database.namespace.clone(),
                name,
                scopes,
                days: Some(days),
            };
            let issue = database.run_existing(async |store| {
                let issued = tokens::issue(&store, &author.operator(), request).await;
                issued.map_err(failure_message)
            });
            print_issued(&issue?)
        }
        TokenCommand::List { database } => list(&database),
        TokenCommand::Rotate {
            database,
            id,
            overlap,
            author,
        } => {
            let token = (database.namespace.as_str(), id.as_str());
            let rotated = database.run_existing(async |store| {
                let rotated = tokens::rotate(&store, &author.operator(), token, Some(overlap)).await;
                rotated.map_err(failure_message)
            });
            print_issued(&rotated?)
        }
        TokenCommand::Revoke { database, id, author } => change(&database, &id, TokenChange::Revoke, &author),
        TokenCommand::Confirm { database, id, author } => {
            change(&database, &id, TokenChange::Confirm, &author)
        }
    }
}

/// Prints the secret, which is stored nowhere, and the entry for the settings file.
fn new(args: NewToken) -> Result<(), String> {
    let scopes: Vec<Scope> = args
        .scopes
        .iter()
        .map(|scope| scope.parse())
        .collect::<Result<_, _>>()?;
    let secret = TokenSecret::generate()?;
    let expires = Expiry::days_after(SystemTime::now(), args.days);
    let token = Token::new(args.name.clone(), secret.hash(), scopes, expires);
    AccessTable::new(vec![token], Vec::new())?;
    eprintln!("The token is shown once. Clients send it as `authorization: Bearer TOKEN`:");
    print_text(&format!("{}\n\n", secret.expose()))?;
    eprintln!("Add this entry to limiter-server.toml; a running server reads it within a second:");
    // Strings of JSON without control characters are strings of TOML.
    print_text(&format!(
        "[[token]]\nname = {}\nsha256 = \"{}\"\nscopes = {}\nexpires = {expires}\n",
        serde_json::Value::from(args.name),
        secret.hash(),
        serde_json::Value::from(args.scopes),
    ))
}

/// Prints the secret to standard output, and its identity to standard error.
fn print_issued(issued: &IssuedToken) -> Result<(), String> {
    eprintln!(
        "The token is shown once. Its id is {}, and it expires at {}:",
        issued.id,
        Expiry::at_micros(issued.expires_at)
    );
    print_text(&format!("{}\n", issued.secret.reveal()))?;
    if let Some(end) = issued.previous_ends_at {
        eprintln!("The previous token ends at {}.", Expiry::at_micros(end));
    }
    Ok(())
}

/// Prints id, name, state, end and scopes of each token.
fn list(database: &DatabaseArgs) -> Result<(), String> {
    let tokens = database.run_existing(async |store| {
        let tokens = store.tokens(&database.namespace).await;
        tokens.map_err(|error| with_causes(&error))
    })?;
    let now = now_micros();
    let lines = tokens.iter().map(|token| {
        let end = token.expires_at.min(token.revoked_at.unwrap_or(i64::MAX));
        format!(
            "{}\t{}\t{}\t{}\t{}\n",
            token.id,
            token.label,
            tokens::state(token, now),
            Expiry::at_micros(end),
            token.scopes
        )
    });
    print_text(&lines.collect::<String>())
}

fn change(database: &DatabaseArgs, id: &str, change: TokenChange, author: &AuthorArgs) -> Result<(), String> {
    database.run_existing(async |store| {
        let author = author.name();
        let changed = store.change_token(&database.namespace, id, change, &author, now_micros());
        changed.await.map_err(|error| match error {
            StoreError::NotFound => no_such_token(),
            error => with_causes(&error),
        })
    })
}

fn failure_message(failure: TokenFailure) -> String {
    match failure {
        TokenFailure::Malformed(reason) | TokenFailure::Forbidden(reason) => reason,
        TokenFailure::InvalidName(reason) => format!("--name: {reason}"),
        TokenFailure::NotFound => no_such_token(),
        TokenFailure::Store(error) => with_causes(&error),
    }
}

fn no_such_token() -> String {
    "the namespace has no token of this id in the expected state; `token list` lists all".to_owned()
}
