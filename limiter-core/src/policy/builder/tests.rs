use crate::policy::builder::*;

#[test]
fn error_names_value_and_expectation() {
    let cases = [
        (
            Policy::token_bucket("p").rate(1).build(),
            "policy `p`: capacity is missing",
        ),
        (
            Policy::token_bucket("p").capacity(1).build(),
            "policy `p`: rate is missing",
        ),
        (
            Policy::token_bucket("p").capacity(-1).rate(1).build(),
            "amount is `-1`",
        ),
        (
            Policy::token_bucket("p").capacity(f64::NAN).rate(1).build(),
            "amount is `NaN`",
        ),
        (
            Policy::token_bucket("p").capacity(0).rate(1).build(),
            "capacity is `0`",
        ),
        (
            Policy::token_bucket("p").capacity(u64::MAX).rate(1).build(),
            "capacity is `18446744073709551615`",
        ),
        (
            Policy::token_bucket("p")
                .capacity(1_000_000_000_u64)
                .rate("1/30d")
                .build(),
            "fills within 142 years",
        ),
        (Policy::funnel("p").capacity(1).rate("10").build(), "rate is `10`"),
        (
            Policy::sliding_window("p").limit(0.5).window("1s").build(),
            "limit is `0.5`",
        ),
        (
            Policy::sliding_window("p").limit(1).window("10").build(),
            "duration is `10`",
        ),
        (
            Policy::sliding_window("p")
                .limit(1)
                .window(Duration::ZERO)
                .build(),
            "window is `0ns`",
        ),
        (
            Policy::sliding_window("p").limit(2_000_000).window("1s").build(),
            "limit is `2000000`",
        ),
        (
            Policy::sliding_window("p")
                .limit(1)
                .window("1s")
                .lease("1s")
                .build(),
            "lease is `1s`, expected none for an exact window",
        ),
        (
            Policy::funnel("p")
                .capacity(1)
                .rate(1)
                .paced()
                .lease("1s")
                .build(),
            "lease is `1s`, expected none for a paced funnel",
        ),
        (
            Policy::token_bucket("p").capacity(1).rate(1).paced().build(),
            "paced policy is `token bucket`, expected a funnel",
        ),
        (
            Policy::funnel("p").capacity(1).rate(1).lease("1ms").build(),
            "lease is `1ms`, expected 10 ms to an hour",
        ),
        (
            Policy::concurrency("p")
                .max(1)
                .on_denial(OnDenial::Degrade)
                .build(),
            "on_denial is `degrade`, expected `reject` or a wait for a concurrency policy",
        ),
        (
            Policy::concurrency("p").max(1).penalty("1 in 1m: 1m").build(),
            "penalty is `given`, expected none for a concurrency policy",
        ),
        (
            Policy::sliding_window("").limit(1).window("1s").build(),
            "policy name is ``",
        ),
        (
            Policy::sliding_window("p")
                .limit(1)
                .window("1s")
                .deadline(Duration::ZERO)
                .build(),
            "deadline is `0ns`",
        ),
    ];
    for (policy, message) in cases {
        let error = policy.expect_err(message).to_string();
        assert!(error.contains(message), "{error}");
    }
}
