//! Policies of several tests.

/// The policy `search`, a bucket.
pub(crate) const SEARCH: &str = "policy.search = { algorithm = 'token_bucket', capacity = 5, rate = 1 }\n";

/// The policy `edge`, which allows two calls in each hour.
pub(crate) const EDGE: &str = "
[policy.edge]
algorithm = 'sliding_window'
limit = 2
window = '1h'
";

/// The policy `search` with this number of calls in each hour, and its rule.
pub(crate) fn search_per_hour(limit: u32) -> String {
    format!(
        "[policy.search]\nalgorithm = 'sliding_window'\nlimit = {limit}\nwindow = '1h'\n\n\
         [[rule]]\nmatch = ['search']\npolicy = 'search'\n"
    )
}
