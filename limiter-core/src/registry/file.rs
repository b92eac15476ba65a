//! Reads policies from a file and polls it for changes.
//!
//! A task reads the file every second by its path, so the file or a symbolic link in the path (a
//! config map) may be replaced. A changed content is adopted if a second read after 0.1 s returns
//! the same bytes, since a writer may write it in several steps. A rejected content is parsed again
//! at each poll, because a rejection may depend on the policies of other sources.
//!
//! Invariant: an invalid or missing file changes no policy. Tests: `tests/registry/file.rs`.

use std::fs::File;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::observe;
use crate::registry::text::{MAX_TEXT_BYTES, RegistryError, parse_some};
use crate::registry::watcher::{LastError, WatcherTask, WeakRegistry, reason};
use crate::registry::{PolicyRegistry, Source};

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A changed file is read again after this time and adopted if it is unchanged, because a writer
/// may write it in several steps.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// A file whose policies a [`PolicyRegistry`] contains and updates when the file changes (feature
/// `registry`). [`PolicyRegistry::from_toml`] describes the format.
///
/// The file is read every second by its path, so it may be replaced, as may the target of a
/// symbolic link in the path (a mounted config map swaps one). An invalid text, a missing file and
/// a file without policies change nothing and are logged; [`last_error`](Self::last_error) returns
/// the error until it is corrected. A file that is written in place may be read while it is
/// incomplete if the write takes longer than 0.1 s; rename a complete file over it instead.
///
/// The file is followed until [`stop`](Self::stop) is called, all clones of the registry are
/// dropped, or the runtime ends. Dropping this handle does not stop it. The policies that were read
/// last stay in the registry.
#[derive(Debug)]
pub struct FileSource {
    shared: Arc<FileState>,
    task: WatcherTask,
}

#[derive(Debug)]
struct FileState {
    path: PathBuf,
    last_error: LastError,
}

impl FileSource {
    /// Reads the file now, which blocks, and polls it for changes in a task.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::{FileSource, PolicyRegistry};
    /// use limiter_core::Limiter;
    ///
    /// # let path = std::env::temp_dir().join(format!("limits-{}.toml", std::process::id()));
    /// std::fs::write(&path, "policy.mail = { algorithm = 'sliding_window', limit = 5, window = '1m' }").unwrap();
    /// let registry = PolicyRegistry::new();
    /// FileSource::follow(&registry, &path)?;
    /// let limits = Limiter::in_process().registry(&registry).build();
    /// assert_eq!(limits.named("mail").peek("ann").await.unwrap().remaining(), 5);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), limiter_core::registry::RegistryError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// The task runs until the registry is dropped; dropping the returned handle does not stop it.
    ///
    /// # Errors
    ///
    /// [`RegistryError::File`] when the file cannot be read, [`RegistryError::Parse`] when its
    /// text is invalid. The registry is then unchanged.
    ///
    /// # Panics
    ///
    /// Panics outside of a Tokio runtime with time.
    pub fn follow(registry: &PolicyRegistry, path: impl Into<PathBuf>) -> Result<Self, RegistryError> {
        let path = path.into();
        let text = read(&path);
        registry.adopt_file(&path, &text)?;
        let shared = Arc::new(FileState {
            path,
            last_error: LastError::default(),
        });
        let following = follow(WeakRegistry::downgrade(registry), Arc::clone(&shared), text);
        let task = WatcherTask::spawn(following);
        Ok(Self { shared, task })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the current error of the file, if any. While there is one, the policies that were
    /// read last apply.
    #[must_use]
    pub fn last_error(&self) -> Option<RegistryError> {
        self.shared.last_error.last()
    }

    /// Stops following the file. The policies that were read last stay in the registry.
    pub fn stop(self) {
        self.task.stop();
    }
}

/// The content of a file, or the error of the read.
#[derive(Clone, Debug)]
struct FileContent(Result<Vec<u8>, Arc<io::Error>>);

impl PartialEq for FileContent {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Ok(bytes), Ok(other)) => bytes == other,
            (Err(error), Err(other)) => error.kind() == other.kind(),
            _ => false,
        }
    }
}

impl PolicyRegistry {
    fn adopt_file(&self, path: &Path, content: &FileContent) -> Result<(), RegistryError> {
        let unreadable = |error| RegistryError::File {
            path: path.to_owned(),
            error,
        };
        let place = path.to_string_lossy();
        let bytes = content
            .0
            .as_ref()
            .map_err(|error| unreadable(Arc::clone(error)))?;
        // A truncated content is not parsed.
        if bytes.len() > MAX_TEXT_BYTES {
            let error = format!("the file is too long, expected at most {MAX_TEXT_BYTES} bytes");
            return Err(RegistryError::single(&place, &error));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|error| unreadable(Arc::new(io::Error::new(io::ErrorKind::InvalidData, error))))?;
        let snapshot = parse_some(&place, text)?;
        self.refuse_turned(&place, &snapshot)?;
        self.adopt(&Source::File(path.to_owned()), snapshot);
        Ok(())
    }
}

async fn follow(registry: WeakRegistry, shared: Arc<FileState>, mut seen: FileContent) {
    loop {
        sleep(POLL_INTERVAL).await;
        let now = read_elsewhere(&shared).await;
        if now != seen {
            sleep(SETTLED_AFTER).await;
            if read_elsewhere(&shared).await != now {
                continue;
            }
        }
        let Some(registry) = registry.upgrade() else {
            return;
        };
        // A rejected content is parsed again, since the other sources may have changed.
        if now == seen && !shared.last_error.has_error() {
            continue;
        }
        let adopting = {
            let (shared, registry) = (Arc::clone(&shared), registry.clone());
            spawn_blocking(move || {
                let adopted = registry.adopt_file(&shared.path, &now);
                (now, adopted)
            })
        };
        // The runtime is shutting down.
        let Ok((now, adopted)) = adopting.await else {
            return;
        };
        let file = shared.path.display();
        match adopted {
            Ok(()) => {
                shared.last_error.is_over();
                tracing::info!(%file, revision = registry.revision(), "policies of the file changed");
            }
            Err(error) => {
                observe::registry_rejected("file");
                let reason = reason(&error);
                if shared.last_error.is_new(error) {
                    tracing::warn!(%file, %reason, "policy file rejected; keeping its last policies");
                }
            }
        }
        seen = now;
    }
}

/// Reads the file in a thread that may block.
async fn read_elsewhere(shared: &Arc<FileState>) -> FileContent {
    let shared = Arc::clone(shared);
    let reading = spawn_blocking(move || read(&shared.path));
    reading
        .await
        .unwrap_or_else(|ended| FileContent(Err(Arc::new(io::Error::other(ended)))))
}

/// Reads at most one byte more than the maximum size.
fn read(path: &Path) -> FileContent {
    let most = u64::try_from(MAX_TEXT_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes));
    FileContent(read.map(|_| bytes).map_err(Arc::new))
}
