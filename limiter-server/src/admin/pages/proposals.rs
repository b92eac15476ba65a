//! Open proposals. A change of the policy closes them, because a proposal replaces the revision
//! that its author read; the forms of such changes state it.

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::count;
use crate::admin::pages::links;
use crate::admin::pages::views::{PolicyView, ProposalListView, ProposalView};

/// The open proposals that the user may read.
pub(super) async fn open(caller: &PageCaller, environment: &str) -> Result<Vec<ProposalView>, PageFailure> {
    let mut proposals = Vec::new();
    let mut after = String::new();
    loop {
        let path = links::api(environment, &["proposals"]);
        let page: ProposalListView = caller.api.get(&format!("{path}?limit=1000{after}")).await?;
        proposals.extend(page.proposals);
        match page.next {
            Some(next) => after = format!("&after={}", links::encode(&next)),
            None => return Ok(proposals),
        }
    }
}

/// A sentence about the proposals that a saved change of a policy closes; `None` without one.
pub(super) fn closed_by_change(proposals: &[ProposalView], policy: &PolicyView) -> Option<String> {
    let is_closed = |of: &&ProposalView| of.name == policy.name && of.base == policy.revision;
    let closed = proposals.iter().filter(is_closed).count();
    let verb = if closed == 1 { "has" } else { "have" };
    (closed > 0).then(|| {
        format!(
            "When the change is saved, {} can no longer be approved and {verb} to be made again.",
            count(closed, "open proposal")
        )
    })
}
