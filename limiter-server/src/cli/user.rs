//! `limiter-server user`: users of the admin part.
//!
//! A forgotten password must be replaceable without a session or a running server, so the commands
//! change the users in the database directly. The password comes from standard input, so that it is
//! in no argument list and in no history of a shell.
//!
//! Only `add` creates an absent database. Tests: `tests/policy_command.rs`,
//! `tests/account_commands.rs`, `tests/control_plane/commands.rs` for names.

use std::io::Read as _;

use clap::Subcommand;

use crate::admin::auth::password::{PasswordError, Passwords};
use crate::admin::tokens::check_name;
use crate::cli::author::AuthorArgs;
use crate::cli::database::DatabaseArgs;
use crate::cli::print_text;
use crate::error_text::with_causes;
use crate::store::{Account, NewAccount, Store, StoreError, now_micros};

#[derive(Debug, Subcommand)]
pub(super) enum UserCommand {
    /// Add a user. Reads the password from standard input.
    Add {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The name.
        name: String,
        /// Make the user an administrator of the server.
        #[arg(long)]
        admin: bool,
        #[command(flatten)]
        author: AuthorArgs,
    },
    /// Set the password of a user and end the user's sessions. Reads it from standard input.
    Password {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The name.
        name: String,
        #[command(flatten)]
        author: AuthorArgs,
    },
    /// List the users.
    List {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Remove a user, with the user's sessions and grants, and revoke the user's tokens.
    Remove {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The name.
        name: String,
        #[command(flatten)]
        author: AuthorArgs,
    },
}

/// Runs the command.
pub(super) fn run(command: UserCommand) -> Result<(), String> {
    match command {
        UserCommand::Add {
            database,
            name,
            admin,
            author,
        } => database.run(async |store| add(&store, name, admin, &author).await),
        UserCommand::Password {
            database,
            name,
            author,
        } => database.run_existing(async |store| {
            // Before the user types a password in vain.
            find(&store, &name)
                .await?
                .ok_or_else(|| account_message(&name, &StoreError::NotFound))?;
            let hash = read_password().await?;
            let author = author.name();
            let set = store.set_password(&name, &hash, &author, now_micros());
            set.await.map_err(|error| account_message(&name, &error))
        }),
        UserCommand::List { database } => database.run_existing(async |store| {
            let mut text = String::new();
            for account in store.accounts().await.map_err(|error| with_causes(&error))? {
                let role = if account.is_admin { "admin" } else { "user" };
                let state = if account.is_disabled {
                    "disabled"
                } else {
                    "enabled"
                };
                text.push_str(&format!("{}\t{role}\t{state}\n", account.name));
            }
            print_text(&text)
        }),
        UserCommand::Remove {
            database,
            name,
            author,
        } => database.run_existing(async |store| {
            let author = author.name();
            let removed = store.remove_account(&name, &author, now_micros());
            removed.await.map_err(|error| account_message(&name, &error))
        }),
    }
}

async fn add(store: &Store, name: String, is_admin: bool, author: &AuthorArgs) -> Result<(), String> {
    check_name(&name)?;
    if find(store, &name).await?.is_some() {
        return Err(account_message(&name, &StoreError::Exists));
    }
    let new = NewAccount {
        name,
        password: Some(read_password().await?),
        is_admin,
    };
    let author = author.name();
    let added = store.add_account(&new, &author, now_micros());
    added.await.map_err(|error| account_message(&new.name, &error))
}

async fn find(store: &Store, name: &str) -> Result<Option<Account>, String> {
    let found = store.account(name).await;
    found.map_err(|error| with_causes(&error))
}

fn account_message(name: &str, error: &StoreError) -> String {
    match error {
        StoreError::NotFound => format!("there is no user `{name}`; `user list` lists all"),
        StoreError::Exists => format!("the user `{name}` exists; `user password` sets another password"),
        error => with_causes(error),
    }
}

/// Reads a password from standard input and hashes it.
async fn read_password() -> Result<String, String> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| format!("cannot read the password from standard input: {error}"))?;
    let password = text.trim_end_matches(['\r', '\n']).to_owned();
    let hashed = Passwords::new()?.hash(password).await;
    hashed.map_err(|error| match error {
        PasswordError::Unsuitable(reason) => reason.to_owned(),
        PasswordError::Busy => "cannot hash the password: try again".to_owned(),
    })
}
