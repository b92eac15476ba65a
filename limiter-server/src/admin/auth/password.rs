//! Passwords: argon2id, at most two computations at once.
//!
//! Each computation needs 19 MiB and some 20 ms. A sign-in with an unknown name computes the same
//! as one with a wrong password, so the time reveals no names.

use std::sync::Arc;
use std::time::Duration;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use tokio::sync::Semaphore;

/// The largest number of concurrent computations.
const MAX_COMPUTATIONS: usize = 2;
/// How long a sign-in waits for its computation.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The shortest password in characters.
pub const MIN_LENGTH: usize = 12;
/// The longest password in bytes.
const MAX_BYTES: usize = 1_024;

/// Computes and verifies hashes of passwords. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Passwords {
    computations: Arc<Semaphore>,
    /// The hash of a random password, for names without an account.
    unknown: Arc<str>,
}

/// Why a password was not computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PasswordError {
    /// The password is too short or too long.
    Unsuitable(&'static str),
    /// Too many computations wait.
    Busy,
}

impl Passwords {
    /// Prepares the hash for unknown names, which takes one computation.
    ///
    /// # Errors
    ///
    /// The reason as one message.
    pub fn new() -> Result<Self, String> {
        let unknown = compute(crate::secret::random_id().as_bytes())?;
        Ok(Self {
            computations: Arc::new(Semaphore::new(MAX_COMPUTATIONS)),
            unknown: unknown.into(),
        })
    }

    /// The hash of a new password.
    ///
    /// # Errors
    ///
    /// [`PasswordError`] for an unsuitable password, and under overload.
    pub async fn hash(&self, password: String) -> Result<String, PasswordError> {
        if password.chars().count() < MIN_LENGTH {
            return Err(PasswordError::Unsuitable(
                "expected a password of at least 12 characters",
            ));
        }
        if password.len() > MAX_BYTES {
            return Err(PasswordError::Unsuitable(
                "expected a password of at most 1024 bytes",
            ));
        }
        let computed = self.run(move || compute(password.as_bytes())).await?;
        computed.map_err(|_| PasswordError::Busy)
    }

    /// Whether a password matches a hash. Without a hash, it does not, after the same computation.
    ///
    /// # Errors
    ///
    /// [`PasswordError::Busy`] under overload.
    pub async fn verify(&self, password: String, hash: Option<String>) -> Result<bool, PasswordError> {
        if password.len() > MAX_BYTES {
            return Ok(false);
        }
        let is_known = hash.is_some();
        let hash = hash.unwrap_or_else(|| self.unknown.to_string());
        let matches = self.run(move || matches(password.as_bytes(), &hash)).await?;
        Ok(matches && is_known)
    }

    async fn run<T: Send + 'static>(
        &self,
        computation: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PasswordError> {
        let acquire = Arc::clone(&self.computations).acquire_owned();
        let permit = tokio::time::timeout(MAX_WAIT, acquire).await;
        let permit = permit.ok().and_then(Result::ok).ok_or(PasswordError::Busy)?;
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            computation()
        });
        task.await.map_err(|_| PasswordError::Busy)
    }
}

fn compute(password: &[u8]) -> Result<String, String> {
    let mut salt = [0_u8; 16];
    getrandom::fill(&mut salt)
        .map_err(|error| format!("cannot read random numbers for a password: {error}"))?;
    let hash = Argon2::default().hash_password_with_salt(password, &salt);
    hash.map(|hash| hash.to_string())
        .map_err(|error| format!("cannot hash a password: {error}"))
}

fn matches(password: &[u8], hash: &str) -> bool {
    let parsed = PasswordHash::new(hash);
    parsed.is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn password_matches_its_own_hash_only() {
        let passwords = Passwords::new().unwrap();
        let hash = passwords.hash("correct horse battery".to_owned()).await.unwrap();
        assert!(hash.starts_with("$argon2id$"), "{hash}");
        let verify = |password: &str, hash: Option<String>| passwords.verify(password.to_owned(), hash);
        assert_eq!(
            verify("correct horse battery", Some(hash.clone())).await,
            Ok(true)
        );
        assert_eq!(verify("correct horse batterz", Some(hash)).await, Ok(false));
        assert_eq!(verify("correct horse battery", None).await, Ok(false));
        assert_eq!(verify("x", Some("malformed".to_owned())).await, Ok(false));
    }

    #[tokio::test]
    async fn unsuitable_passwords_are_rejected() {
        let passwords = Passwords::new().unwrap();
        for password in ["short".to_owned(), "x".repeat(1_025)] {
            let hashed = passwords.hash(password).await;
            assert!(matches!(hashed, Err(PasswordError::Unsuitable(_))), "{hashed:?}");
        }
    }

    #[tokio::test]
    async fn at_most_two_computations_run_at_once() {
        let passwords = Passwords::new().unwrap();
        let _both = passwords.computations.acquire_many(2).await.unwrap();
        let started = passwords.computations.available_permits();
        assert_eq!(started, 0);
        tokio::time::pause();
        let refused = passwords.verify("password".to_owned(), None).await;
        assert_eq!(refused, Err(PasswordError::Busy));
    }
}
