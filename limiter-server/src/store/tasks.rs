//! Tasks that one node at a time runs, without a leader.
//!
//! A task has a row with its holder and the time until which it holds the task. A node takes the
//! task by replacing the row that it read, so of two nodes one succeeds. A node that ends without
//! notice loses the task at that time.

use crate::store::sql::binds;
use crate::store::{Store, StoreError};

impl Store {
    /// Takes a task for a process until a time. Returns false if another process holds it.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn claim_task(
        &self,
        task: &str,
        instance: &str,
        now: i64,
        until: i64,
    ) -> Result<bool, StoreError> {
        self.require_writable()?;
        let held = self.setting(&task_name(task)).await?;
        let is_held = held.as_deref().and_then(parse).is_some_and(|(holder, end)| {
            // The end of a clock that was ahead does not stop the task.
            holder != instance && end > now && end <= until.saturating_add(until - now)
        });
        if is_held {
            return Ok(false);
        }
        self.replace_setting(&task_name(task), held.as_deref(), &format!("{instance} {until}"))
            .await
    }

    /// Returns the secret of the fingerprints of keys in a namespace: the stored one, or else the
    /// proposed one, which is stored then.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer, or cannot be written.
    pub async fn key_secret(&self, namespace: &str, proposed: &str) -> Result<String, StoreError> {
        let name = format!("key-secret:{namespace}");
        if let Some(secret) = self.setting(&name).await? {
            return Ok(secret);
        }
        self.require_writable()?;
        match self.replace_setting(&name, None, proposed).await? {
            true => Ok(proposed.to_owned()),
            // Another node was faster.
            false => self.setting(&name).await?.ok_or(StoreError::NotFound),
        }
    }

    /// Returns a value that all nodes share.
    pub(super) async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let sql = "SELECT content FROM setting WHERE name = ?";
        let row = self.pool.row(sql, binds![name]).await?;
        row.map(|row| row.text(0)).transpose()
    }

    /// Replaces a value that all nodes share. Returns false if it is not the expected one.
    pub(super) async fn replace_setting(
        &self,
        name: &str,
        expected: Option<&str>,
        content: &str,
    ) -> Result<bool, StoreError> {
        let replaced = match expected {
            // MySQL counts changed rows only.
            Some(expected) if expected == content => return Ok(true),
            Some(expected) => {
                let sql = "UPDATE setting SET content = ? WHERE name = ? AND content = ?";
                self.pool.execute(sql, binds![content, name, expected]).await
            }
            None => {
                let sql = "INSERT INTO setting (name, content) VALUES (?, ?)";
                self.pool.execute(sql, binds![name, content]).await
            }
        };
        match replaced {
            Err(error) if error.is_duplicate() => Ok(false),
            replaced => Ok(replaced? > 0),
        }
    }
}

fn task_name(task: &str) -> String {
    format!("task:{task}")
}

fn parse(content: &str) -> Option<(&str, i64)> {
    let (instance, until) = content.split_once(' ')?;
    Some((instance, until.parse().ok()?))
}
