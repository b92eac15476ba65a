//! Limits whose remaining permits are not known yet.

use smallvec::SmallVec;

/// The limits of a decision that are settled after the head of the response is sent, by index.
/// Their remaining permits in the head would be outdated when the client reads them.
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
