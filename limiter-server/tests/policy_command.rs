//! The commands `policy` and `user`, on a database without a running server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::io::Write as _;
use std::process::Stdio;

use support::server::{Directory, command, run};

const POLICIES: &str = "
[policy.search]
algorithm = 'token_bucket'
capacity = 5
rate = '1/s'

[policy.mail]
algorithm = 'token_bucket'
capacity = 7
rate = '1/s'
";

/// A directory with a database and policy files.
struct Workspace(Directory);

impl Workspace {
    fn new() -> Self {
        Self(Directory::new())
    }

    fn policy(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let url = format!("sqlite:{}", self.0.path().join("limiter.db").display());
        let database = ["--database", url.as_str()];
        run(&[&["policy"], args, &database].concat())
    }

    fn apply(&self, text: &str, args: &[&str]) -> (Option<i32>, String, String) {
        let path = self.0.write("policies.toml", text);
        let path = path.to_str().unwrap().to_owned();
        self.policy(&[&["apply", "-f", &path], args].concat())
    }
}

#[test]
fn dry_run_prints_the_diff_and_exits_with_2() {
    let workspace = Workspace::new();
    let (code, output, errors) = workspace.apply("", &[]);
    assert_eq!((code, output.as_str()), (Some(0), "no changes\n"), "{errors}");
    let (code, output, errors) = workspace.apply(POLICIES, &["--dry-run"]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        output.contains("create policy search") && output.contains("+capacity = 5"),
        "{output}"
    );
    let (code, output, _) = workspace.policy(&["export"]);
    assert_eq!(code, Some(0));
    assert!(!output.contains("search"), "a dry run changes nothing: {output}");

    let (code, _, errors) = workspace.apply(POLICIES, &[]);
    assert_eq!(code, Some(0), "{errors}");
    let (code, output, _) = workspace.apply(POLICIES, &["--dry-run"]);
    assert_eq!((code, output.as_str()), (Some(0), "no changes\n"));
    let changed = POLICIES.replace("capacity = 5", "capacity = 6");
    let (code, output, _) = workspace.apply(&changed, &["--dry-run"]);
    assert_eq!(code, Some(2));
    assert!(output.contains("-capacity = 5\n+capacity = 6"), "{output}");
    assert!(!output.contains("mail"), "{output}");
}

/// The output is that of `apply --dry-run`: a title and a difference for each change.
#[test]
fn diff_prints_changes_and_saves_none() {
    let workspace = Workspace::new();
    let diff = |text: &str, args: &[&str]| {
        let path = workspace.0.write("changed.toml", text);
        workspace.policy(&[&["diff", "-f", path.to_str().unwrap()], args].concat())
    };
    let rule = "[[rule]]\ndomain = 'edge'\nmatch = ['route=mail']\npolicy = 'mail'\n";
    let (code, _, errors) = workspace.apply(POLICIES, &[]);
    assert_eq!(code, Some(0), "{errors}");
    let (code, output, errors) = diff(POLICIES, &[]);
    assert_eq!((code, output.as_str()), (Some(0), "no changes\n"), "{errors}");

    let (_, mail) = POLICIES.split_once("[policy.mail]").unwrap();
    let new =
        format!("[policy.mail]{mail}[policy.upload]{mail}{rule}").replace("capacity = 7", "capacity = 8");
    let (code, output, errors) = diff(&new, &[]);
    assert_eq!((code, errors.as_str()), (Some(2), ""), "{output}");
    for part in [
        "change policy mail\n",
        "-capacity = 7\n+capacity = 8\n",
        "create policy upload\n",
        "+[policy.\"upload\"]\n",
        "delete policy search\n",
        "-[policy.\"search\"]\n",
        "change rules\n",
        "+policy = \"mail\"\n",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(
        exported.contains("capacity = 5")
            && exported.contains("capacity = 7")
            && !exported.contains("upload"),
        "{exported}"
    );

    // Policies of another owner, and a file with errors.
    let (code, output, errors) = diff(&new, &["--managed-by", "other"]);
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert!(
        errors.contains("mail") && errors.contains("--take-over"),
        "{errors}"
    );
    let (code, output, errors) = diff("[policy.mail]\ncapacity = 'x'\n", &[]);
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert!(errors.contains("changed.toml:"), "{errors}");
}

/// The note is a part of the file, and users cannot edit it in the UI.
#[test]
fn changed_note_is_applied() {
    let workspace = Workspace::new();
    let with_note = |note: &str| POLICIES.replace("capacity = 5", &format!("capacity = 5\nnote = '{note}'"));
    let (code, _, errors) = workspace.apply(&with_note("before"), &[]);
    assert_eq!(code, Some(0), "{errors}");
    let (code, output, errors) = workspace.apply(&with_note("after"), &["--dry-run"]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        output.contains("-note = \"before\"\n+note = \"after\""),
        "{output}"
    );
    let (code, _, errors) = workspace.apply(&with_note("after"), &[]);
    assert_eq!(code, Some(0), "{errors}");
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(exported.contains("note = \"after\""), "{exported}");
    let (_, output, _) = workspace.apply(&exported, &[]);
    assert_eq!(output, "no changes\n");
    // The note of another owner stays.
    let (code, output, errors) = workspace.apply(&with_note("other"), &["--managed-by", "other"]);
    assert_eq!((code, output.as_str()), (Some(0), "no changes\n"), "{errors}");
}

/// Owners are a column of 255 characters in MySQL and MariaDB.
#[test]
fn owner_that_a_database_cannot_store_is_rejected() {
    let workspace = Workspace::new();
    for owner in [&"o".repeat(256), "", "a\nb", " git"] {
        let (code, _, errors) = workspace.apply(POLICIES, &["--managed-by", owner]);
        assert_eq!(code, Some(2), "{owner}");
        assert!(
            errors.contains("--managed-by") && errors.contains("1 to 255 bytes"),
            "{errors}"
        );
    }
    let (code, _, errors) = workspace.apply(POLICIES, &["--managed-by", &"o".repeat(255)]);
    assert_eq!(code, Some(0), "{errors}");
}

#[test]
fn commands_that_read_create_no_database() {
    let workspace = Workspace::new();
    let file = workspace.0.write("policies.toml", POLICIES);
    let file = file.to_str().unwrap();
    let path = workspace.0.path().join("limiter.db");
    for args in [
        &["diff", "-f", file][..],
        &["apply", "-f", file, "--dry-run"],
        &["export"],
        &["rollback", "search"],
    ] {
        let (code, output, errors) = workspace.policy(args);
        assert_eq!((code, output.as_str()), (Some(1), ""), "{args:?}: {errors}");
        assert!(errors.contains("there is no database"), "{args:?}: {errors}");
        assert!(!path.exists(), "{args:?}");
    }
    // A database of another program.
    std::fs::write(&path, "").unwrap();
    let (code, _, errors) = workspace.policy(&["export"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("there is no database"), "{errors}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

/// The authors in the lines of the audit.
fn authors(errors: &str) -> Vec<String> {
    let lines = errors
        .lines()
        .map(|line| line.parse::<serde_json::Value>().unwrap());
    let authors = lines.map(|line| line.get("actor").unwrap().as_str().unwrap().to_owned());
    authors.collect()
}

#[test]
fn author_of_commands_is_named_or_the_user_of_the_system() {
    let workspace = Workspace::new();
    let (code, _, errors) = workspace.apply(POLICIES, &["--author", "ann"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(authors(&errors), ["command:ann", "command:ann"]);
    let changed = POLICIES.replace("capacity = 5", "capacity = 6");
    let path = workspace.0.write("policies.toml", &changed);
    let url = format!("sqlite:{}", workspace.0.path().join("limiter.db").display());
    let mut apply = command();
    apply.args([
        "policy",
        "apply",
        "-f",
        path.to_str().unwrap(),
        "--database",
        &url,
    ]);
    // A service has no variables of a user.
    let output = apply.env_remove("USER").env_remove("SUDO_USER").output().unwrap();
    let user = std::process::Command::new("id").arg("-un").output().unwrap();
    let user = String::from_utf8(user.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(authors(&errors), [format!("command:{}", user.trim())]);
    let (code, _, errors) = workspace.policy(&["rollback", "search", "--author", "a\nb"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("control characters"), "{errors}");
}

#[test]
fn apply_deletes_its_own_policies_and_refuses_those_of_others() {
    let workspace = Workspace::new();
    let (code, _, errors) = workspace.apply(POLICIES, &["--managed-by", "ui"]);
    assert_eq!(code, Some(0), "{errors}");
    let changed = POLICIES.replace("capacity = 5", "capacity = 6");
    let (code, _, errors) = workspace.apply(&changed, &[]);
    assert_eq!(code, Some(1));
    assert!(
        errors.contains("search") && errors.contains("--take-over"),
        "{errors}"
    );
    assert!(
        !errors.contains("mail"),
        "an equal policy is no conflict: {errors}"
    );
    let (code, _, errors) = workspace.apply(&changed, &["--take-over"]);
    assert_eq!(code, Some(0), "{errors}");
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(exported.contains("capacity = 6"), "{exported}");

    let (one, _) = changed.split_once("[policy.mail]").unwrap();
    let (code, output, _) = workspace.apply(one, &[]);
    assert_eq!(code, Some(0));
    assert!(output.contains("delete policy mail"), "{output}");
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(!exported.contains("mail"), "{exported}");
}

#[test]
fn file_without_policies_deletes_none() {
    let workspace = Workspace::new();
    assert_eq!(workspace.apply(POLICIES, &[]).0, Some(0));
    for args in [&[][..], &["--dry-run"]] {
        let (code, _, errors) = workspace.apply("# nothing\n", args);
        assert_eq!(code, Some(1));
        assert!(errors.contains("--delete-all"), "{errors}");
    }
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(exported.contains("mail"), "{exported}");
    let (code, output, errors) = workspace.apply("# nothing\n", &["--delete-all"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(output.contains("delete policy mail"), "{output}");
}

#[test]
fn policy_that_a_rule_names_is_not_deleted() {
    let workspace = Workspace::new();
    let rule = "[[rule]]\ndomain = 'edge'\nmatch = ['route=mail']\npolicy = 'mail'\n";
    let (code, _, errors) = workspace.apply(&format!("{POLICIES}\n{rule}"), &[]);
    assert_eq!(code, Some(0), "{errors}");
    let (one, _) = POLICIES.split_once("[policy.mail]").unwrap();
    let (code, _, errors) = workspace.apply(one, &[]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("rule") && errors.contains("mail"), "{errors}");
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(exported.contains("mail"), "{exported}");
    let other = rule.replace("policy = 'mail'", "policy = 'search'");
    let (code, _, errors) = workspace.apply(&format!("{one}\n{other}"), &[]);
    assert_eq!(code, Some(0), "{errors}");
}

#[test]
fn exported_file_applies_without_changes() {
    let workspace = Workspace::new();
    let rules =
        format!("{POLICIES}\n[[rule]]\ndomain = 'edge'\nmatch = ['route=search']\npolicy = 'search'\n");
    let (code, _, errors) = workspace.apply(&rules, &[]);
    assert_eq!(code, Some(0), "{errors}");
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(exported.contains("route=search"), "{exported}");
    let (code, output, _) = workspace.apply(&exported, &["--dry-run"]);
    assert_eq!((code, output.as_str()), (Some(0), "no changes\n"));
}

#[test]
fn rollback_restores_an_earlier_revision() {
    let workspace = Workspace::new();
    workspace.apply(POLICIES, &[]);
    workspace.apply(&POLICIES.replace("capacity = 5", "capacity = 6"), &[]);
    let (code, output, errors) = workspace.policy(&["rollback", "search", "--reason", "a test"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(output, "search: revision 3\n");
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(exported.contains("capacity = 5"), "{exported}");
    let (code, _, errors) = workspace.policy(&["rollback", "search", "--to", "9"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("no text of revision 9"), "{errors}");
}

#[test]
fn users_are_managed_without_a_server() {
    let workspace = Workspace::new();
    let url = format!("sqlite:{}", workspace.0.path().join("limiter.db").display());
    let user = |args: &[&str], input: &str| {
        let mut child = command()
            .arg("user")
            .args(args)
            .args(["--database", &url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(user(&["add", "ann", "--admin"], "short\n").0, Some(1));
    assert_eq!(
        user(&["add", "ann", "--admin"], "correct horse battery\n").0,
        Some(0)
    );
    assert_eq!(user(&["list"], "").1, "ann\tadmin\tenabled\n");
    assert_eq!(
        user(&["remove", "ann"], "").0,
        Some(1),
        "the last administrator stays"
    );
}

#[test]
fn tokens_are_managed_without_a_server() {
    let workspace = Workspace::new();
    assert_eq!(workspace.apply(POLICIES, &[]).0, Some(0));
    let url = format!("sqlite:{}", workspace.0.path().join("limiter.db").display());
    let token = |args: &[&str]| run(&[&["token"], args, &["--database", &url]].concat());
    let list = || token(&["list"]).1;
    assert_eq!(list(), "");
    let wrong = token(&["issue", "--name", "ci", "--scope", "admin:root"]);
    assert_eq!(wrong.0, Some(1));
    assert!(wrong.2.contains("scope `admin:root` is unknown"), "{}", wrong.2);
    let (code, secret, errors) = token(&[
        "issue",
        "--name",
        "ci",
        "--scope",
        "check:*",
        "--scope",
        "admin:viewer",
    ]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(secret.starts_with("lim_"), "{secret}");
    let listed = list();
    let fields: Vec<&str> = listed.trim_end().split('\t').collect();
    assert_eq!(fields[1..3], ["ci", "valid"], "{listed}");
    assert_eq!(fields[4], "check:* admin:viewer", "{listed}");
    assert!(!listed.contains(secret.trim_end()));
    let id = fields[0].to_owned();

    let (code, other, errors) = token(&["rotate", &id, "--overlap", "0"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_ne!(other, secret);
    let listed = list();
    let states: Vec<(&str, &str)> = listed
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .map(|fields| (fields[0], fields[2]))
        .collect();
    assert_eq!(states.len(), 2, "{listed}");
    assert!(states.contains(&(id.as_str(), "revoked")), "{listed}");
    let current = states.iter().find(|(_, state)| *state == "valid").unwrap().0;
    assert_eq!(token(&["revoke", current]).0, Some(0));
    assert!(!list().contains("valid"), "{}", list());
    let (code, _, errors) = token(&["revoke", current]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("`token list` lists all"), "{errors}");
}

/// Suspensions and blocks of a file replace those of the same scope or keys; others stay.
#[test]
fn apply_adds_suspensions_blocks_and_quotas() {
    const OVERLAYS: &str = "
[[suspend]]
scope = 'policy:search'
enforcement = 'deny'
until = 2100-01-01T00:00:00Z
reason = 'broken client'

[[suspend]]
scope = 'policy:mail'
enforcement = 'off'
until = 2001-01-01T00:00:00Z

[[block]]
key = 'eve'

[[override]]
policy = 'search'
key = 'ann'
capacity = 9
rate = '9/s'
until = 2100-01-01T00:00:00Z
";
    let workspace = Workspace::new();
    assert_eq!(workspace.apply("", &[]).0, Some(0));
    let file = format!("{POLICIES}{OVERLAYS}");
    let (code, output, errors) = workspace.apply(&file, &["--dry-run"]);
    assert_eq!(code, Some(2), "{errors}");
    assert!(
        output.contains("change suspensions and blocks") && output.contains("+scope = \"policy:search\""),
        "{output}"
    );
    assert!(
        !workspace.policy(&["export"]).1.contains("suspend"),
        "a dry run changes nothing"
    );
    let (code, _, errors) = workspace.apply(&file, &[]);
    assert_eq!(code, Some(0), "{errors}");
    let (_, exported, _) = workspace.policy(&["export"]);
    for part in ["broken client", "eve", "capacity = 9"] {
        assert!(exported.contains(part), "{exported}");
    }
    assert!(
        !exported.contains("policy:mail"),
        "an ended suspension is not added: {exported}"
    );
    let (code, output, _) = workspace.apply(&file, &["--dry-run"]);
    assert_eq!((code, output.as_str()), (Some(0), "no changes\n"));

    let changed = format!(
        "{POLICIES}[[suspend]]\nscope = 'policy:search'\nenforcement = 'shadow'\nuntil = 2100-01-01T00:00:00Z\n"
    );
    assert_eq!(workspace.apply(&changed, &[]).0, Some(0));
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(
        exported.contains("shadow") && !exported.contains("broken client") && exported.contains("eve"),
        "{exported}"
    );
}

/// Every policy that cannot be saved is reported, and the others are not saved either.
#[test]
fn apply_saves_all_changes_or_none() {
    let workspace = Workspace::new();
    let bucket = "[policy.jobs]\nalgorithm = 'token_bucket'\ncapacity = 3\nrate = '1/s'\n";
    let concurrency = "[policy.jobs]\nalgorithm = 'concurrency'\nmax = 3\n";
    let rule = "[[rule]]\nmatch = ['route=jobs']\npolicy = 'jobs'\n";
    let (code, _, errors) = workspace.apply(&format!("{POLICIES}{bucket}{rule}"), &[]);
    assert_eq!(code, Some(0), "{errors}");
    // The rule of the database does not fit to the new policy.
    let changed = POLICIES.replace("capacity = 7", "capacity = 8");
    let (code, _, errors) = workspace.apply(&format!("{changed}{concurrency}"), &[]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("nothing was saved"), "{errors}");
    let (_, exported, _) = workspace.policy(&["export"]);
    assert!(
        exported.contains("capacity = 7") && !exported.contains("concurrency"),
        "{exported}"
    );
}

/// As `limiter-server policy apply … | head -1`.
#[test]
fn closed_output_does_not_stop_apply() {
    let workspace = Workspace::new();
    let (code, _, errors) = workspace.policy(&["export"]);
    assert_eq!(code, Some(1), "no database yet: {errors}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let file = workspace.0.write("policies.toml", POLICIES);
    let url = format!("sqlite:{}", workspace.0.path().join("limiter.db").display());
    let mut apply = command();
    apply
        .args(["policy", "apply", "--database", &url, "-f"])
        .arg(file);
    let output = apply.stdout(writer).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let (code, output, errors) = workspace.policy(&["export"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(output.contains("search") && output.contains("mail"), "{output}");
}
