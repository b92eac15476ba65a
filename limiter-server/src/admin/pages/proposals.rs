//! Open proposals. A change of the policy closes them, because a proposal replaces the revision
//! that its author read; the forms of such changes state it.

use crate::admin::numbers::count;
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links;
use crate::admin::pages::views::{PolicyView, ProposalListView, ProposalView};

/// Returns the open proposals that the user may read.
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

impl ProposalView {
    /// Returns whether the proposal replaces this revision of the policy.
    pub(super) fn replaces(&self, policy: &str, revision: i64) -> bool {
        self.name == policy && self.base == revision
    }
}

/// Returns a sentence about the proposals that a saved change of a policy closes; `None` without
/// one.
pub(super) fn closed_by_change(proposals: &[ProposalView], policy: &PolicyView) -> Option<String> {
    closed(proposals, |of| of.replaces(&policy.name, policy.revision))
}

/// Returns a sentence about the proposals that a saved change closes; `None` without one.
pub(super) fn closed(
    proposals: &[ProposalView],
    is_closed: impl Fn(&ProposalView) -> bool,
) -> Option<String> {
    let closed = proposals.iter().filter(|of| is_closed(of)).count();
    sentence(closed, "open proposal")
}

/// Returns a sentence about the other proposals that an approval closes; `None` without one.
pub(super) fn closed_by_approval(proposals: &[ProposalView], approved: &ProposalView) -> Option<String> {
    let replaces_same = |of: &&ProposalView| of.replaces(&approved.name, approved.base);
    let others = proposals.iter().filter(|of| of.id != approved.id);
    sentence(others.filter(replaces_same).count(), "other open proposal")
}

fn sentence(closed: usize, noun: &str) -> Option<String> {
    let verb = if closed == 1 { "has" } else { "have" };
    (closed > 0).then(|| {
        format!(
            "When the change is saved, {} can no longer be approved and {verb} to be made again.",
            count(closed, noun)
        )
    })
}
