//! The book of a namespace: what the third script is asked, and what it answers; the layout is told in `lua/book.lua`.

use std::time::Duration;

use bb8_redis::redis::{self, Value};

use super::script::{BOOK, Call};
use super::{Route, wire};
use crate::clock::Clock;
use crate::error::{StoreError, StoreErrorKind};
use crate::tier::deadline::within;

const READ: u8 = 0;
const PUBLISH: u8 = 1;

/// Where the book of a namespace is. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    route: Route,
    clock: Clock,
    key: String,
}

/// What stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Nothing,
    /// Something without a revision.
    Unnumbered,
    /// The revision, with the text where it is a later one than is known.
    Revision(u64, Option<String>),
}

/// What became of a text that was to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// It has this revision.
    As(u64),
    /// Another revision was found than the one to be replaced.
    Conflict(u64),
}

impl Shelf {
    /// How long a look may take. Nobody waits for it.
    const PATIENCE: Duration = Duration::from_millis(500);
    /// How long it may take to publish.
    const PATIENCE_TO_PUBLISH: Duration = Duration::from_secs(2);

    pub(super) fn new(route: Route, clock: Clock, key: String) -> Self {
        Self { route, clock, key }
    }

    /// The name of the key, which is that of the channel too.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// What is there; its text only if it is later than what is known.
    pub(crate) async fn read(&self, known: u64) -> Result<Stored, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(READ);
        plan.extend_from_slice(&known.to_le_bytes());
        let (found, text) = self.run(plan, Self::PATIENCE).await?;
        Ok(match u64::try_from(found) {
            Err(_) => Stored::Unnumbered,
            Ok(0) => Stored::Nothing,
            Ok(revision) => Stored::Revision(revision, (!text.is_empty()).then_some(text)),
        })
    }

    /// Puts a text in the place of a revision, 0 for none; its own is later than `least`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether it was published.
    pub(crate) async fn publish(
        &self,
        text: &str,
        replaced: u64,
        least: u64,
    ) -> Result<Published, StoreError> {
        let mut plan = wire::head(self.clock.injected());
        plan.push(PUBLISH);
        for revision in [replaced, least] {
            plan.extend_from_slice(&revision.to_le_bytes());
        }
        plan.extend_from_slice(text.as_bytes());
        let (found, new) = self.run(plan, Self::PATIENCE_TO_PUBLISH).await?;
        match new.parse() {
            Ok(0) => Ok(Published::Conflict(u64::try_from(found).unwrap_or(0))),
            Ok(new) => Ok(Published::As(new)),
            Err(_) => Err(malformed()),
        }
    }

    async fn run(&self, plan: Vec<u8>, patience: Duration) -> Result<(i64, String), StoreError> {
        let call = Call::new(&BOOK, [&self.key], plan, patience);
        let reply = within(patience, self.route.run(&call)).await?;
        redis::from_redis_value::<(String, Value)>(reply)
            .ok()
            .and_then(|(found, text)| Some((found.parse().ok()?, text_of(text)?)))
            .ok_or_else(malformed)
    }
}

/// What is no text is shown as far as it is: the book's reader tells what is wrong with it.
fn text_of(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(bytes) => String::from_utf8_lossy(bytes.as_bytes()).into_owned(),
        }),
        _ => None,
    }
}

fn malformed() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "the reply about the book is malformed")
}
