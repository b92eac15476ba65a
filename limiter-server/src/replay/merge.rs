//! The calls of several files in the order of their times.

use crate::replay::problems::Problems;
use crate::replay::source::{Call, LogSource};

/// Merges the calls of files. The calls of each file are in order.
#[derive(Debug)]
pub(super) struct Merge {
    sources: Vec<LogSource>,
    /// The sources that have a call.
    active: Vec<usize>,
    /// The position in `active` of the source whose call was returned last.
    used: Option<usize>,
}

impl Merge {
    pub(super) fn new(sources: Vec<LogSource>, problems: &mut Problems) -> Result<Self, String> {
        let mut merge = Self {
            sources,
            active: Vec::new(),
            used: None,
        };
        for (number, source) in merge.sources.iter_mut().enumerate() {
            if source.advance(problems)? {
                merge.active.push(number);
            }
        }
        Ok(merge)
    }

    /// Returns the next call; `None` at the end. Of calls with one time, that of the first file.
    pub(super) fn next(&mut self, problems: &mut Problems) -> Result<Option<&Call>, String> {
        if let Some(used) = self.used.take()
            && let Some(number) = self.active.get(used).copied()
            && let Some(source) = self.sources.get_mut(number)
            && !source.advance(problems)?
        {
            self.active.remove(used);
        }
        let time = |number: &usize| self.sources.get(*number).map(|source| source.call().at);
        let first = self
            .active
            .iter()
            .enumerate()
            .min_by_key(|(_, number)| time(number));
        let Some((used, number)) = first.map(|(used, number)| (used, *number)) else {
            return Ok(None);
        };
        self.used = Some(used);
        Ok(self.sources.get(number).map(LogSource::call))
    }

    pub(super) fn lines(&self) -> u64 {
        self.sources.iter().map(LogSource::lines).sum()
    }

    pub(super) fn sources(&self) -> &[LogSource] {
        &self.sources
    }
}
