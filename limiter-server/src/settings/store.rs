//! The settings of the store: limits in the process, or one deployment of Redis.
//!
//! A deployment is one server, a cluster or sentinels, and its URLs are settings or the content of
//! a file. More than one deployment is an error. A deployment on the command line replaces the URLs
//! of the settings file; the namespace and the name of the primary are still read from the file.
//!
//! Tests: below, `tests/redis_deployments.rs`, `tests/control_plane/namespaces.rs`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::settings::secret_file::read_secret;
use crate::settings::{RedisDeployment, SettingsError, StoreSettings};

/// The namespace of a server and of commands without a setting.
pub(crate) const DEFAULT_NAMESPACE: &str = "default";

/// The arguments for [`StoreSettings`], for `serve` and for commands that use Redis.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreArgs {
    /// Redis server that stores the limits and the registry. Default: limits in this process.
    #[arg(long, value_name = "URL", env = "LIMITER_REDIS", hide_env_values = true)]
    pub(super) redis: Option<String>,
    /// File that contains the URL of the Redis server.
    #[arg(
        long,
        value_name = "FILE",
        env = "LIMITER_REDIS_FILE",
        conflicts_with = "redis"
    )]
    pub(super) redis_file: Option<PathBuf>,
    /// Nodes of a Redis Cluster.
    #[arg(
        long,
        value_name = "URL,…",
        value_delimiter = ',',
        env = "LIMITER_REDIS_CLUSTER",
        hide_env_values = true,
        conflicts_with_all = ["redis", "redis_file"]
    )]
    pub(super) redis_cluster: Option<Vec<String>>,
    /// File that contains the URLs of the nodes, separated by commas or line breaks.
    #[arg(
        long,
        value_name = "FILE",
        env = "LIMITER_REDIS_CLUSTER_FILE",
        conflicts_with_all = ["redis", "redis_file", "redis_cluster"]
    )]
    pub(super) redis_cluster_file: Option<PathBuf>,
    /// Redis Sentinels.
    #[arg(
        long,
        value_name = "URL,…",
        value_delimiter = ',',
        env = "LIMITER_REDIS_SENTINEL",
        hide_env_values = true,
        conflicts_with_all = ["redis", "redis_file", "redis_cluster", "redis_cluster_file"]
    )]
    pub(super) redis_sentinel: Option<Vec<String>>,
    /// File that contains the URLs of the sentinels, separated by commas or line breaks.
    #[arg(
        long,
        value_name = "FILE",
        env = "LIMITER_REDIS_SENTINEL_FILE",
        conflicts_with_all = ["redis", "redis_file", "redis_cluster", "redis_cluster_file", "redis_sentinel"]
    )]
    pub(super) redis_sentinel_file: Option<PathBuf>,
    /// Name of the primary that the sentinels watch, or a URL with this name in place of the host.
    #[arg(
        long,
        value_name = "NAME",
        env = "LIMITER_SENTINEL_MASTER",
        hide_env_values = true
    )]
    pub(super) sentinel_master: Option<String>,
    /// File that contains the name of the primary, or the URL.
    #[arg(
        long,
        value_name = "FILE",
        env = "LIMITER_SENTINEL_MASTER_FILE",
        conflicts_with = "sentinel_master"
    )]
    pub(super) sentinel_master_file: Option<PathBuf>,
    /// Namespace of the policies, and first part of every key in Redis. Default: default.
    #[arg(long, value_name = "NAME", env = "LIMITER_NAMESPACE")]
    pub(super) namespace: Option<String>,
}

impl StoreArgs {
    /// Takes the settings that are absent from the file. A store on the command line replaces the
    /// store of the file as a whole.
    pub(super) fn or(self, file: Self, is_example: bool) -> Self {
        let (own, others) = match self.names_redis() || is_example {
            true => (
                self,
                Self {
                    redis: None,
                    redis_file: None,
                    redis_cluster: None,
                    redis_cluster_file: None,
                    redis_sentinel: None,
                    redis_sentinel_file: None,
                    ..file
                },
            ),
            false => (self, file),
        };
        let sets_master = own.sentinel_master.is_some() || own.sentinel_master_file.is_some();
        let (sentinel_master, sentinel_master_file) = match sets_master {
            true => (own.sentinel_master, own.sentinel_master_file),
            false => (others.sentinel_master, others.sentinel_master_file),
        };
        Self {
            redis: own.redis.or(others.redis),
            redis_file: own.redis_file.or(others.redis_file),
            redis_cluster: own.redis_cluster.or(others.redis_cluster),
            redis_cluster_file: own.redis_cluster_file.or(others.redis_cluster_file),
            redis_sentinel: own.redis_sentinel.or(others.redis_sentinel),
            redis_sentinel_file: own.redis_sentinel_file.or(others.redis_sentinel_file),
            sentinel_master,
            sentinel_master_file,
            namespace: own.namespace.or(others.namespace),
        }
    }

    fn names_redis(&self) -> bool {
        let urls = self.redis.is_some() || self.redis_cluster.is_some() || self.redis_sentinel.is_some();
        let files = [
            &self.redis_file,
            &self.redis_cluster_file,
            &self.redis_sentinel_file,
        ];
        urls || files.into_iter().any(Option::is_some)
    }

    /// Returns the store without [namespace tables](crate::settings::namespaces).
    pub(crate) fn resolve(&self) -> Result<StoreSettings, SettingsError> {
        let namespace = self.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        Ok(match self.deployment()? {
            None => StoreSettings::InProcess { namespace },
            Some(deployment) => StoreSettings::Redis {
                deployment,
                namespace,
            },
        })
    }

    /// Returns the deployment; `None` if no setting names one. At most one of them may be present.
    pub(super) fn deployment(&self) -> Result<Option<RedisDeployment>, SettingsError> {
        let mut deployments = Vec::new();
        deployments.extend(self.redis.clone().map(RedisDeployment::Standalone));
        if let Some(path) = &self.redis_file {
            deployments.push(RedisDeployment::Standalone(read_secret(path)?));
        }
        deployments.extend(self.redis_cluster.clone().map(RedisDeployment::Cluster));
        if let Some(path) = &self.redis_cluster_file {
            deployments.push(RedisDeployment::Cluster(read_urls(path)?));
        }
        let sentinels = [
            self.redis_sentinel.clone(),
            self.redis_sentinel_file.as_deref().map(read_urls).transpose()?,
        ];
        for urls in sentinels.into_iter().flatten() {
            let master = self.sentinel_master()?;
            deployments.push(RedisDeployment::Sentinel { urls, master });
        }
        if deployments.len() > 1 {
            return Err(SettingsError::Conflict(
                "several Redis deployments are set, expected one of redis, redis_file, redis_cluster, \
                 redis_cluster_file, redis_sentinel and redis_sentinel_file"
                    .to_owned(),
            ));
        }
        Ok(deployments.pop())
    }

    fn sentinel_master(&self) -> Result<String, SettingsError> {
        match (&self.sentinel_master, &self.sentinel_master_file) {
            (Some(master), None) => Ok(master.clone()),
            (None, Some(path)) => read_secret(path),
            (Some(_), Some(_)) => Err(SettingsError::Conflict(
                "expected either sentinel_master or sentinel_master_file".to_owned(),
            )),
            (None, None) => Err(SettingsError::Conflict(
                "sentinels need sentinel_master or sentinel_master_file, the name of the primary".to_owned(),
            )),
        }
    }
}

/// Reads URLs from a file, separated by commas or line breaks.
fn read_urls(path: &Path) -> Result<Vec<String>, SettingsError> {
    let text = read_secret(path)?;
    let urls = text.split([',', '\n']).map(str::trim);
    let urls: Vec<String> = urls.filter(|url| !url.is_empty()).map(str::to_owned).collect();
    match urls.is_empty() {
        false => Ok(urls),
        true => Err(SettingsError::File {
            path: path.to_owned(),
            reason: "it contains no URL".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files, and removes them with the returned handle.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("limiter-store-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, text: &str) -> Option<PathBuf> {
            let path = self.0.join(name);
            std::fs::write(&path, text).unwrap();
            Some(path)
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn deployment(args: &StoreArgs) -> Result<RedisDeployment, String> {
        match args.resolve() {
            Ok(StoreSettings::Redis { deployment, .. }) => Ok(deployment),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn urls_are_read_from_files() {
        let files = Files::new("urls");
        let urls = vec!["redis://:s@a:6379".to_owned(), "redis://:s@b:6379".to_owned()];
        let cluster = StoreArgs {
            redis_cluster_file: files.write("cluster", "redis://:s@a:6379,\nredis://:s@b:6379\n"),
            ..StoreArgs::default()
        };
        assert_eq!(deployment(&cluster), Ok(RedisDeployment::Cluster(urls.clone())));
        let sentinel = StoreArgs {
            redis_sentinel_file: files.write("sentinel", "redis://:s@a:6379, redis://:s@b:6379"),
            sentinel_master_file: files.write("master", "redis://:p@main\n"),
            ..StoreArgs::default()
        };
        let master = "redis://:p@main".to_owned();
        assert_eq!(
            deployment(&sentinel),
            Ok(RedisDeployment::Sentinel { urls, master })
        );
        for (text, expected) in [("\n", "the file is empty"), (",\n", "no URL")] {
            let without_url = StoreArgs {
                redis_cluster_file: files.write("without", text),
                ..StoreArgs::default()
            };
            let error = deployment(&without_url).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let without_master = StoreArgs {
            sentinel_master_file: None,
            ..sentinel.clone()
        };
        assert!(
            deployment(&without_master)
                .unwrap_err()
                .contains("sentinel_master_file")
        );
        let both = StoreArgs {
            redis: Some("redis://c".to_owned()),
            ..cluster
        };
        assert!(deployment(&both).unwrap_err().contains("several"));
    }

    #[test]
    fn store_on_the_command_line_replaces_that_of_the_file() {
        let file = || StoreArgs {
            redis_cluster_file: Some(PathBuf::from("absent")),
            namespace: Some("prod".to_owned()),
            ..StoreArgs::default()
        };
        let own = StoreArgs {
            redis: Some("redis://c".to_owned()),
            ..StoreArgs::default()
        };
        let StoreSettings::Redis {
            deployment,
            namespace,
        } = own.or(file(), false).resolve().unwrap()
        else {
            panic!("no Redis");
        };
        assert_eq!(deployment, RedisDeployment::Standalone("redis://c".to_owned()));
        assert_eq!(namespace, "prod");
        let example = StoreArgs::default().or(file(), true).resolve().unwrap();
        let namespace = "prod".to_owned();
        assert_eq!(example, StoreSettings::InProcess { namespace });
    }
}
