//! Bounds over any window of time, checked against grants. Exact: integers only.

use limiter_core::Decision;

/// Permits that were granted at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Microseconds.
    pub(crate) at: u64,
    /// Thousandths of a permit.
    pub(crate) cost: u64,
    /// True if the second of the two policies made this grant.
    pub(crate) second: bool,
}

impl Grant {
    /// A decision that granted this number of permits.
    pub(crate) fn of(decision: &Decision, permits: u64, second: bool) -> Self {
        assert!(decision.is_allowed(), "{decision:?}");
        Self {
            at: decision.decided_at().as_micros(),
            cost: permits * 1_000,
            second,
        }
    }
}

/// The bound of a bucket and a funnel: from any grant to any later one, at most capacity + rate ·
/// time. Capacity in thousandths, rate in thousandths per period in microseconds; grants in the
/// order of their times.
///
/// For every pair i ≤ j: cost(i) + … + cost(j) ≤ capacity + rate · (at(j) − at(i)). With S(k) the
/// sum before k and f(k) = S(k) − rate · at(k), this is f(j) + cost(j) ≤ capacity + f(i) for every
/// i ≤ j, which the least f(i) decides.
pub(crate) fn level(grants: &[Grant], capacity: u64, (amount, period): (u64, u64)) -> Result<(), String> {
    let (capacity, amount, period) = (i128::from(capacity), i128::from(amount), i128::from(period));
    let mut sum = 0;
    let mut least: Option<(i128, usize)> = None;
    for (j, grant) in grants.iter().enumerate() {
        let f = sum * period - amount * i128::from(grant.at);
        if least.is_none_or(|(least, _)| f < least) {
            least = Some((f, j));
        }
        let cost = i128::from(grant.cost);
        sum += cost;
        if let Some((least, i)) = least
            && f + cost * period > capacity * period + least
        {
            return Err(format!(
                "{} parts of {period} to a thousandth too many from {:?} to {grant:?}",
                f + cost * period - capacity * period - least,
                grants.get(i)
            ));
        }
    }
    Ok(())
}

/// The bound of a window: at each grant, at most `limit` permits within the last window. Checking
/// the windows that end at a grant is sufficient: each exceeded window contains one of them.
pub(crate) fn window(grants: &[Grant], limit: u64, length: u64) -> Result<(), String> {
    window_of_each(grants, [(limit, length); 2])
}

/// The bound for two alternating policies: each grant keeps the bound of its policy, and counts the
/// grants of both.
pub(crate) fn window_of_each(grants: &[Grant], limits: [(u64, u64); 2]) -> Result<(), String> {
    let mut edges = [0_usize; 2];
    let mut sums = [0_u64; 2];
    for grant in grants {
        for ((edge, sum), (_, length)) in edges.iter_mut().zip(&mut sums).zip(limits) {
            *sum += grant.cost;
            while let Some(left) = grants.get(*edge).filter(|left| left.at + length <= grant.at) {
                *sum -= left.cost;
                *edge += 1;
            }
        }
        let place = usize::from(grant.second);
        let (Some(sum), Some((limit, length))) = (sums.get(place), limits.get(place)) else {
            unreachable!("two policies")
        };
        if *sum > limit * 1_000 {
            return Err(format!(
                "{sum} thousandths in {length} µs up to {grant:?}, expected {limit} permits"
            ));
        }
    }
    Ok(())
}

/// Every denial of one permit is necessary: at its time, the permit would have exceeded the bound
/// of [`level`]. A grant at the time of a denial was made before it. Denials in any order.
pub(crate) fn level_is_used(
    grants: &[Grant],
    denials: &[u64],
    capacity: u64,
    (amount, period): (u64, u64),
) -> Result<(), String> {
    let (capacity, amount, period) = (i128::from(capacity), i128::from(amount), i128::from(period));
    let mut denials = denials.to_vec();
    denials.sort_unstable();
    let mut earlier = grants.iter().peekable();
    let (mut sum, mut least) = (0, None::<i128>);
    for denied_at in denials {
        while let Some(grant) = earlier.next_if(|grant| grant.at <= denied_at) {
            let f = sum * period - amount * i128::from(grant.at);
            least = Some(least.map_or(f, |least| least.min(f)));
            sum += i128::from(grant.cost);
        }
        let f = sum * period - amount * i128::from(denied_at);
        let used = f - least.unwrap_or(f).min(f);
        if used + 1_000 * period <= capacity * period {
            return Err(format!(
                "denied at {denied_at} with {used} of {} parts used",
                capacity * period
            ));
        }
    }
    Ok(())
}

/// Every denial of one permit is necessary: at its time, `limit` permits were used within the last
/// window. A grant at the time of a denial was made before it. Denials in any order.
pub(crate) fn window_is_used(
    grants: &[Grant],
    denials: &[u64],
    limit: u64,
    length: u64,
) -> Result<(), String> {
    for &denied_at in denials {
        let end = grants.partition_point(|grant| grant.at <= denied_at);
        let start = grants.partition_point(|grant| grant.at + length <= denied_at);
        let used: u64 = grants
            .get(start..end)
            .unwrap_or_default()
            .iter()
            .map(|grant| grant.cost)
            .sum();
        if used + 1_000 > limit * 1_000 {
            continue;
        }
        return Err(format!(
            "denied at {denied_at} with {used} thousandths used of {limit} permits"
        ));
    }
    Ok(())
}
