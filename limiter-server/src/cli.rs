//! The command line: `serve`, `demo`, `check`, `explain`, `export`, `import`, `kill`, `policy`,
//! `replay`, `token`, `user`, `completions`.
//!
//! Standard output carries results only; errors and log messages go to standard error. The exit
//! code is 0 for success, 1 for errors of the input and of the system, and 2 for a malformed
//! command line and for a dry run that would change something. Tests: `tests/commands.rs`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line prints its results"
)]

mod author;
mod check;
mod database;
mod demo;
mod explain;
mod export;
mod import;
mod kill;
mod policy;
mod replay;
mod token;
mod user;

use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::serve;
use crate::settings::{ServeArgs, Settings};

/// Rate limits for Envoy and for programs in any language.
#[derive(Debug, Parser)]
#[command(name = "limiter-server", version, about)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve rate limit decisions until SIGTERM or SIGINT.
    Serve(Box<ServeArgs>),
    /// Serve a demonstration: apps, policies, users and generated traffic. Keeps nothing.
    Demo(demo::DemoArgs),
    /// Check a policy file. Prints all errors with line, column and expectation.
    Check {
        /// The policy file.
        file: PathBuf,
    },
    /// Print the rule, policy and key of a descriptor.
    Explain {
        #[command(flatten)]
        source: explain::RegistrySource,
        /// The domain of the request.
        #[arg(long)]
        domain: String,
        /// The entries of the descriptor, in order.
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = explain::parse_entry)]
        entries: Vec<(String, String)>,
    },
    /// Convert the configuration of another server to policies and rules.
    Import {
        #[command(subcommand)]
        from: ImportFrom,
    },
    /// Print the policies, rules, suspensions and blocks in force, with Redis only.
    Export(Box<export::ExportArgs>),
    /// Suspend the enforcement of policies, with Redis only.
    Kill(Box<kill::KillArgs>),
    /// Apply, print and restore policies of the database.
    Policy {
        #[command(subcommand)]
        command: policy::PolicyCommand,
    },
    /// Manage the users of the admin part.
    User {
        #[command(subcommand)]
        command: user::UserCommand,
    },
    /// Compute the decisions of policies for recorded traffic.
    Replay(Box<replay::ReplayArgs>),
    /// Manage the tokens of clients and of the admin API.
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ImportFrom {
    /// Convert a configuration of envoyproxy/ratelimit.
    Envoy {
        /// The YAML file.
        file: PathBuf,
    },
}

/// Parses the arguments of the process and runs the command.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = without_empty_variables(CommandLine::command()).get_matches();
    let line = CommandLine::from_arg_matches(&arguments).unwrap_or_else(|error| error.exit());
    let ended = match line.command {
        Command::Serve(args) => serve_with(*args),
        Command::Demo(args) => demo::run(args),
        Command::Check { file } => check::run(&file),
        Command::Explain {
            source,
            domain,
            entries,
        } => explain::run(&source, &domain, &entries),
        Command::Import {
            from: ImportFrom::Envoy { file },
        } => import::envoy(&file),
        Command::Export(args) => export::run(&args),
        Command::Kill(args) => kill::run(&args),
        Command::Policy { command } => match policy::run(command) {
            Ok(code) => return code,
            Err(message) => Err(message),
        },
        Command::User { command } => user::run(command),
        Command::Replay(args) => replay::run(*args),
        Command::Token { command } => token::run(command),
        Command::Completions { shell } => {
            let mut command = CommandLine::command();
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, "limiter-server", &mut script);
            print_text(&String::from_utf8_lossy(&script))
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Takes an empty variable of the environment for an absent one: deployments pass on variables that
/// are not set as empty ones.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|arg| match arg.get_env().is_some_and(is_empty) {
        true => arg.env(Resettable::Reset),
        false => arg,
    });
    command.mut_subcommands(without_empty_variables)
}

fn serve_with(args: ServeArgs) -> Result<(), String> {
    // Before the settings, which log warnings.
    serve::init_log();
    let settings = Settings::resolve(args).map_err(|error| error.to_string())?;
    serve::run(&settings)
}

/// Writes the result of a command to standard output. A reader that has ended, such as `head`, is
/// no error.
fn print_text(text: &str) -> Result<(), String> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}
