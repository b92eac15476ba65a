//! `limiter-server policy`: applies policy files to the database, prints and restores policies.
//!
//! `apply` and `diff` compute one list of changes (`plan.rs`), and `apply` saves it as one batch.
//! The commands use the database directly, so a running server is not necessary; it reads the
//! change from the database.
//!
//! Invariants: a batch is saved completely or not at all; a dry run saves nothing and does not
//! create a database; an exported file applies without changes. Tests: `tests/policy_command.rs`.

mod plan;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use limiter_core::Inheritance;
use limiter_core::registry::PolicyRegistry;

use crate::admin::edit::{self, BatchEdit, BatchFailure, EditError, MANAGED_BY_UI, PolicyEdit, RulesEdit};
use crate::cli::author::AuthorArgs;
use crate::cli::database::DatabaseArgs;
use crate::cli::policy::plan::{PlannedChange, plan, print_change};
use crate::cli::print_text;
use crate::error_text::with_causes;
use crate::overlay_text;
use crate::policy_text::parse_rules;
use crate::serve::policies;
use crate::store::{DocumentKind, Origin, Store, StoredDocument};

/// The longest name of an owner in bytes that all databases store.
const MAX_OWNER_BYTES: usize = 255;
/// The exit code of a dry run that would change something.
const WOULD_CHANGE: u8 = 2;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Make the database equal to a policy file; other policies keep their state.
    Apply(ApplyArgs),
    /// Print the changes that `apply` would make. Exits with 2 if there are some.
    Diff(ApplyArgs),
    /// Print the policies and rules as a policy file.
    Export {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Save an earlier revision of a policy again.
    Rollback {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The name of the policy.
        name: String,
        /// The revision to restore. Default: the one before the current revision.
        #[arg(long, value_name = "NUMBER")]
        to: Option<i64>,
        /// The reason in the history.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        author: AuthorArgs,
    },
}

#[derive(Args, Debug)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The policy file.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Print the changes only. Exits with 2 if there are some.
    #[arg(long)]
    dry_run: bool,
    /// Change policies of other owners too, and own them from now on.
    #[arg(long)]
    take_over: bool,
    /// Accept a file without policies, which deletes all policies of the owner.
    #[arg(long)]
    delete_all: bool,
    /// The owner of the policies of this file, such as the address of a repository.
    #[arg(long, value_name = "NAME", default_value = "git", value_parser = parse_owner)]
    managed_by: String,
    /// The reason in the history.
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    author: AuthorArgs,
}

fn parse_owner(text: &str) -> Result<String, String> {
    let is_plain = !text.chars().any(char::is_control) && text.trim() == text;
    match !text.is_empty() && text.len() <= MAX_OWNER_BYTES && is_plain {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected a name of 1 to {MAX_OWNER_BYTES} bytes without control characters and outer spaces"
        )),
    }
}

/// Runs the command.
pub(super) fn run(command: PolicyCommand) -> Result<ExitCode, String> {
    match command {
        PolicyCommand::Apply(args) => {
            let is_dry_run = args.dry_run;
            apply(&args, is_dry_run)
        }
        PolicyCommand::Diff(args) => apply(&args, true),
        PolicyCommand::Export { database } => {
            let text = database.run_existing(async |store| export(&store, &database.namespace).await)?;
            print_text(&text)?;
            Ok(ExitCode::SUCCESS)
        }
        PolicyCommand::Rollback {
            database,
            name,
            to,
            reason,
            author,
        } => {
            let namespace = &database.namespace;
            let rollback =
                async |store: Store| rollback(&store, (namespace, &name), to, reason, &author).await;
            let revision = database.run_existing(rollback)?;
            print_text(&format!("{name}: revision {revision}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn apply(args: &ApplyArgs, is_dry_run: bool) -> Result<ExitCode, String> {
    let desired = policies::read(&args.file)?;
    let apply = async |store: Store| {
        let namespace = &args.database.namespace;
        let documents = store
            .documents(namespace)
            .await
            .map_err(|error| with_causes(&error))?;
        let changes = plan(&desired, &documents, (&args.managed_by, args.take_over))?;
        let deletes = changes
            .iter()
            .any(|change| matches!(change, PlannedChange::Delete { .. }));
        if deletes && desired.names().is_empty() && !args.delete_all {
            return Err(format!(
                "{} contains no policy, which would delete all policies of `{}`; use --delete-all if you mean that",
                args.file.display(),
                args.managed_by
            ));
        }
        if changes.is_empty() {
            print_text("no changes\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        for change in &changes {
            print_change(change, &documents)?;
        }
        if is_dry_run {
            return Ok(ExitCode::from(WOULD_CHANGE));
        }
        let saved = edit::save_batch(&store, &args.author.operator(), batch(args, changes)).await;
        saved.map_err(batch_message)?;
        Ok(ExitCode::SUCCESS)
    };
    match is_dry_run {
        true => args.database.run_existing(apply),
        false => args.database.run(apply),
    }
}

/// Returns the changes as one edit.
fn batch(args: &ApplyArgs, changes: Vec<PlannedChange>) -> BatchEdit {
    let reason = args
        .reason
        .clone()
        .or_else(|| Some(format!("applied {}", args.file.display())));
    let mut batch = BatchEdit {
        namespace: args.database.namespace.clone(),
        policies: Vec::with_capacity(changes.len()),
        rules: None,
        overlays: None,
        reason: reason.clone(),
        origin: Origin::Command,
    };
    for change in changes {
        let (name, expected, text) = match change {
            PlannedChange::Save { text, revision } => {
                (text.name().to_owned(), revision, Some(text.to_toml()))
            }
            PlannedChange::Delete { name, revision } => (name, revision, None),
            PlannedChange::Rules { text, revision } => {
                let expected = revision;
                batch.rules = Some(RulesEdit { expected, text });
                continue;
            }
            PlannedChange::Overlays { added, .. } => {
                batch.overlays = Some(added);
                continue;
            }
        };
        batch.policies.push(PolicyEdit {
            namespace: batch.namespace.clone(),
            name,
            expected,
            text,
            inheritance: Inheritance::AsIs,
            reason: reason.clone(),
            origin: Origin::Command,
            managed_by: args.managed_by.clone(),
            takes_over: args.take_over,
        });
    }
    batch
}

/// Returns the messages of all changes that prevent the others.
fn batch_message(failures: Vec<BatchFailure>) -> String {
    let is_unconfirmed =
        |of: &BatchFailure| matches!(&of.error, EditError::Store(error) if error.is_unconfirmed());
    let is_unconfirmed = failures.iter().any(is_unconfirmed);
    let mut lines: Vec<String> = failures
        .into_iter()
        .map(|failure| edit_message(&failure.name, failure.error))
        .collect();
    if !is_unconfirmed {
        lines.push("nothing was saved".to_owned());
    }
    lines.join("\n")
}

async fn export(store: &Store, namespace: &str) -> Result<String, String> {
    let documents = store
        .documents(namespace)
        .await
        .map_err(|error| with_causes(&error))?;
    let registry = PolicyRegistry::new();
    let invalid =
        |of: &StoredDocument, error: &dyn std::error::Error| format!("{}: {}", of.name, with_causes(error));
    let rules = documents.iter().find(|of| of.kind == DocumentKind::Rules);
    let rules = match rules.filter(|of| !of.is_deleted) {
        Some(document) => parse_rules(&document.body).map_err(|error| invalid(document, &error))?,
        None => Vec::new().into(),
    };
    // Another program can end a policy that rules name, and a file of rules needs all policies.
    let is_named = |of: &StoredDocument| rules.iter().any(|rule| rule.policy() == of.name);
    for document in documents.iter().filter(|of| !of.is_deleted || is_named(of)) {
        let invalid = |error: &dyn std::error::Error| invalid(document, error);
        match document.kind {
            DocumentKind::Policy => {
                let text = document.policy().map_err(|error| invalid(&error))?;
                text.put_into(&registry).map_err(|error| invalid(&error))?;
            }
            DocumentKind::Overlays => {
                let overlays = overlay_text::parse(&document.body).map_err(|error| invalid(&error))?;
                overlay_text::copy(&overlays, &registry).map_err(|error| invalid(&error))?;
            }
            DocumentKind::Rules => {}
        }
    }
    registry
        .set_rules(rules.iter().cloned())
        .map_err(|error| with_causes(&error))?;
    Ok(registry.to_toml())
}

async fn rollback(
    store: &Store,
    (namespace, name): (&str, &str),
    to: Option<i64>,
    reason: Option<String>,
    author: &AuthorArgs,
) -> Result<i64, String> {
    let kind = DocumentKind::Policy;
    let current = store
        .document(namespace, kind, name)
        .await
        .map_err(|error| with_causes(&error))?;
    let current = current.ok_or_else(|| {
        format!("there is no policy `{name}` in namespace `{namespace}`; `policy export` lists all")
    })?;
    let number = to.unwrap_or(current.revision - 1);
    let revision = store.revision(namespace, kind, name, number).await;
    let revision = revision.map_err(|error| with_causes(&error))?;
    let revision = revision.filter(|of| !of.is_deletion);
    let revision = revision.ok_or_else(|| {
        format!("policy `{name}` has no text of revision {number}, expected an earlier revision in --to")
    })?;
    let edit = PolicyEdit {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        expected: current.revision,
        text: Some(revision.body),
        inheritance: Inheritance::AsIs,
        reason: reason.or_else(|| Some(format!("restored revision {number}"))),
        origin: Origin::Restore,
        managed_by: match current.is_deleted {
            true => MANAGED_BY_UI.to_owned(),
            false => current.managed_by,
        },
        takes_over: false,
    };
    match edit::save_policy(store, &author.operator(), edit).await {
        Ok(edit::EditOutcome::Saved { revision }) => Ok(revision),
        Ok(edit::EditOutcome::Proposed { exceeded, .. }) => Err(exceeded),
        Err(error) => Err(edit_message(name, error)),
    }
}

fn edit_message(name: &str, error: EditError) -> String {
    let reason = match error {
        EditError::Hidden => "there is no such policy".to_owned(),
        EditError::Forbidden(reason) | EditError::Invalid(reason) | EditError::Managed(reason) => reason,
        EditError::Store(error) => with_causes(&error),
    };
    format!("{name}: {reason}")
}
