//! The steps of `test` and `ci`, in order, the quick ones first.

use std::env;
use std::process::Stdio;

use crate::commands::{Strictness, cargo, root, succeed};
use crate::{faults, fuzz, msrv, redis, server, tidy};

/// A step of the checks, which can be run alone by its name.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    work: Action,
    needs: Requirement,
}

/// The action of a step.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// These commands of cargo.
    Cargo(&'static [&'static [&'static str]]),
    /// A function of its own.
    Chore(fn(Strictness) -> Result<(), String>),
}

#[derive(Debug, Clone, Copy)]
enum Requirement {
    Nothing,
    /// A component of the toolchain: its name, and the subcommand of cargo it provides.
    Component(&'static str, &'static str),
    Redis,
}

pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        purpose: "the code is formatted",
        work: Action::Cargo(&[
            &["fmt", "--all", "--check"],
            &["fmt", "--check", "--manifest-path", "tools/fuzz/Cargo.toml"],
            &[
                "fmt",
                "--check",
                "--manifest-path",
                "limiter-server/fuzz/Cargo.toml",
            ],
            &[
                "fmt",
                "--all",
                "--check",
                "--manifest-path",
                "tools/limiter-bench/Cargo.toml",
            ],
            &[
                "fmt",
                "--all",
                "--check",
                "--manifest-path",
                "limiter-server/Cargo.toml",
            ],
        ]),
        needs: Requirement::Component("rustfmt", "fmt"),
    },
    Step {
        name: "tidy",
        purpose: "layers, names, words and widths; `cargo xtask tidy --update` lowers the baseline",
        work: Action::Chore(|_| tidy::run(&[])),
        needs: Requirement::Nothing,
    },
    Step {
        name: "clippy",
        purpose: "the lints are silent",
        work: Action::Cargo(&[&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ]]),
        needs: Requirement::Component("clippy", "clippy"),
    },
    Step {
        name: "features",
        purpose: "the libraries build without their default features, and the lints are silent",
        work: Action::Cargo(&[
            &[
                "clippy",
                "-p",
                "limiter-core",
                "--no-default-features",
                "--",
                "-D",
                "warnings",
            ],
            &[
                "clippy",
                "-p",
                "limiter-core",
                "--no-default-features",
                "--features",
                "registry",
                "--",
                "-D",
                "warnings",
            ],
            &[
                "clippy",
                "-p",
                "limiter-redisson",
                "--no-default-features",
                "--",
                "-D",
                "warnings",
            ],
            &[
                "clippy",
                "-p",
                "limiter-tower",
                "--no-default-features",
                "--",
                "-D",
                "warnings",
            ],
        ]),
        needs: Requirement::Component("clippy", "clippy"),
    },
    Step {
        name: "test",
        purpose: "unit and integration tests, against Redis servers of their own",
        work: Action::Cargo(&[&["test", "--workspace", "--all-features", "--tests"]]),
        needs: Requirement::Redis,
    },
    Step {
        name: "doctest",
        purpose: "the examples in the documentation",
        work: Action::Cargo(&[&["test", "--workspace", "--all-features", "--doc"]]),
        needs: Requirement::Redis,
    },
    Step {
        name: "doc",
        purpose: "the documentation builds without a warning",
        work: Action::Cargo(&[&["doc", "--workspace", "--no-deps", "--all-features"]]),
        needs: Requirement::Nothing,
    },
    Step {
        name: "msrv",
        purpose: "the oldest compilers that the libraries and the server declare are sufficient",
        work: Action::Chore(msrv::run),
        needs: Requirement::Nothing,
    },
    Step {
        name: "server",
        purpose: "lints and tests of limiter-server, also behind Envoy and with an independent client",
        work: Action::Chore(server::run_in_ci),
        needs: Requirement::Redis,
    },
    Step {
        name: "faults",
        purpose: "faults are survived; `cargo xtask faults` runs more of them, for longer",
        work: Action::Chore(faults::run_in_ci),
        needs: Requirement::Redis,
    },
    Step {
        name: "fuzz",
        purpose: "arbitrary input for some seconds; `cargo xtask fuzz` takes longer",
        work: Action::Chore(fuzz::run_in_ci),
        needs: Requirement::Nothing,
    },
];

/// The selected steps: all, or only those with these names.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) only: Vec<String>,
    pub(crate) test_args: Vec<String>,
    pub(crate) strictness: Strictness,
}

/// Runs the steps until one fails.
pub(crate) fn run(plan: &Plan) -> Result<(), String> {
    let steps = selected(&plan.only)?;
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
        Requirement::Nothing => {}
        Requirement::Component(component, subcommand) => require(component, subcommand)?,
        Requirement::Redis => redis::ensure()?,
    }
    match step.work {
        Action::Chore(chore) => chore(plan.strictness),
        Action::Cargo(commands) => commands
            .iter()
            .map(|command| arguments(step, command, &plan.test_args))
            .try_for_each(|args| execute(plan, step.name, &args)),
    }
}

fn selected(only: &[String]) -> Result<Vec<&'static Step>, String> {
    let is_step = |name: &&String| STEPS.iter().any(|step| step.name == *name);
    if let Some(unknown) = only.iter().find(|name| !is_step(name)) {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!(
            "no step `{unknown}`, expected one of {}",
            names.join(", ")
        ));
    }
    let is_selected = |step: &&Step| only.is_empty() || only.iter().any(|name| name == step.name);
    Ok(STEPS.iter().filter(is_selected).collect())
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
    let mut command = cargo();
    command
        .args(args)
        .current_dir(root())
        // Tests build crates that have no profile of ours: those of trybuild, and one outside of
        // the workspace.
        .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
        .env("RUSTDOCFLAGS", denying_warnings("RUSTDOCFLAGS"));
    if plan.strictness == Strictness::DenyWarnings {
        command.env("RUSTFLAGS", denying_warnings("RUSTFLAGS"));
    }
    succeed(command, step)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn test_step(args: &[&str]) -> Vec<String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        STEPS
            .iter()
            .filter(|step| step.name == "test")
            .flat_map(|step| match step.work {
                Action::Cargo(commands) => commands.iter().map(|command| (step, command)).collect(),
                Action::Chore(_) => Vec::new(),
            })
            .flat_map(|(step, command)| arguments(step, command, &args))
            .collect()
    }

    #[test]
    fn package_argument_narrows_the_tests() {
        assert_eq!(
            test_step(&["-p", "a"]),
            ["test", "--all-features", "--tests", "-p", "a"]
        );
        assert!(test_step(&["name", "--", "-p"]).contains(&"--workspace".to_owned()));
    }

    #[test]
    fn error_of_unknown_step_lists_known_steps() {
        assert!(
            selected(&["fmt".to_owned(), "tests".to_owned()])
                .is_err_and(|message| message.contains("fmt, tidy, clippy, features, test"))
        );
        assert!(selected(&[]).is_ok_and(|steps| steps.len() == STEPS.len()));
    }
}
