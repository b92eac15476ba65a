//! Policies, as pages read them.

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links;
use crate::admin::pages::views::{PolicySummary, PolicyView, SummaryListView};

/// Returns all policies that the user may read.
pub(super) async fn all_policies(
    caller: &PageCaller,
    environment: &str,
) -> Result<Vec<PolicySummary>, PageFailure> {
    let mut policies = Vec::new();
    let mut after = String::new();
    loop {
        let path = links::api(environment, &["policies"]);
        let path = format!("{path}?brief=true&limit=1000&after={}", links::encode(&after));
        let page: SummaryListView = caller.api.get(&path).await?;
        policies.extend(page.policies);
        match page.next {
            Some(next) => after = next,
            None => return Ok(policies),
        }
    }
}

/// Reads a policy that is not deleted.
pub(super) async fn read(
    caller: &PageCaller,
    environment: &str,
    name: &str,
) -> Result<PolicyView, PageFailure> {
    caller.require_environment(environment)?;
    caller
        .api
        .get(&links::api(environment, &["policies", name]))
        .await
}
