//! What callers see when Redis is refused, gone, slow, or answers with an error: a typed outcome within the deadline.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use limiter_core::{Limiter, OnStoreFailure, Origin, Policy, Rejection, StoreErrorKind};
use limiter_testing::RedisServer;
use support::{PATIENT, namespace};

/// What a loaded machine may add to a deadline.
const SLACK: Duration = Duration::from_millis(500);

fn policy(answer: OnStoreFailure) -> Policy {
    Policy::token_bucket("p")
        .capacity(100)
        .rate(1)
        .on_store_failure(answer)
        .build()
        .unwrap()
}

/// The same, for calls that must succeed, however busy the machine is.
fn patient() -> Policy {
    Policy::token_bucket("p")
        .capacity(100)
        .rate(1)
        .deadline(PATIENT)
        .build()
        .unwrap()
}

fn limiter(url: impl Into<String>) -> Limiter {
    Limiter::redis(url).namespace(namespace()).build().unwrap()
}

/// Asks under each answer to a failure, and says of which kind the failure was.
async fn fails_as_the_policy_says(limits: &Limiter) -> StoreErrorKind {
    let started = Instant::now();
    let Err(Rejection::Unavailable(error)) = limits.check(&policy(OnStoreFailure::Error), "k").await else {
        panic!("an error was asked for");
    };
    let open = limits.check(&policy(OnStoreFailure::Allow), "k").await.unwrap();
    assert_eq!(
        (open.is_allowed(), open.origin(), open.remaining()),
        (true, Origin::FailedOpen, 0)
    );
    assert_eq!(open.store_error().unwrap().kind(), error.kind());
    let closed = limits.check(&policy(OnStoreFailure::Deny), "k").await.unwrap();
    assert_eq!(
        (closed.is_allowed(), closed.origin(), closed.retry_after()),
        (false, Origin::FailedClosed, None)
    );
    assert!(matches!(closed.require(), Err(Rejection::Unavailable(_))));
    assert!(
        started.elapsed() < 3 * Policy::DEFAULT_DEADLINE + SLACK,
        "{:?}",
        started.elapsed()
    );
    error.kind()
}

#[tokio::test]
async fn a_refused_connection_is_an_answer_at_once() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let limits = limiter(format!("redis://{free}/"));
    assert_eq!(
        fails_as_the_policy_says(&limits).await,
        StoreErrorKind::Connection
    );
    assert_eq!(
        limits.ready().await.unwrap_err().kind(),
        StoreErrorKind::Connection
    );
    let waited = limits
        .acquire(&policy(OnStoreFailure::Deny), "k")
        .up_to(Duration::from_secs(60))
        .await;
    assert!(
        matches!(waited, Err(Rejection::Unavailable(_))),
        "nobody knows when the store comes back: {waited:?}"
    );
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_a_timeout() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let limits = limiter(format!("redis://{}/", silent.local_addr().unwrap()));
    assert_eq!(fails_as_the_policy_says(&limits).await, StoreErrorKind::Timeout);
}

#[tokio::test]
async fn a_stopped_server_is_a_timeout_and_calls_go_on_when_it_goes_on() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
    server.pause();
    let mut told = Vec::new();
    for _ in 0..5 {
        told.push(fails_as_the_policy_says(&limits).await);
    }
    assert_eq!(told.first(), Some(&StoreErrorKind::Timeout));
    // Soon the server is not asked any more, but by one call at a time.
    assert!(told.contains(&StoreErrorKind::CircuitOpen), "{told:?}");
    server.resume();
    answers_again(&limits, Duration::from_millis(500)).await;
}

/// Waits until a call is decided.
async fn answers_again(limits: &Limiter, within: Duration) {
    let policy = policy(OnStoreFailure::Error);
    let answered = async {
        while limits.check(&policy, "k").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(within + SLACK, answered).await.unwrap();
}

#[tokio::test]
async fn callers_without_patience_find_a_black_holed_connection_out_too() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    server.pause();
    let policy = policy(OnStoreFailure::Error);
    for _ in 0..10 {
        let _ = tokio::time::timeout(Duration::from_millis(20), limits.check(&policy, "k")).await;
    }
    server.resume();
    answers_again(&limits, Duration::from_millis(500)).await;
}

#[test]
fn a_limiter_outlives_the_runtime_that_used_it_first() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = policy(OnStoreFailure::Error);
    let in_a_runtime_of_its_own = |future: std::pin::Pin<Box<dyn Future<Output = ()> + '_>>| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(future);
    };
    // The first runtime ends while it dials.
    server.pause();
    in_a_runtime_of_its_own(Box::pin(async {
        assert!(limits.check(&policy, "k").await.is_err());
    }));
    server.resume();
    for left in [99, 98, 97] {
        in_a_runtime_of_its_own(Box::pin(async {
            assert_eq!(limits.check(&patient(), "k").await.unwrap().remaining(), left);
        }));
    }
}

#[test]
fn several_runtimes_use_a_limiter_at_a_time() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = patient();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    for _ in 0..30 {
                        assert!(limits.check(&policy, "k").await.unwrap().is_allowed());
                    }
                });
            });
        }
    });
    let info = server.command(&["INFO", "stats"]).text().to_owned();
    let line = info
        .lines()
        .find(|line| line.starts_with("total_connections_received"))
        .unwrap();
    let received: u64 = line.split_once(':').unwrap().1.parse().unwrap();
    // Two for each runtime, one to look.
    assert!(received <= 3 * 2 + 1, "{received}");
}

#[test]
fn without_a_runtime_there_is_an_answer_and_no_panic_in_process() {
    let limits = Limiter::in_process().build();
    let policy = policy(OnStoreFailure::Error);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut check = std::pin::pin!(limits.check(&policy, "k").into_future());
    assert!(check.as_mut().poll(&mut context).is_ready());
}

#[tokio::test]
async fn a_demoted_server_is_left_for_the_one_behind_the_same_address() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = patient();
    assert!(limits.check(&policy, "k").await.unwrap().is_allowed());
    let connections = || {
        let info = server.command(&["INFO", "stats"]).text().to_owned();
        let line = info
            .lines()
            .find(|line| line.starts_with("total_connections_received"))
            .unwrap()
            .to_owned();
        line.split_once(':').unwrap().1.parse::<u64>().unwrap()
    };
    let before = connections();
    // A replica of a server that does not exist: it refuses writes.
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused_for = std::time::Instant::now();
    while refused_for.elapsed() < Duration::from_millis(600) {
        let Err(Rejection::Unavailable(error)) = limits.check(&policy, "k").await else {
            panic!("a replica cannot decide");
        };
        assert_eq!(error.kind(), StoreErrorKind::Refused);
    }
    let dialled = connections() - before;
    assert!(
        (1..=12).contains(&dialled),
        "dialled anew, but not for each call: {dialled}"
    );
    server.command(&["REPLICAOF", "NO", "ONE"]);
    answers_again(&limits, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn the_permissions_that_calls_need_suffice_to_be_ready() {
    let server = RedisServer::start();
    let commands = [
        "+evalsha",
        "+eval",
        "+time",
        "+get",
        "+set",
        "+getrange",
        "+setrange",
        "+strlen",
        "+exists",
        "+del",
    ];
    let mut user = vec![
        "ACL", "SETUSER", "limiter", "on", ">secret", "~team|*", "+hello", "+client", "+pexpire",
    ];
    user.extend(commands);
    server.command(&user);
    let limits = Limiter::redis(server.url().replace("redis://", "redis://limiter:secret@"))
        .prefix("team|app:")
        .namespace("n")
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    for policy in [
        patient(),
        Policy::sliding_window("w")
            .limit(300)
            .window("1m")
            .deadline(PATIENT)
            .build()
            .unwrap(),
    ] {
        assert!(limits.check(&policy, "k").await.unwrap().is_allowed());
        assert!(limits.check(&policy, "k").cost(90).await.unwrap().is_allowed());
        limits.reset(&policy, "k").await.unwrap();
    }
}

#[tokio::test]
async fn a_killed_server_is_an_error_and_a_restarted_one_is_used_at_once() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = patient();
    for _ in 0..10 {
        assert!(limits.check(&policy, "k").await.unwrap().is_allowed());
    }
    server.kill();
    assert_eq!(
        fails_as_the_policy_says(&limits).await,
        StoreErrorKind::Connection
    );
    server.restart();
    assert_eq!(
        limits.check(&policy, "k").await.unwrap().remaining(),
        99,
        "the server kept no data"
    );
    // The connection tells that the server hung up as soon as its task has run; until then a call fails.
    server.kill();
    server.restart();
    answers_again(&limits, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn an_error_of_the_server_is_refused_and_charges_nothing() {
    let server = RedisServer::builder()
        .arg("maxmemory", "1")
        .arg("maxmemory-policy", "noeviction")
        .start();
    assert_eq!(
        fails_as_the_policy_says(&limiter(server.url())).await,
        StoreErrorKind::Refused
    );
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let decision = limiter(server.url()).check(&patient(), "k").await.unwrap();
    assert_eq!(decision.remaining(), 99);
}

#[tokio::test]
async fn a_wrong_password_is_told_without_telling_the_password() {
    let server = RedisServer::builder().arg("requirepass", "right").start();
    let limits = limiter(server.url().replace("redis://", "redis://:wrong@"));
    let Err(Rejection::Unavailable(error)) = limits.check(&patient(), "k").await else {
        panic!("an error was asked for");
    };
    let told = format!("{error} {error:?} {limits:?}");
    assert!(
        told.contains("WRONGPASS") || told.contains("AuthenticationFailed"),
        "{told}"
    );
    assert!(!told.contains(":wrong@") && !told.contains("\"wrong\""), "{told}");
    let limits = limiter(server.url().replace("redis://", "redis://:right@"));
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_lost_script_is_brought_along_again() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    for left in (0..100).rev() {
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(limits.check(&patient(), "k").await.unwrap().remaining(), left);
    }
}

#[tokio::test]
async fn the_deadline_is_the_policys() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let limits = limiter(format!("redis://{}/", silent.local_addr().unwrap()));
    let patient = Policy::funnel("p")
        .capacity(1)
        .rate(1)
        .deadline(Duration::from_millis(300))
        .build()
        .unwrap();
    let started = Instant::now();
    assert!(limits.check(&patient, "k").await.is_err());
    let waited = started.elapsed();
    assert!(
        waited >= Duration::from_millis(300) && waited < Duration::from_millis(300) + SLACK,
        "{waited:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_neither_hang_the_connection_nor_break_it() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    let clients = |server: &RedisServer| {
        let info = server.command(&["INFO", "stats"]).text().to_owned();
        let line = info
            .lines()
            .find(|line| line.starts_with("total_connections_received"))
            .unwrap()
            .to_owned();
        line.split_once(':').unwrap().1.parse::<u64>().unwrap()
    };
    let before = clients(&server);
    for _ in 0..500 {
        let policy = policy(OnStoreFailure::Error);
        tokio::select! {
            biased;
            _ = limits.check(&policy, "k") => {}
            () = tokio::task::yield_now() => {}
        }
    }
    assert!(
        limits
            .check(&policy(OnStoreFailure::Error), "other")
            .await
            .unwrap()
            .is_allowed()
    );
    // Ours for INFO, and at most the pool's second connection.
    assert!(
        clients(&server) - before <= 2,
        "a cancelled call costs no connection"
    );
}

#[tokio::test]
async fn a_pool_of_the_application_lends_its_settings_and_keeps_its_connections() {
    let server = RedisServer::start();
    let manager = bb8_redis::RedisConnectionManager::new(server.url()).unwrap();
    let pool = bb8_redis::bb8::Pool::builder()
        .max_size(1)
        .build(manager)
        .await
        .unwrap();
    let _taken = pool.get().await.unwrap();
    let limits = Limiter::redis_pool(pool.clone())
        .namespace(namespace())
        .build()
        .unwrap();
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
    server.kill();
    server.restart();
    // Such a connection is found to be dead by the first call on it.
    for _ in 0..2 {
        let _ = limits.check(&patient(), "k").await;
    }
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_limiter_is_built_without_a_server_and_bad_settings_are_named() {
    assert!(
        Limiter::redis("redis://127.0.0.1:1/")
            .namespace("n")
            .build()
            .is_ok()
    );
    for (built, message) in [
        (
            Limiter::redis("redis://127.0.0.1:1/").build(),
            "namespace is missing",
        ),
        (
            Limiter::redis("redis://127.0.0.1:1/").namespace("").build(),
            "namespace is ``",
        ),
        (
            Limiter::redis("http://user:secret@h/").namespace("n").build(),
            "redis URL is `http://…@h/`",
        ),
        (
            Limiter::redis("redis://127.0.0.1:1/")
                .namespace("n")
                .connections(0)
                .build(),
            "connections is `0`",
        ),
        (
            Limiter::redis_cluster(Vec::<String>::new())
                .namespace("n")
                .build(),
            "a URL of a cluster node is missing",
        ),
        (
            Limiter::redis_cluster(["redis://h:1/"])
                .namespace("n")
                .standalone_only()
                .build(),
            "standalone_only",
        ),
    ] {
        let told = built.unwrap_err().to_string();
        assert!(told.contains(message), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
}
