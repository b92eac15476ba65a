use limiter_testing::RedisServer;

use crate::algorithm::Mode;
use crate::error::StoreErrorKind;
use crate::policy::Policy;
use crate::redis::client::connection::Asking;
use crate::redis::script::wire::ScriptInput;
use crate::redis::*;
use crate::request::LimitRequest;
use crate::units::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

fn request<'a>(requests: impl IntoIterator<Item = LimitRequest<'a>>) -> DecisionRequest<'a> {
    DecisionRequest::new(requests, Mode::Charge, true).unwrap()
}

/// Runs several decisions in one call of the script, each on the keys that its limits' policies
/// name.
async fn run(server: &RedisServer, requests: &[&DecisionRequest<'_>]) -> Vec<Result<Verdict, StoreError>> {
    let node = crate::redis::node::tests::node_of(server);
    let namespace = Namespace::new("", "");
    let inputs = requests.iter().map(|request| {
        let mut input = ScriptInput::new(request, Operation::Check, &namespace);
        let names = request.limits.iter().map(|limit| limit.policy.name().to_owned());
        input.keys = names.collect();
        input
    });
    let inputs: Vec<_> = inputs.collect();
    let items: Vec<_> = inputs.iter().map(|input| (input, 1)).collect();
    let call = crate::redis::script::wire::call(&items, Some(NOW), Duration::from_secs(5));
    let verdicts =
        crate::redis::script::reply::verdicts(&node.try_run(&call, Asking::Omitted).await.unwrap(), &items)
            .unwrap();
    verdicts.into_iter().flatten().collect()
}

#[tokio::test]
async fn unreadable_key_fails_only_its_own_decision() {
    let server = RedisServer::start();
    let bucket = |name: &str| Policy::token_bucket(name).capacity(5).rate(1).build().unwrap();
    let window = |name: &str| {
        Policy::sliding_window(name)
            .limit(5)
            .window("1m")
            .build()
            .unwrap()
    };
    let [good, list, text, other, out_of_range] =
        ["good", "list", "text", "other", "out_of_range"].map(bucket);
    let [ring, torn] = ["ring", "torn"].map(window);
    server.command(&["RPUSH", "list", "x"]);
    server.command(&["SET", "text", "not ours"]);
    server.command(&["SET", "torn", "\u{1}\u{3}"]);
    // The maximum `keep_until` of 2^53 + 1, which Lua rounds to 2^53 and would store again.
    let value = "struct.pack('<BBI8I8I8I8', 1, 1, 1000, 0, 0, 1) .. '\\1\\0\\0\\0\\0\\0\\32\\0'";
    server.command(&[
        "EVAL",
        &format!("redis.call('SET', 'out_of_range', {value})"),
        "0",
    ]);

    let single = |policy| request([LimitRequest::new(policy, "k")]);
    let several = request([
        LimitRequest::new(&other, "k"),
        LimitRequest::new(&ring, "k"),
        LimitRequest::new(&list, "k"),
    ]);
    let (first, second, third, fourth) = (single(&good), single(&list), single(&text), single(&torn));
    let fifth = single(&out_of_range);
    let verdicts = run(
        &server,
        &[&first, &second, &several, &third, &fourth, &fifth, &first],
    )
    .await;

    let results: Vec<_> = verdicts
        .iter()
        .map(|verdict| match verdict {
            Ok(verdict) => Ok(verdict
                .outcomes
                .iter()
                .map(|outcome| outcome.remaining)
                .collect::<Vec<_>>()),
            Err(error) => Err(error.kind()),
        })
        .collect();
    let (wrong, unknown) = (Err(StoreErrorKind::WrongType), Err(StoreErrorKind::UnknownLayout));
    // The same key twice: the second decision includes the charge of the first.
    assert_eq!(
        results,
        [
            Ok(vec![4_000]),
            wrong.clone(),
            wrong,
            unknown.clone(),
            unknown.clone(),
            unknown,
            Ok(vec![3_000])
        ]
    );
    assert_eq!(
        server.command(&["EXISTS", "other", "ring"]).integer(),
        0,
        "a failed decision charges nothing"
    );
    assert_eq!(server.command(&["GET", "text"]).text(), "not ours");
}

#[tokio::test]
async fn batch_decides_as_single_calls() {
    let server = RedisServer::start();
    let bucket = Policy::token_bucket("b").capacity(3).rate(1).build().unwrap();
    let ring = Policy::sliding_window("r").limit(2).window("1m").build().unwrap();
    let both = request([LimitRequest::new(&bucket, "k"), LimitRequest::new(&ring, "k")]);
    let alone = request([LimitRequest::new(&bucket, "k")]);
    let verdicts = run(&server, &[&both, &both, &both, &alone, &alone]).await;
    let allowed: Vec<bool> = verdicts
        .iter()
        .map(|verdict| verdict.as_ref().unwrap().outcomes.iter().all(|o| o.fits))
        .collect();
    assert_eq!(allowed, [true, true, false, true, false]);
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.as_ref().unwrap().decided_at == NOW)
    );
}
