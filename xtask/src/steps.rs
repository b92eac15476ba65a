//! The steps of `test` and `ci`, in order, the quick ones first.

use std::env;
use std::process::{Command, Stdio};

use crate::redis;

/// One thing that can fail, and that can be run alone by its name.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    commands: &'static [&'static [&'static str]],
    needs: Need,
}

#[derive(Debug, Clone, Copy)]
enum Need {
    Nothing,
    /// A component of the toolchain: its name, and the subcommand of cargo it provides.
    Component(&'static str, &'static str),
    Redis,
}

pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        purpose: "the code is formatted",
        commands: &[&["fmt", "--all", "--check"]],
        needs: Need::Component("rustfmt", "fmt"),
    },
    Step {
        name: "clippy",
        purpose: "the lints are silent",
        commands: &[&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ]],
        needs: Need::Component("clippy", "clippy"),
    },
    Step {
        name: "features",
        purpose: "the libraries build without their default features",
        commands: &[
            &["check", "-p", "limiter-core", "--no-default-features"],
            &["check", "-p", "limiter-tower", "--no-default-features"],
        ],
        needs: Need::Nothing,
    },
    Step {
        name: "test",
        purpose: "unit and integration tests, against Redis servers of their own",
        commands: &[&["test", "--workspace", "--all-features", "--tests"]],
        needs: Need::Redis,
    },
    Step {
        name: "doctest",
        purpose: "the examples in the documentation",
        commands: &[&["test", "--workspace", "--all-features", "--doc"]],
        needs: Need::Redis,
    },
    Step {
        name: "doc",
        purpose: "the documentation builds without a warning",
        commands: &[&["doc", "--workspace", "--no-deps", "--all-features"]],
        needs: Need::Nothing,
    },
];

/// Whether a warning of the compiler is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// Only those of clippy and rustdoc are: a new compiler must not keep anyone from testing.
    Lenient,
    DenyWarnings,
}

/// What to run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) only: Option<String>,
    pub(crate) test_args: Vec<String>,
    pub(crate) strictness: Strictness,
}

/// Runs the steps until one fails.
pub(crate) fn run(plan: &Plan) -> Result<(), String> {
    let steps = selected(plan.only.as_deref())?;
    for step in &steps {
        run_step(plan, step).map_err(|why| format!("step `{}` failed: {why}", step.name))?;
    }
    println!(
        "==> passed: {}",
        steps.iter().map(|step| step.name).collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

fn run_step(plan: &Plan, step: &Step) -> Result<(), String> {
    match step.needs {
        Need::Nothing => {}
        Need::Component(component, subcommand) => require(component, subcommand)?,
        Need::Redis => redis::ensure()?,
    }
    let arguments = |command: &&[&str]| arguments(step, command, &plan.test_args);
    step.commands
        .iter()
        .map(arguments)
        .try_for_each(|args| execute(plan, step.name, &args))
}

fn selected(only: Option<&str>) -> Result<Vec<&'static Step>, String> {
    let steps: Vec<_> = STEPS
        .iter()
        .filter(|step| only.is_none_or(|name| name == step.name))
        .collect();
    if steps.is_empty() {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!(
            "no step `{}`, expected one of {}",
            only.unwrap_or_default(),
            names.join(", ")
        ));
    }
    Ok(steps)
}

fn arguments(step: &Step, command: &[&str], test_args: &[String]) -> Vec<String> {
    let extra = if step.name == "test" { test_args } else { &[] };
    // Cargo lets `--workspace` win over `--package` without a word.
    let narrowed = extra
        .iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| arg.starts_with("-p") || arg.starts_with("--package"));
    let own = command.iter().filter(|arg| !(narrowed && **arg == "--workspace"));
    own.map(|arg| (*arg).to_owned())
        .chain(extra.iter().cloned())
        .collect()
}

fn execute(plan: &Plan, step: &str, args: &[String]) -> Result<(), String> {
    println!("==> {step}: cargo {}", args.join(" "));
    let mut command = cargo();
    command
        .args(args)
        .env("RUSTDOCFLAGS", denying_warnings("RUSTDOCFLAGS"));
    if plan.strictness == Strictness::DenyWarnings {
        command.env("RUSTFLAGS", denying_warnings("RUSTFLAGS"));
    }
    let status = command
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`cargo {}`, {status}", args.join(" ")))
    }
}

fn denying_warnings(variable: &str) -> String {
    let flags = env::var(variable).unwrap_or_default();
    format!("{flags} -D warnings").trim_start().to_owned()
}

fn require(component: &str, subcommand: &str) -> Result<(), String> {
    let mut probe = cargo();
    probe
        .args([subcommand, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if probe.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    Err(format!(
        "{component} is not installed; `rustup component add {component}` does that"
    ))
}

/// The cargo that runs this, so that `cargo +toolchain xtask` means that toolchain throughout.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_step(args: &[&str]) -> Vec<String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        STEPS
            .iter()
            .filter(|step| step.name == "test")
            .flat_map(|step| step.commands.iter().map(move |command| (step, command)))
            .flat_map(|(step, command)| arguments(step, command, &args))
            .collect()
    }

    #[test]
    fn a_named_package_narrows_the_tests() {
        assert_eq!(
            test_step(&["-p", "a"]),
            ["test", "--all-features", "--tests", "-p", "a"]
        );
        assert!(test_step(&["name", "--", "-p"]).contains(&"--workspace".to_owned()));
    }

    #[test]
    fn an_unknown_step_is_answered_with_the_known_ones() {
        assert!(
            selected(Some("tests")).is_err_and(|message| message.contains("fmt, clippy, features, test"))
        );
        assert!(selected(None).is_ok_and(|steps| steps.len() == STEPS.len()));
    }
}
