//! Follows the book of a namespace in Redis, and publishes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::follow::{Task, Trouble, WeakBook, reason};
use super::text::{BookError, MOST_REVISION, parse, parse_numbered, without_revision};
use super::{PolicyBook, Source};
use crate::error::{StoreError, StoreErrorKind};
use crate::observe;
use crate::store::redis::{Published, Shelf, Stored, varied};

/// How often it is looked at, though no message tells of a change. Each pause is longer by up to a quarter.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A text that was refused is sent again every so many looks: it may have been mended by hand, and its revision left.
const LOOKS_PER_REFUSED: u32 = 60;
/// How soon somebody who hears nothing of changes tries to listen again; twice as late each time …
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// … up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often an edit is begun anew because somebody else has published meanwhile.
const MOST_TRIES: usize = 8;

/// The book of a namespace in Redis: text as [`PolicyBook::from_toml`] reads it, under the key `namespace|book` (feature `book`). Cheap
/// to clone. Made by [`Limiter::book_in_redis`](crate::Limiter::book_in_redis).
///
/// [`follow`](Self::follow) has the limiter's [book](crate::Limiter::book) say what Redis says: a change reaches every replica within
/// a second. While Redis is out, and when it has lost its data, the last book counts.
///
/// ```no_run
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// use limiter_core::{FileSource, Limiter, Override, Policy, PolicyBook};
///
/// let book = PolicyBook::new();
/// let limits = Limiter::redis("redis://localhost/").namespace("prod:checkout").book(&book).build()?;
/// let _file = FileSource::follow(&book, "limits.toml")?; // counts until Redis is heard
/// let shelf = limits.book_in_redis()?;
/// let redis = shelf.follow();
/// let _heard = redis.heard().await; // its error: what the file says counts for now
///
/// // Somewhere else:
/// let search = |capacity: u32| Policy::token_bucket("search").capacity(capacity).rate("10/s").build();
/// shelf.edit(|draft| {
///     draft.set(search(20)?);
///     draft.set_override(Override::new(search(100)?, "user:7"))?;
///     Ok(())
/// }).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Revisions
///
/// The first line of the text says its revision, `revision = 1763776000000`, a later text having a higher one. A text with
/// a lower one than this process has seen, or with none, is not believed: it comes from a server that lost what it had, or from a backup. To
/// go back on purpose, publish: a revision is the server's time in milliseconds, or one more than the last, so what is
/// published is always believed, also after Redis has lost its data. A text that is written by hand, by SET, needs a first line
/// with a higher revision, also than one that was refused: the same is looked at again every half a minute only. Keep it near the
/// server's time in milliseconds: above 9007199254740991 it is not believed, and after that one nothing can be published any more.
#[derive(Clone, Debug)]
pub struct RedisBook(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    shelf: Shelf,
    /// Of the limiter.
    book: PolicyBook,
}

impl RedisBook {
    pub(crate) fn new(shelf: Shelf, book: PolicyBook) -> Self {
        Self(Arc::new(Shared { shelf, book }))
    }

    /// Has the limiter's book say what Redis says, in a task: looks now, when a message tells of a change, and every half a second, since messages get lost.
    ///
    /// Until the first look is over, a policy that stands only in Redis is not configured, and what asks for it is
    /// [allowed](crate::OnNotConfigured): await [`RedisSource::heard`] before the first call.
    ///
    /// A text that has mistakes changes nothing, and is an event; [`RedisSource::last_error`] says what is wrong as long as it is.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time and I/O.
    pub fn follow(&self) -> RedisSource {
        let shared = Arc::new(Following::of(&self.0.shelf));
        let (has_looked, looked) = watch::channel(false);
        let following = follow(WeakBook::of(&self.0.book), Arc::clone(&shared), has_looked);
        let task = Task::spawn(following);
        RedisSource { shared, task, looked }
    }

    /// What stands in Redis: its revision and its text, without the first line that says the revision. `None` for nothing.
    ///
    /// # Errors
    ///
    /// [`BookError::Store`] when Redis gives no answer; [`BookError::Mistakes`] for a text without a revision.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn read(&self) -> Result<Option<(u64, String)>, BookError> {
        match self.0.shelf.read(0, Shelf::PATIENTLY).await? {
            Stored::Nothing | Stored::Revision(_, None) => Ok(None),
            Stored::Unnumbered => Err(unnumbered(&self.0.shelf)),
            Stored::TooHigh => Err(too_high(&self.0.shelf)),
            Stored::Revision(revision, Some(text)) => {
                Ok(Some((revision, without_revision(&text).to_owned())))
            }
        }
    }

    /// Replaces the text of a revision, 0 for none, by another one; says which revision that has. A first line such as
    /// `revision = 7` may stand in it, and means nothing; a revision that is written otherwise, or stands elsewhere, is a mistake. The
    /// limiter's own book has it at once.
    ///
    /// # Errors
    ///
    /// [`BookError::Mistakes`] for a text that has some: it is not sent. [`BookError::Conflict`] when Redis has another revision than
    /// the one to be replaced; nothing is written then. [`BookError::Store`] when Redis gives no answer; it may have been
    /// published all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropped while Redis is asked, it is published or not.
    pub async fn publish(&self, text: &str, replaced: u64) -> Result<u64, BookError> {
        let page = parse_numbered("text", text)?;
        let text = without_revision(text);
        let Shared { shelf, book } = &*self.0;
        match shelf
            .publish(text, replaced, book.published().unwrap_or(0))
            .await?
        {
            Published::As(revision) => {
                book.adopt_published(revision, page);
                Ok(revision)
            }
            Published::Conflict(found) => Err(BookError::Conflict {
                expected: replaced,
                found,
            }),
            Published::NoneLater => Err(none_later(shelf)),
        }
    }

    /// Has the limiter's book say what Redis says now. What cannot be believed changes nothing.
    ///
    /// # Errors
    ///
    /// As [`RedisSource::last_error`] would tell.
    pub(crate) async fn look(&self, patience: Duration) -> Result<(), BookError> {
        let Shared { shelf, book } = &*self.0;
        Following::of(shelf).look_once(book, patience).await
    }

    /// Publishes what becomes of the book in Redis by `change`, which is begun anew when somebody else has published meanwhile. `change` is given
    /// what stands in Redis, and nothing of the limiter's other sources. Comments in the text are lost.
    ///
    /// Where Redis has lost what it had, or has an older text from a backup, `change` is given what this process has
    /// [followed](Self::follow) or published last, which is what all replicas go on with: an edit of one policy brings the others back. A
    /// process that knows of nothing later takes Redis at its word, so follow the book, and [hear](RedisSource::heard) it, before you edit.
    ///
    /// # Errors
    ///
    /// What `change` says; else as [`publish`](Self::publish), a conflict only after several tries.
    ///
    /// # Cancel safety
    ///
    /// As [`publish`](Self::publish).
    pub async fn edit(
        &self,
        mut change: impl FnMut(&PolicyBook) -> Result<(), BookError>,
    ) -> Result<u64, BookError> {
        let mut tries = 0;
        loop {
            let (replaced, draft) = self.draft().await?;
            change(&draft)?;
            tries += 1;
            match self.publish(&draft.to_toml(), replaced).await {
                Err(BookError::Conflict { .. }) if tries < MOST_TRIES => {
                    sleep(varied(Duration::from_millis(2))).await;
                }
                published => return published,
            }
        }
    }
}

impl RedisBook {
    /// What a change begins with, and the revision that it replaces: what stands in Redis, or what it said last, where it has
    /// lost that. A change of one name must not take the others away.
    pub(crate) async fn draft(&self) -> Result<(u64, PolicyBook), BookError> {
        let (revision, text) = self.read().await?.unwrap_or_default();
        let book = &self.0.book;
        let text = match book.published() {
            Some(known) if known > revision => book.last_published(),
            _ => text,
        };
        Ok((revision, PolicyBook::from_toml(&text)?))
    }
}

/// A [`RedisBook`] that is followed. It is until this is dropped ([`detach`](Self::detach) prevents that), all clones of the book
/// are, or the runtime ends. What it said last stays in the book.
#[derive(Debug)]
#[must_use = "the book is followed until this is dropped"]
pub struct RedisSource {
    shared: Arc<Following>,
    task: Task,
    /// Whether a look is over.
    looked: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Following {
    shelf: Shelf,
    trouble: Trouble,
    /// The text that is there, if it was refused.
    refused: Mutex<Option<Refused>>,
}

/// A text that was refused, and is not sent again for a while.
#[derive(Debug)]
struct Refused {
    revision: u64,
    error: BookError,
    /// How often it was seen since.
    looks: u32,
}

impl RedisSource {
    /// Waits until the first look is over, half a second at most: from then on the limiter's book says what Redis says.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// let limits = limiter_core::Limiter::redis("redis://localhost/").namespace("prod:checkout").build()?;
    /// let source = limits.book_in_redis()?.follow();
    /// if let Err(error) = source.heard().await {
    ///     eprintln!("the policies of the code count: {error}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What is wrong then, as [`last_error`](Self::last_error) says it; it is followed all the same.
    /// [`BookError::Store`] with [`StoreErrorKind::ShutDown`] when nobody looks, since all clones of the book
    /// are dropped or the runtime has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn heard(&self) -> Result<(), BookError> {
        let mut looked = self.looked.clone();
        if looked.wait_for(|looked| *looked).await.is_err() {
            let detail = "the book is not followed any more";
            return Err(StoreError::new(StoreErrorKind::ShutDown, detail).into());
        }
        self.last_error().map_or(Ok(()), Err)
    }

    /// What is wrong with the book in Redis now, or why it cannot be looked at; `None` while all is well.
    #[must_use]
    pub fn last_error(&self) -> Option<BookError> {
        self.shared.trouble.last()
    }

    /// Whether its runtime has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.task.is_running()
    }

    /// Follows the book as long as there is the limiter's.
    pub fn detach(self) {
        self.task.detach();
    }
}

async fn follow(book: WeakBook, shared: Arc<Following>, has_looked: watch::Sender<bool>) {
    let news = Notify::new();
    tokio::select! {
        () = look_again_and_again(book, &shared, &news, &has_looked) => {}
        () = listen(&shared.shelf, &news) => {}
    }
}

/// Until there is no book any more.
async fn look_again_and_again(
    book: WeakBook,
    shared: &Following,
    news: &Notify,
    has_looked: &watch::Sender<bool>,
) {
    loop {
        {
            let Some(book) = book.upgrade() else { return };
            shared.look(&book).await;
            observe::book_revision(book.published().unwrap_or(0));
            has_looked.send_replace(true);
        }
        tokio::select! {
            () = news.notified() => {}
            () = sleep(varied(LOOK_EVERY)) => {}
        }
    }
}

/// Passes on that something was published. Where that cannot be heard, it is found out all the same, a little later.
async fn listen(shelf: &Shelf, news: &Notify) {
    let mut pause = FIRST_PAUSE;
    loop {
        match shelf.listen().await {
            Ok(ear) => {
                // What was published before is missed.
                news.notify_one();
                while ear.hears().await {
                    news.notify_one();
                }
                pause = FIRST_PAUSE;
            }
            Err(error) => {
                tracing::debug!(key = shelf.key(), %error, "changes of the book are not told, and looked for")
            }
        }
        sleep(varied(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl Following {
    fn of(shelf: &Shelf) -> Self {
        Self {
            shelf: shelf.clone(),
            trouble: Trouble::default(),
            refused: Mutex::default(),
        }
    }

    async fn look(&self, book: &PolicyBook) {
        let key = self.shelf.key();
        let error = match self.look_once(book, Shelf::BRIEFLY).await {
            Ok(()) => {
                if self.trouble.is_over() {
                    let revision = book.published().unwrap_or(0);
                    tracing::info!(key, revision, "the book in Redis is well again");
                }
                return;
            }
            Err(error) => error,
        };
        // Of an outage others say enough.
        let is_outage = matches!(&error, BookError::Store(error) if !matches!(error.kind(), StoreErrorKind::Refused | StoreErrorKind::Protocol));
        let reason = reason(&error);
        if self.trouble.is_new(error) && !is_outage {
            tracing::warn!(key, %reason, "the book in Redis is refused, and the last policies stay");
        }
    }

    /// Has the book say what stands in Redis, if that can be believed.
    async fn look_once(&self, book: &PolicyBook, patience: Duration) -> Result<(), BookError> {
        let known = book.published().unwrap_or(0);
        let refused = self.refused_for_now().filter(|refused| *refused > known);
        let mut stored = self.shelf.read(refused.unwrap_or(known), patience).await?;
        if let (Some(refused), Stored::Revision(found, None)) = (refused, &stored) {
            if *found == refused
                && let Some(error) = self.is_refused_still()
            {
                return Err(error);
            }
            // It is another one, which may be later than what is known all the same.
            if *found > known {
                stored = self.shelf.read(known, patience).await?;
            }
        }
        let taken = self.take(book, stored, known);
        *self.refused() = match &taken {
            Err((Some(revision), error)) => Some(Refused {
                revision: *revision,
                error: error.clone(),
                looks: 0,
            }),
            _ => None,
        };
        taken.map_err(|(_, error)| error)
    }

    /// The same of what was found. An error has the revision of a text that is refused.
    fn take(&self, book: &PolicyBook, stored: Stored, known: u64) -> Result<(), (Option<u64>, BookError)> {
        let older = |found| Err((None, BookError::Older { found, seen: known }));
        match stored {
            Stored::Nothing if known == 0 => Ok(()),
            Stored::Nothing => older(0),
            Stored::Unnumbered => Err((None, unnumbered(&self.shelf))),
            Stored::TooHigh => Err((None, too_high(&self.shelf))),
            Stored::Revision(revision, _) if revision < known => older(revision),
            Stored::Revision(_, None) => Ok(()),
            Stored::Revision(revision, Some(text)) => {
                let key = self.shelf.key();
                let page = parse(key, &text).map_err(|error| (Some(revision), error))?;
                if book.adopt_published(revision, page) {
                    tracing::info!(key, revision, "the policies in Redis have changed");
                }
                Ok(())
            }
        }
    }

    /// The revision of a text that was refused, unless it is to be looked at again.
    fn refused_for_now(&self) -> Option<u64> {
        let refused = self.refused();
        let refused = refused
            .as_ref()
            .filter(|refused| refused.looks < LOOKS_PER_REFUSED);
        refused.map(|refused| refused.revision)
    }

    /// Why what was refused is still, now that it was seen once more.
    fn is_refused_still(&self) -> Option<BookError> {
        let mut refused = self.refused();
        let refused = refused.as_mut()?;
        refused.looks += 1;
        Some(refused.error.clone())
    }

    fn refused(&self) -> MutexGuard<'_, Option<Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nobody knows whether such a text is the latest.
fn unnumbered(shelf: &Shelf) -> BookError {
    BookError::one(
        shelf.key(),
        "no revision, expected a first line such as `revision = 7`, with a higher one than before",
    )
}

/// Lua's numbers would take it for another one.
fn too_high(shelf: &Shelf) -> BookError {
    let told = format!("a revision above {MOST_REVISION}, expected at most that");
    BookError::one(shelf.key(), &told)
}

/// Somebody wrote the highest one by hand.
fn none_later(shelf: &Shelf) -> BookError {
    let told = format!(
        "no revision is later than {MOST_REVISION}: write the text by hand with a lower one, and restart what has seen this one"
    );
    BookError::one(shelf.key(), &told)
}

impl PolicyBook {
    /// The revision of what Redis says, where this process has [followed](RedisBook::follow) or published it; `None` before. Replicas that
    /// have the same revision have the same policies from there.
    #[must_use]
    pub fn published(&self) -> Option<u64> {
        Some(self.pages().published).filter(|revision| *revision > 0)
    }

    /// What Redis has said last, as a text without a revision.
    pub(crate) fn last_published(&self) -> String {
        let pages = self.pages();
        pages.redis().map(super::text::write).unwrap_or_default()
    }

    /// What would count under a name if Redis said nothing of it.
    pub(crate) fn get_beside_redis(&self, name: &str) -> Option<Arc<super::BookEntry>> {
        self.pages().beside_redis(name).cloned()
    }

    /// Whether it is a later one than is known.
    fn adopt_published(&self, revision: u64, page: super::Page) -> bool {
        {
            let mut pages = self.pages();
            if revision <= pages.published {
                return false;
            }
            pages.published = revision;
            self.put(pages, &Source::Redis, page);
        }
        true
    }
}
