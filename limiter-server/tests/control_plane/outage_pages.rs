//! Pages without the database: recent sessions read the policies in force.

use limiter_testing::RedisServer;
use serde_json::json;

use crate::support::admin::{AdminClient, Credentials, policy, with_database};
use crate::support::databases::Database;
use crate::support::http;
use crate::support::server::{Directory, Server, wait_until};

const COMMAND: &str = "limiter-server kill policy:NAME";

fn revision_in_force(server: &Server, name: &str) -> Option<String> {
    let body = json!({ "policy": name, "key": "ann" }).to_string();
    let answer = http::post(server.http(), "/v1/peek", &[], &body).ok()?;
    (answer.status == 200).then_some(answer.body)
}

/// A server with two policies in force and a rule, its database, an administrator and a viewer.
fn with_policies(redis: &RedisServer, database: &Database) -> (Server, AdminClient, AdminClient) {
    let (url, redis_url) = (database.create("outage"), redis.url());
    let server = with_database(Directory::new(), &url, &["--redis", &redis_url]);
    let root = AdminClient::set_up(&server);
    let viewer = root.add_user("vera", &[("shop", "viewer")]);
    for (name, app) in [("search", "shop"), ("secret", "bank")] {
        assert_eq!(root.put_policy(name, 0, &policy(name, 5, app)).status, 200);
        wait_until(|| revision_in_force(&server, name).is_some(), || server.log());
    }
    (server, root, viewer)
}

#[test]
fn recent_session_reads_policies_without_the_database() {
    let (redis, database) = (RedisServer::start(), Database::postgres());
    let (server, root, viewer) = with_policies(&redis, &database);
    assert_eq!(viewer.page("/e/default/apps/shop").status, 200);
    assert_eq!(root.page("/e/default/apps").status, 200);
    drop(database);
    wait_until(
        || root.page("/e/default/apps").body.contains("Read-only"),
        || server.log(),
    );

    for path in ["/", "/e/default/now", "/e/default/apps", "/settings"] {
        let page = root.page(path);
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        for part in [
            "Read-only",
            "search",
            "secret",
            "bursts of 5",
            COMMAND,
            "in force in default to root",
        ] {
            assert!(page.body.contains(part), "{path}: {part}: {}", page.body);
        }
    }
    let page = root.page("/e/default/policies/search");
    assert!(page.body.contains("capacity = 5"), "{}", page.body);
    assert_eq!(root.page("/e/default/policies/none").status, 404);
    assert_eq!(root.page("/e/other/apps").status, 404);

    // A viewer of one app reads its policies only.
    let page = viewer.page("/e/default/apps").body;
    assert!(page.contains("search") && !page.contains("secret"), "{page}");
    assert_eq!(viewer.page("/e/default/policies/secret").status, 404);

    // Others see a static page with the command.
    let stranger = Credentials::Session("limiter=none".to_owned());
    for credentials in [Credentials::None, stranger] {
        let page = AdminClient::new(server.admin(), credentials).page("/e/default/apps");
        assert_eq!(page.status, 503, "{}", page.body);
        assert!(
            page.body.contains(COMMAND) && !page.body.contains("search"),
            "{}",
            page.body
        );
    }

    // Changes are refused, by the pages and by the API.
    let host = server.admin().to_string();
    let Credentials::Session(cookie) = &root.credentials else {
        panic!("a session");
    };
    let headers = [
        ("host", host.as_str()),
        ("cookie", cookie.as_str()),
        ("sec-fetch-site", "same-origin"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-length", "0"),
    ];
    let line = "POST /e/default/policies/search/save";
    let refused = http::send(server.admin(), line, &headers, "").unwrap();
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("Nothing was changed"), "{}", refused.body);
    let refused = root.put_policy("search", 1, &policy("search", 6, "shop"));
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("does not answer"), "{}", refused.body);

    // Without Redis too, the policies are not known.
    redis.kill();
    let page = root.page("/e/default/apps");
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(page.body.contains("not known"), "{}", page.body);
}

#[test]
fn pages_are_complete_again_when_the_database_answers() {
    let (redis, mut database) = (RedisServer::start(), Database::postgres());
    let (server, root, _) = with_policies(&redis, &database);
    database.stop();
    wait_until(
        || root.page("/e/default/apps").body.contains("Read-only"),
        || server.log(),
    );
    database.start();
    wait_until(
        || !root.page("/e/default/apps").body.contains("Read-only"),
        || server.log(),
    );
    assert_eq!(
        root.put_policy("search", 1, &policy("search", 6, "shop")).status,
        200
    );
}
