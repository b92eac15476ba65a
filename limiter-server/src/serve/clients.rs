//! Follows the clients of the settings file.
//!
//! The file is read every second, and at once on SIGHUP. Only `[[token]]` and `[[client]]` apply
//! without a restart. A file with errors changes nothing, and so does one without clients while
//! other machines reach a listener, because anonymous clients would be accepted then.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::access::Access;
use crate::settings::ClientSource;

/// The interval at which the file is read.
const INTERVAL: Duration = Duration::from_secs(1);
/// A text must be unchanged for this time, because a file that is written in place can be read
/// before its end has been written.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// The follower of the settings file. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ClientFollower(Arc<FollowerState>);

#[derive(Debug)]
struct FollowerState {
    access: Access,
    source: ClientSource,
    /// The text that was applied or rejected last.
    last: Mutex<Option<String>>,
    /// Requests to read the file now.
    reload: Notify,
}

impl ClientFollower {
    /// Follows the file in a task.
    pub(super) fn start(access: &Access, source: &ClientSource) -> Self {
        let last = Mutex::new(source.text.clone());
        let (access, source) = (access.clone(), source.clone());
        let reload = Notify::new();
        let follower = Self(Arc::new(FollowerState {
            access,
            source,
            last,
            reload,
        }));
        tokio::spawn(follower.clone().follow());
        follower
    }

    async fn follow(self) {
        loop {
            let is_settled = tokio::select! {
                () = tokio::time::sleep(INTERVAL) => false,
                () = self.0.reload.notified() => true,
            };
            let Some(read) = self.read().await else { continue };
            if self.is_applied(&read) {
                continue;
            }
            if !is_settled {
                tokio::time::sleep(SETTLED_AFTER).await;
                if self.read().await.as_ref() != Some(&read) {
                    continue;
                }
            }
            self.apply(read);
        }
    }

    /// Reads the file on a thread that may block: the file system may not answer.
    async fn read(&self) -> Option<Option<String>> {
        let source = self.0.source.clone();
        tokio::task::spawn_blocking(move || source.read()).await.ok()
    }

    /// Makes the task read the file now.
    pub(super) fn reload(&self) {
        self.0.reload.notify_one();
    }

    fn is_applied(&self, read: &Option<String>) -> bool {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) == *read
    }

    fn apply(&self, read: Option<String>) {
        let FollowerState {
            access, source, last, ..
        } = &*self.0;
        let file = source.path.display();
        match source.clients(read.as_deref()) {
            Ok(table) => {
                let clients = table.len();
                access.replace(table);
                tracing::info!(%file, clients, "tokens and clients reloaded");
            }
            Err(reason) => {
                tracing::warn!(%file, %reason, "settings file rejected; keeping the last tokens and clients");
            }
        }
        *last.lock().unwrap_or_else(PoisonError::into_inner) = read;
    }
}
