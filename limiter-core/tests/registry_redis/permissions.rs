//! The permissions of users of Redis that follow a registry.

use super::*;

/// A user with no more permissions than these, on the keys of this namespace.
fn user(server: &RedisServer, namespace: &str, permissions: &[&str]) -> String {
    let keys = format!("~{namespace}|*");
    let user = ["ACL", "SETUSER", "checkout", "reset", "on", ">secret", &keys];
    server.command(&[&user, permissions].concat());
    server.url_as("checkout:secret")
}

fn refused(server: &RedisServer) -> usize {
    server.command(&["ACL", "LOG"]).items().len()
}

#[tokio::test]
async fn limiter_permissions_suffice_for_registry() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let url = user(&server, &namespace, acl::SCRIPT);
    let replicas = [(); 2].map(|()| Replica::new(Limiter::redis(&url), &namespace));
    let [one, other] = &replicas;
    let revision = one.store.publish(&sized(2), 0).await.unwrap();
    other.has(2, SOON).await;
    one.store.publish(&sized(3), revision).await.unwrap();
    other.has(3, SOON).await;
    assert!(refused(&server) > 0, "the subscription is refused");
}

#[tokio::test]
async fn pubsub_permissions_deliver_changes_at_once() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let channel = format!("&{namespace}|book");
    // Before Redis 7 a new user may use all channels.
    let more = [acl::SCRIPT, acl::REGISTRY, &["resetchannels", &channel]].concat();
    let url = user(&server, &namespace, &more);
    let replica = Replica::new(Limiter::redis(&url), &namespace);
    let listens = || async {
        let subscribers = || {
            let result = server.command(&["PUBSUB", "NUMSUB", &format!("{namespace}|book")]);
            result.items().last().unwrap().integer()
        };
        let listening = async {
            while subscribers() == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(secs(5), listening).await.unwrap();
    };
    listens().await;
    let other = Limiter::redis(&url).namespace(&namespace).build().unwrap();
    let store = other.redis_registry().unwrap();
    let revision = store.publish(&sized(2), 0).await.unwrap();
    replica.has(2, SOON).await;
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    listens().await;
    store.publish(&sized(3), revision).await.unwrap();
    replica.has(3, SOON).await;
    assert_eq!(refused(&server), 0);
}
