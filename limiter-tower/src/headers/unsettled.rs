//! Limits of which nobody knows yet what remains.

use smallvec::SmallVec;

/// Those of a decision's limits that are settled after the response's head has gone out, by their
/// places in it: whatever the head said of what remains would be true no longer when its client
/// reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unsettled(SmallVec<[usize; 4]>);

impl Unsettled {
    pub(super) fn has(&self, place: usize) -> bool {
        self.0.contains(&place)
    }
}

impl FromIterator<usize> for Unsettled {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        Self(places.into_iter().collect())
    }
}
