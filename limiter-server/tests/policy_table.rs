//! The guide from a policy table in SQL: its statements and commands move a table to a server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::process::{Command, Stdio};

use serde_json::json;
use support::admin::{AdminClient, policy, with_database};
use support::databases::{Database, execute, texts};
use support::server::{Directory, Server, run};

const PAGE: &str = include_str!("../../docs/guide/from-policy-table.md");

/// Rows with all forms of the columns: a name with characters to escape; no app, one app and two.
const ROWS: [&str; 2] = [
    r#"INSERT INTO rate_policy VALUES
        ('search', 'checkout,mobile', 20, 10, 'ann', '2024-02-01 10:00:00', 'dave', '2025-06-30 15:04:05'),
        ('with "quotes" \ and spaces', '', 5, 1, 'ann', '2024-02-02 00:00:00', 'ann', '2024-02-02 00:00:00'),
        ('mail', 'checkout', 7, 3, 'dave', '2024-12-31 23:59:59', 'eve', '2025-01-01 00:00:00')"#,
    "INSERT INTO app_member VALUES ('ann', 'checkout', 'owner'), ('bob', 'mobile', 'viewer')",
];

/// The code blocks of the page in a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = if language == "toml" {
        "```toml\n"
    } else {
        "```sql\n"
    };
    let blocks = PAGE.split(fence).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The indented block of the page whose first line starts with this text.
fn commands(start: &str) -> String {
    let start = format!("    {start}");
    let lines = PAGE.lines().skip_while(|line| !line.starts_with(&start));
    let unindented = |line: &'static str| match line {
        "" => Some(""),
        line => line.strip_prefix("    "),
    };
    let block: Vec<&str> = lines.map_while(unindented).collect();
    assert!(!block.is_empty(), "{start}");
    block.join("\n").trim_end().to_owned()
}

/// The statements that create the tables of the page and fill them.
fn tables() -> Vec<String> {
    let create = blocks("sql")[0];
    assert!(create.starts_with("CREATE TABLE rate_policy"), "{create}");
    let rows = ROWS.map(str::to_owned);
    // A comment contains a semicolon.
    let create = create.split_inclusive(");\n");
    let create = create.map(|of| of.trim().trim_end_matches(';').to_owned());
    create.chain(rows).collect()
}

fn export() -> &'static str {
    let export = blocks("sql")[1];
    assert!(export.starts_with("SELECT"), "{export}");
    export
}

/// Runs commands of the page in a shell.
fn shell(directory: &Directory, commands: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new("sh")
        .args(["-euc", commands])
        .envs(variables.iter().copied())
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{commands}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The variables with which `psql` connects to a database of a URL.
fn connection(url: &str) -> [(&'static str, String); 5] {
    let (_, rest) = url.split_once('@').unwrap();
    let (host, database) = rest.split_once('/').unwrap();
    let (host, port) = host.split_once(':').unwrap();
    [
        ("PGHOST", host.to_owned()),
        ("PGPORT", port.to_owned()),
        ("PGUSER", "postgres".to_owned()),
        ("PGDATABASE", database.to_owned()),
        ("PGTZ", "UTC".to_owned()),
    ]
}

/// The policies of the rows pass `check`, and the first one is that of the page.
fn require_policies(directory: &Directory) {
    let path = directory.path().join("policies.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (code, output, errors) = run(&["check", path.to_str().unwrap()]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{text}");
    assert!(output.contains("policies: 3, rules: 0"), "{output}");
    let example = blocks("toml")[0];
    assert!(text.contains(example), "{example}\n{text}");
    assert!(
        text.contains(r#"[policy."with \"quotes\" \\ and spaces"]"#),
        "{text}"
    );
}

#[test]
fn table_of_sqlite_is_exported() {
    let (database, directory) = (Database::sqlite(), Directory::new());
    let url = database.create("limits.db");
    let path = url.strip_prefix("sqlite:").unwrap();
    std::fs::File::create(path).unwrap();
    execute(&url, &tables());
    // The shell of SQLite ends each row with a line feed, too.
    let rows = texts(&url, export()).into_iter().map(|row| row + "\n");
    directory.write("policies.toml", &rows.collect::<String>());
    require_policies(&directory);
}

/// `cargo xtask server --all` installs MariaDB.
#[cfg(feature = "slow-tests")]
#[test]
fn table_of_mariadb_is_exported() {
    let (database, directory) = (Database::mariadb(), Directory::new());
    let url = database.create("limits");
    let (_, socket) = url.split_once("?socket=").unwrap();
    let mode = "SET SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES';\n";
    directory.write("tables.sql", &format!("{mode}{};\n", tables().join(";\n")));
    directory.write("export.sql", export());
    directory.write(".my.cnf", &format!("[client]\nuser=root\nsocket={socket}\n"));
    let home = directory.path().to_str().unwrap().to_owned();
    let variables = [("HOME", home.as_str())];
    shell(&directory, "mariadb limits < tables.sql", &variables);
    let commands = commands("psql -At -f export.sql");
    let (_, command) = commands.split_once("\nmariadb").unwrap();
    shell(&directory, &format!("mariadb{command}"), &variables);
    require_policies(&directory);
}

/// The table, its roles and bounds move to a server whose users edit the policies. Then a second
/// server is filled by `policy apply`.
#[test]
fn table_of_postgres_moves_to_a_server() {
    let (database, directory) = (Database::postgres(), Directory::new());
    let url = database.create("limits");
    execute(&url, &tables());
    directory.write("export.sql", export());
    let connection = connection(&url);
    let variables = connection.each_ref().map(|(name, value)| (*name, value.as_str()));
    let psql = commands("psql -At -f export.sql");
    shell(&directory, psql.lines().next().unwrap(), &variables);
    require_policies(&directory);
    let policies = directory.path().join("policies.toml");
    let policies = policies.to_str().unwrap();

    let own = Directory::new();
    let own_url = format!("sqlite:{}", own.path().join("limiter.db").display());
    let server = with_database(own, &own_url, &["--policies", policies]);
    let root = AdminClient::set_up(&server);
    require_imported(&root, "ui");
    require_roles(&server, &root, &directory, &variables);

    let other = directory.path().join("other.db");
    let other_url = format!("sqlite:{}", other.display());
    let apply = |more: &[&str]| {
        let args = ["policy", "apply", "-f", policies, "--database", &other_url];
        run(&[&args, more].concat())
    };
    let (code, _, errors) = apply(&["--author", "dave"]);
    assert_eq!(code, Some(0), "{errors}");
    let repeated = apply(&["--dry-run"]);
    assert_eq!((repeated.0, repeated.1.as_str()), (Some(0), "no changes\n"));
    // The table is still in use, and `policy apply` shows and saves its changes only.
    execute(
        &url,
        &["UPDATE rate_policy SET capacity = 30 WHERE name = 'search'".to_owned()],
    );
    shell(&directory, psql.lines().next().unwrap(), &variables);
    let (code, output, _) = apply(&["--dry-run"]);
    assert_eq!(code, Some(2), "{output}");
    let shown = commands("$ limiter-server policy apply -f policies.toml --dry-run");
    let (_, shown) = shown.split_once('\n').unwrap();
    // The page has no spaces at the ends of lines.
    let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
    assert_eq!(lines, shown.lines().collect::<Vec<_>>());
    assert_eq!(apply(&[]).0, Some(0));
    let (code, exported, errors) = run(&["policy", "export", "--database", &other_url]);
    assert_eq!(code, Some(0), "{errors}");
    for expected in ["capacity = 30", "mail", "apps = [\"checkout\", \"mobile\"]"] {
        assert!(exported.contains(expected), "{expected}: {exported}");
    }
}

/// The policies of the table are saved with their authors and times.
fn require_imported(root: &AdminClient, managed_by: &str) {
    let found = root.get("/namespaces/default/policies/search").json();
    assert_eq!(found["revision"], 1, "{found}");
    assert_eq!(found["managed_by"], managed_by, "{found}");
    let toml = found["toml"].as_str().unwrap();
    for expected in [
        "capacity = 20\n",
        "rate = \"10/s\"\n",
        "apps = [\"checkout\", \"mobile\"]\n",
    ] {
        assert!(toml.contains(expected), "{expected}: {toml}");
    }
    let times = |name: &str| found[name].as_i64().unwrap() / 1_000_000;
    assert_eq!(
        (&found["created_by"], &found["updated_by"]),
        (&json!("ann"), &json!("dave"))
    );
    assert_eq!(
        (times("created_at"), times("updated_at")),
        (1_706_781_600, 1_751_295_845)
    );
    let names = root.get("/namespaces/default/policies").body;
    for name in ["mail", r#"with \"quotes\" \\ and spaces"#] {
        assert!(names.contains(name), "{names}");
    }
}

/// The commands of the page grant the roles of `app_member`, and set the bounds of editors.
fn require_roles(server: &Server, root: &AdminClient, directory: &Directory, variables: &[(&str, &str)]) {
    let body = json!({ "name": "move", "scopes": ["admin:admin"] });
    let created = root.send("POST", "/namespaces/default/tokens", &[], &body).json();
    let secret = created["secret"].as_str().unwrap();
    let address = server.admin().to_string();
    let grants = commands("api=http://").replace("127.0.0.1:8082", &address);
    let (api, _) = grants.split_once('\n').unwrap();
    let bounds = format!("{api}\n{}", commands("curl -fsS -X PUT \"$api/apps/checkout\""));
    let with_token = [variables, &[("TOKEN", secret)]].concat();
    shell(directory, &grants, &with_token);
    shell(directory, &bounds, &with_token);
    let found = root.get("/namespaces/default/grants").json();
    let mut grants: Vec<[&str; 3]> = found["grants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| ["subject", "app", "role"].map(|field| of[field].as_str().unwrap_or("-")))
        .collect();
    grants.sort_unstable();
    assert_eq!(
        grants,
        [["ann", "checkout", "owner"], ["bob", "mobile", "viewer"]],
        "{found}"
    );
    let found = root.get("/namespaces/default/apps").json();
    let mut apps = found["apps"].as_array().unwrap().iter();
    let checkout = apps.find(|of| of["name"] == "checkout").unwrap();
    assert_eq!(
        checkout["bounds"],
        json!({ "max_capacity": 1_000, "max_rate": "500/s" })
    );
    // The owner of one app changes its policies, and none of two apps.
    let ann = root.add_user("ann", &[]);
    let status = |name: &str| ann.put_policy(name, 1, &policy(name, 9, "checkout")).status;
    assert_eq!(status("mail"), 200);
    assert_eq!(status("search"), 403);
}
