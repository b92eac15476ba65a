//! The running nodes, for the status page and to detect several nodes without shared limits.

use crate::store::sql::binds;
use crate::store::{Store, StoreError};

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// The name from the settings.
    pub name: String,
    /// The identity of the process.
    pub instance: String,
    /// The role.
    pub role: String,
    /// The version of the program.
    pub version: String,
    /// True if the limits are counted in Redis.
    pub shares_limits: bool,
    /// The time of the last heartbeat.
    pub seen: i64,
}

impl Store {
    /// Records that a node is running, and removes nodes that were not seen since `oldest`.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn heartbeat(&self, node: &NodeRecord, oldest: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        transaction
            .execute("DELETE FROM node WHERE seen < ?", binds![oldest])
            .await?;
        let sql = "UPDATE node SET seen = ? WHERE instance = ?";
        if transaction
            .execute(sql, binds![node.seen, &node.instance])
            .await?
            == 0
        {
            let sql = "INSERT INTO node (name, instance, role, version, shares_limits, seen) VALUES (?, ?, ?, ?, ?, ?)";
            let binds = binds![
                &node.name,
                &node.instance,
                &node.role,
                &node.version,
                node.shares_limits,
                node.seen
            ];
            transaction.execute(sql, binds).await?;
        }
        transaction.commit().await
    }

    /// Records that a node has ended.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn remove_node(&self, instance: &str) -> Result<(), StoreError> {
        let sql = "DELETE FROM node WHERE instance = ?";
        self.pool.execute(sql, binds![instance]).await.map(|_| ())
    }

    /// Returns the recorded nodes in the order of their names.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        let sql =
            "SELECT name, instance, role, version, shares_limits, seen FROM node ORDER BY name, instance";
        let rows = self.pool.rows(sql, Vec::new()).await?;
        let nodes = rows.iter().map(|row| {
            Ok(NodeRecord {
                name: row.text(0)?,
                instance: row.text(1)?,
                role: row.text(2)?,
                version: row.text(3)?,
                shares_limits: row.flag(4)?,
                seen: row.int(5)?,
            })
        });
        nodes.collect()
    }
}
