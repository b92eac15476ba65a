//! The participation of the limits of a call in its decision.
//!
//! A decision contains no outcome for limits that were not decided (off, key lists), and shadow
//! limits are charged in a request of their own. Two bit sets record these limits by their position
//! in the request, so that a settlement and `Decision::outcome_at` find the outcome of each limit.
//! Tests: below, and `tests/contract/settlement.rs`.

use crate::decision::{Decision, LimitOutcome};

/// The participation of one limit in the decision of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Participation {
    /// The decision's origin decided it, and charged it if the call was allowed.
    AsDecided,
    /// As `AsDecided`, in shadow mode.
    InShadow,
    /// It is part of the decision but was not charged with the other limits, because it is in
    /// shadow mode.
    Apart,
    /// It is not part of the decision: the store was not queried for it.
    Absent,
}

/// The participation of a call's limits, by position in the request. In nearly all calls every
/// limit is `AsDecided`; both bits of a limit denote `InShadow`. A call can exceed the maximum
/// number of limits of one decision only if some are not enforced; the limits beyond the maximum
/// count as absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Participations {
    apart: u16,
    absent: u16,
}

impl Participations {
    /// Creates the participation of this number of limits, all of them absent.
    pub(crate) fn absent(count: usize) -> Self {
        let mut parts = Self::default();
        (0..count).for_each(|number| parts.set(number, Participation::Absent));
        parts
    }

    pub(crate) fn get(self, number: usize) -> Participation {
        match bit(number) {
            None => Participation::Absent,
            Some(bit) => match (self.apart & bit != 0, self.absent & bit != 0) {
                (false, false) => Participation::AsDecided,
                (true, true) => Participation::InShadow,
                (true, false) => Participation::Apart,
                (false, true) => Participation::Absent,
            },
        }
    }

    pub(crate) fn set(&mut self, number: usize, part: Participation) {
        let Some(bit) = bit(number) else { return };
        self.apart &= !bit;
        self.absent &= !bit;
        match part {
            Participation::AsDecided => {}
            Participation::InShadow => {
                self.apart |= bit;
                self.absent |= bit;
            }
            Participation::Apart => self.apart |= bit,
            Participation::Absent => self.absent |= bit,
        }
    }
}

/// The number of limits that both sets record.
const MAX_LIMITS: usize = 16;

fn bit(number: usize) -> Option<u16> {
    1_u16.checked_shl(u32::try_from(number).ok()?)
}

impl Decision {
    /// Returns the index in [`limits`](Self::limits) of the limit at this position of the request,
    /// if it was decided.
    pub(crate) fn index_of(&self, number: usize) -> Option<usize> {
        let stands = |number: usize| self.parts.get(number) != Participation::Absent;
        stands(number).then(|| (0..number).filter(|before| stands(*before)).count())
    }

    /// Returns whether the limit at this index of [`limits`](Self::limits) was decided in shadow
    /// mode: that of its policy, of the limiter, or of a suspension.
    pub(crate) fn is_in_shadow(&self, index: usize) -> bool {
        let parts = (0..MAX_LIMITS).map(|number| self.parts.get(number));
        let mut parts = parts.filter(|part| *part != Participation::Absent);
        matches!(
            parts.nth(index),
            Some(Participation::InShadow | Participation::Apart)
        )
    }

    /// Returns the outcome of the limit at this position of the request; `None` for a limit that
    /// was not decided, because it is off, a key list allows its key, or the store was unavailable.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Enforcement, Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let off = Policy::token_bucket("off").capacity(1).rate(1).enforcement(Enforcement::Off).build()?;
    /// let on = Policy::token_bucket("on").capacity(9).rate(1).build()?;
    /// let decision = limits.check_all([(&off, "ann"), (&on, "ann")]).await?;
    /// assert!(decision.outcome_at(0).is_none());
    /// assert_eq!(decision.outcome_at(1).unwrap().remaining().whole(), 8);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn outcome_at(&self, position: usize) -> Option<&LimitOutcome> {
        self.limits.get(self.index_of(position)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::decision::participation::*;

    #[test]
    fn each_limit_has_its_own_participation() {
        let mut parts = Participations::default();
        for (number, part) in [
            (0, Participation::Apart),
            (3, Participation::Absent),
            (5, Participation::InShadow),
            (15, Participation::Apart),
            (16, Participation::Apart),
        ] {
            parts.set(number, part);
        }
        parts.set(15, Participation::Absent);
        let expected = |number| match number {
            0 => Participation::Apart,
            3 | 15.. => Participation::Absent,
            5 => Participation::InShadow,
            _ => Participation::AsDecided,
        };
        for number in 0..40 {
            assert_eq!(parts.get(number), expected(number), "{number}");
        }
    }
}
