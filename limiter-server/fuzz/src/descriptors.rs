//! Requests of Envoy: messages survive their encoding, and descriptors find their rules.

use limiter_core::registry::PolicyRegistry;
use prost::Message;

use crate::gateway::envoy::messages::RateLimitRequest;
use crate::gateway::rules::RuleSet;
use crate::rules::check_pair;

const POLICIES: &str = r#"
[policy.a]
algorithm = "token_bucket"
capacity = 5
rate = "1/h"

[[rule]]
match = ["a"]
policy = "a"

[[rule]]
domain = "o"
match = ["b=x*", "..."]
policy = "a"

[[rule]]
match = ["b=x*", "a"]
policy = "a"
share = true

[[rule]]
match = ["a", "b"]
policy = "a"
settle = true
"#;

/// Decodes a message and finds the limits of its descriptors, with rules and without.
pub fn check(bytes: &[u8]) {
    let Ok(request) = RateLimitRequest::decode(bytes) else {
        return;
    };
    let encoded = request.encode_to_vec();
    assert_eq!(
        RateLimitRequest::decode(encoded.as_slice()).as_ref(),
        Ok(&request)
    );
    let registry = PolicyRegistry::from_toml(POLICIES).expect("valid policies");
    let sets = [RuleSet::new(registry.rules()), RuleSet::default()];
    for set in &sets {
        for pair in request.descriptors.windows(2) {
            if let [one, other] = pair {
                check_pair(set, &request.domain, &one.entries, &other.entries);
            }
        }
        if let Some(only) = request.descriptors.last() {
            check_pair(set, &request.domain, &only.entries, &[]);
        }
    }
}
