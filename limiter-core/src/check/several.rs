//! Checks and peeks of several limits as one decision.
//!
//! In process, two to four limits are decided without a request if the fast step can decide all of
//! them; otherwise they become a [`DecisionRequest`](crate::request::DecisionRequest) that borrows
//! their keys. Tests: `tests/contract/groups.rs`, `tests/entry_points.rs`.

use std::task::Poll;

use crate::algorithm::Mode;
use crate::check::Check;
use crate::decision::{Decision, Rejection};
use crate::limiter::Limiter;
use crate::observe::{self, ReportedLimit};
use crate::request::{IdentifiedLimit, LimitRequest};
use crate::support::one_or_many::OneOrMany;

impl Limiter {
    /// Requests permits of several limits as one decision: either all are charged or none.
    ///
    /// The keys must share a group (the same key, or [`Key::in_group`](crate::Key::in_group)), so
    /// that one node of a cluster can decide them.
    /// [`InProcessBuilder::standalone_only`](crate::InProcessBuilder::standalone_only) removes this
    /// requirement.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let burst = Policy::token_bucket("burst").capacity(5).rate(1).build()?;
    /// let daily = Policy::sliding_window("daily").limit(2).window("1d").build()?;
    /// let both = [(&burst, "ann"), (&daily, "ann")];
    ///
    /// limits.check_all(both).cost(2).await?.require()?;
    /// let denied = limits.check_all(both).await?;
    /// assert_eq!(denied.denied_by().unwrap().policy().name(), "daily");
    /// assert_eq!(limits.peek(&burst, "ann").await?.remaining(), 3, "a denial charges nothing");
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and [`Rejection::Config`](crate::Rejection::Config) for no limit,
    /// for more than 16, for keys of different groups, and for one policy with one key twice.
    pub fn check_all<'a, A: Into<LimitRequest<'a>>>(
        &'a self,
        requests: impl IntoIterator<Item = A>,
    ) -> Check<'a> {
        Check::new(self, requests.into_iter().map(Into::into), Mode::Charge)
    }

    pub(crate) fn check_one_or_many<'a>(&'a self, requests: OneOrMany<LimitRequest<'a>>) -> Check<'a> {
        Check::of(self, requests, Mode::Charge)
    }

    /// Returns the decision that [`check_all`](Self::check_all) would make now, and charges
    /// nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn peek_all<'a, A: Into<LimitRequest<'a>>>(
        &'a self,
        requests: impl IntoIterator<Item = A>,
    ) -> Check<'a> {
        Check::new(self, requests.into_iter().map(Into::into), Mode::Peek)
    }
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        limiter: &'a Limiter,
        requests: impl IntoIterator<Item = LimitRequest<'a>>,
        mode: Mode,
    ) -> Self {
        Self::of(limiter, requests.into_iter().collect(), mode)
    }
}

impl Check<'_> {
    /// Decides several limits: in process without a request, if the fast step suffices. The number
    /// of limits is a constant of the fast step, so that it needs no tables on the heap.
    pub(super) fn try_decide_several(
        &self,
        limits: &[LimitRequest<'_>],
    ) -> Poll<Result<Decision, Rejection>> {
        let decided = match limits.len() {
            2 => self.try_decide_several_fast::<2>(limits),
            3 => self.try_decide_several_fast::<3>(limits),
            4 => self.try_decide_several_fast::<4>(limits),
            _ => None,
        };
        match decided {
            Some(decision) => Poll::Ready(Ok(decision)),
            None => self.try_decide_together(),
        }
    }

    /// Decides `N` limits by the fast step, if it can decide all of them.
    #[inline(never)]
    fn try_decide_several_fast<const N: usize>(&self, limits: &[LimitRequest<'_>]) -> Option<Decision> {
        let limiter = &self.limiter.inner;
        if !self.limiter.is_in_process() || self.limiter.open().is_err() {
            return None;
        }
        let limits = IdentifiedLimit::identify_all::<N>(limits.first_chunk()?, limiter.any_groups)?;
        let decision = limiter.backend.try_decide_several_fast(&limits, self.mode)?;
        let answer = Ok(decision);
        let policies = limits
            .iter()
            .map(|limit| ReportedLimit::without_key(limit.policy));
        observe::record_call(None, policies, self.mode, &answer);
        answer.ok()
    }
}
