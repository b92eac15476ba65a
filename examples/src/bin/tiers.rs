//! Customers of two tiers, each with its own policy. An operator changes one of the policies while
//! customers are served.
//!
//! ```sh
//! cargo run -p examples --bin tiers                                       # the policies are in a file
//! REDIS_URL=redis://127.0.0.1/ cargo run -p examples --bin tiers          # in Redis: every replica follows within a second
//! ```
//!
//! The service refers to its policies by name. They are defined in a text, which the service
//! watches: a file that is replaced, such as a mounted config map, or the registry of its namespace
//! in Redis.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use examples::Failure;
use limiter_core::registry::{FileSource, PolicyRegistry};
#[cfg(feature = "redis")]
use limiter_core::registry::{RedisRegistry, RedisSubscription};
use limiter_core::{Limiter, Rejection};

const NAMESPACE: &str = "tiers";

#[derive(Clone, Copy, Debug)]
enum CustomerTier {
    Free,
    Pro,
}

impl CustomerTier {
    /// Returns the name of its policy.
    fn policy(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pro => "pro",
        }
    }
}

struct Customer {
    name: &'static str,
    tier: CustomerTier,
}

impl fmt::Display for Customer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name, self.tier)
    }
}

/// Returns the policies, as an operator writes them.
fn text(a_minute: impl fmt::Display) -> String {
    format!(
        r#"[policy.free]
algorithm = "sliding_window"
limit = {a_minute}
window = "1m"

[policy.pro]
algorithm = "token_bucket"
capacity = 6
rate = "6/min"
"#
    )
}

/// The place where an operator publishes the policies. The service follows it during the life of
/// this value.
enum Operator {
    File {
        path: PathBuf,
        followed: FileSource,
    },
    #[cfg(feature = "redis")]
    Redis {
        /// The operator's own limiter, in another process.
        registry: RedisRegistry,
        followed: RedisSubscription,
    },
}

impl Operator {
    async fn open(limits: &Limiter, store: &str) -> Result<Self, Failure> {
        #[cfg(feature = "redis")]
        if store != examples::MEMORY {
            let operator = examples::limiter(store, NAMESPACE).await?;
            let (registry, operator_access) = (operator.redis_registry()?, limits.redis_registry()?);
            let followed = operator_access.follow();
            followed.synced().await?;
            return Ok(Self::Redis { registry, followed });
        }
        #[cfg(not(feature = "redis"))]
        let _ = store;
        let path = std::env::temp_dir().join(format!("tiers-{}.toml", std::process::id()));
        std::fs::write(&path, text(3))?;
        let followed = FileSource::follow(limits.registry(), &path)?;
        Ok(Self::File { path, followed })
    }

    /// Publishes a text as an operator does.
    async fn put(&self, text: &str) -> Result<(), Failure> {
        match self {
            Self::File { path, .. } => {
                // A rename, so that no reader sees a partial file.
                let new = path.with_extension("new");
                std::fs::write(&new, text)?;
                std::fs::rename(&new, path)?;
            }
            #[cfg(feature = "redis")]
            Self::Redis { registry, .. } => {
                let replaced = registry.read().await?.map_or(0, |(revision, _)| revision);
                registry.publish(text, replaced).await?;
            }
        }
        Ok(())
    }

    /// Returns the current error in the published text.
    fn error_text(&self) -> Option<limiter_core::registry::RegistryError> {
        match self {
            Self::File { followed, .. } => followed.last_error(),
            #[cfg(feature = "redis")]
            Self::Redis { followed, .. } => followed.last_error(),
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        #[cfg_attr(
            not(feature = "redis"),
            expect(irrefutable_let_patterns, reason = "it is a file")
        )]
        if let Self::File { path, .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Waits until the service applies this limit to free customers.
async fn followed(registry: &PolicyRegistry, a_minute: u64) -> Result<(), Failure> {
    let arrives = async {
        loop {
            let revision = registry.revision();
            if let Some(free) = registry.get("free")
                && free.policy().quota().whole() == a_minute
            {
                return;
            }
            registry.changed(revision).await;
        }
    };
    Ok(tokio::time::timeout(Duration::from_secs(10), arrives).await?)
}

/// Prints the number of admitted calls.
async fn calls(limits: &Limiter, customer: &Customer, count: usize) -> Result<usize, Rejection> {
    let mut admitted = 0;
    for _ in 0..count {
        let policy = limits.named(customer.tier.policy());
        admitted += usize::from(policy.check(customer.name).await?.is_allowed());
    }
    println!("  {customer}: {admitted} of {count} calls admitted");
    Ok(admitted)
}

#[tokio::main]
async fn main() -> ExitCode {
    examples::ended(run().await)
}

async fn run() -> Result<(), Failure> {
    let store = examples::store();
    let limits = examples::limiter(&store, NAMESPACE).await?;
    let operator_access = Operator::open(&limits, &store).await?;
    let registry = limits.registry();
    operator_access.put(&text(3)).await?;
    followed(registry, 3).await?;
    let [ann, bob] =
        [("ann", CustomerTier::Free), ("bob", CustomerTier::Pro)].map(|(name, tier)| Customer { name, tier });
    // Clears the state of earlier runs in Redis.
    for (tier, customer) in [
        (CustomerTier::Free, &ann),
        (CustomerTier::Pro, &ann),
        (CustomerTier::Pro, &bob),
    ] {
        limits.named(tier.policy()).reset(customer.name).await?;
    }

    println!("{}", text(3));
    assert_eq!(calls(&limits, &ann, 8).await?, 3);
    assert_eq!(calls(&limits, &bob, 8).await?, 6);

    operator_access.put(&text(5)).await?;
    followed(registry, 5).await?;
    println!("\nFive a minute from now on: the three that she used still count");
    assert_eq!(calls(&limits, &ann, 8).await?, 2);

    // If the text is validated before it is stored, the operator receives the error; otherwise the
    // service reports it.
    let refused = operator_access.put(&text("plenty")).await;
    let error_text = match refused {
        Err(refused) => examples::describe(&refused),
        Ok(()) => reported_error(&operator_access).await?,
    };
    println!("\nAn invalid text changes nothing: {error_text}");
    assert_eq!(calls(&limits, &ann, 8).await?, 0);

    operator_access.put(&text(2)).await?;
    followed(registry, 2).await?;
    println!("\nBack, and further: two a minute");
    assert_eq!(calls(&limits, &ann, 8).await?, 0);

    let upgraded = Customer {
        tier: CustomerTier::Pro,
        ..ann
    };
    println!("\nShe pays, and has a limit of the other tier");
    assert_eq!(calls(&limits, &upgraded, 8).await?, 6);
    Ok(())
}

/// Waits until the service reports an error.
async fn reported_error(operator_access: &Operator) -> Result<String, Failure> {
    for _ in 0..500 {
        if let Some(error_text) = operator_access.error_text() {
            return Ok(error_text.to_string());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("the service reported no error".into())
}
