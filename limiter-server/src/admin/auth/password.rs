//! Passwords: argon2id, one computation at once, or two on four processors or more.
//!
//! Each computation needs 19 MiB and some 20 ms. At least half of the processors remain for
//! decisions: with a computation on each processor, the 99th percentile of the decisions rises by
//! more than a millisecond, although computations have the idle policy (`tests/isolation.rs`). A
//! sign-in with an unknown name computes as one with a wrong password, so the time reveals no
//! names.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use argon2::password_hash::phc::{Output, ParamsString, PasswordHash, Salt};
use argon2::password_hash::{self, CustomizedPasswordHasher, PasswordVerifier as _};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use tokio::sync::{Semaphore, mpsc};

use crate::priority;

/// The largest number of concurrent computations, which is also that of half of the processors.
const MAX_COMPUTATIONS: usize = 2;
/// The time for which a sign-in waits for its computation.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The time for which a computation waits for an idle processor.
const MAX_IDLE_WAIT: Duration = Duration::from_secs(1);
/// The shortest password in characters.
pub const MIN_LENGTH: usize = 12;
/// The longest password in bytes.
const MAX_BYTES: usize = 1_024;

/// Computes and verifies hashes of passwords. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Passwords {
    computations: Arc<Semaphore>,
    /// The memory of earlier computations, at most [`MAX_COMPUTATIONS`].
    memories: Arc<Mutex<Vec<Memory>>>,
    /// The hash of a random password, for names without an account.
    unknown: Arc<str>,
}

/// The reason for a password hash that was not computed.
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
        let unknown = Memory::default().compute(crate::secret::random_id().as_bytes())?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            computations: Arc::new(Semaphore::new(computations_at_once(processors))),
            memories: Arc::default(),
            unknown: unknown.into(),
        })
    }

    /// Returns the hash of a new password.
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
        let computed = self
            .run(move |memory| memory.compute(password.as_bytes()))
            .await?;
        computed.map_err(|_| PasswordError::Busy)
    }

    /// Returns whether a password matches a hash. Without a hash, returns false after an equal
    /// computation, so that the time does not show whether a user exists.
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
        let matches = self
            .run(move |memory| memory.matches(password.as_bytes(), &hash))
            .await?;
        Ok(matches && is_known)
    }

    /// Runs a computation when processors are idle, and a second time with the priority of the
    /// control plane if they are busy for too long.
    async fn run<T: Send + 'static>(
        &self,
        computation: impl Fn(&Memory) -> T + Clone + Send + 'static,
    ) -> Result<T, PasswordError> {
        let acquire = Arc::clone(&self.computations).acquire_owned();
        let permit = tokio::time::timeout(MAX_WAIT, acquire).await;
        let permit = Arc::new(permit.ok().and_then(Result::ok).ok_or(PasswordError::Busy)?);
        let (result, mut results) = mpsc::unbounded_channel();
        let start = |prepare: fn()| {
            let (computation, result, permit) = (computation.clone(), result.clone(), Arc::clone(&permit));
            let memories = Arc::clone(&self.memories);
            let compute = move || {
                prepare();
                let lock = || memories.lock().unwrap_or_else(PoisonError::into_inner);
                let memory = lock().pop().unwrap_or_default();
                // The receiver is gone after the first result, or if the client has left.
                let _ = result.send(computation(&memory));
                let mut memories = lock();
                if memories.len() < MAX_COMPUTATIONS {
                    memories.push(memory);
                }
                drop(permit);
            };
            // A thread of its own, since no thread leaves the idle policy without privileges.
            std::thread::Builder::new()
                .name("password".to_owned())
                .spawn(compute)
                .map_err(|_| PasswordError::Busy)
        };
        start(priority::run_when_idle)?;
        if let Ok(result) = tokio::time::timeout(MAX_IDLE_WAIT, results.recv()).await {
            return result.ok_or(PasswordError::Busy);
        }
        start(|| {})?;
        drop(result);
        results.recv().await.ok_or(PasswordError::Busy)
    }
}

fn computations_at_once(processors: usize) -> usize {
    (processors / 2).clamp(1, MAX_COMPUTATIONS)
}

/// The memory of a computation. It is kept, because the kernel would clear 19 MiB for each
/// computation, and would interrupt the threads of decisions when they are returned.
#[derive(Debug, Default)]
struct Memory(RefCell<Vec<Block>>);

impl Memory {
    fn compute(&self, password: &[u8]) -> Result<String, String> {
        let mut salt = [0_u8; 16];
        getrandom::fill(&mut salt)
            .map_err(|error| format!("cannot read random numbers for a password: {error}"))?;
        let hash = self.hash_password_with_params(password, &salt, Params::default());
        hash.map(|hash| hash.to_string())
            .map_err(|error| format!("cannot hash a password: {error}"))
    }

    fn matches(&self, password: &[u8], hash: &str) -> bool {
        let parsed = PasswordHash::new(hash);
        parsed.is_ok_and(|hash| self.verify_password(password, &hash).is_ok())
    }
}

impl CustomizedPasswordHasher<PasswordHash> for Memory {
    type Params = Params;

    fn hash_password_customized(
        &self,
        password: &[u8],
        salt: &[u8],
        algorithm: Option<&str>,
        version: Option<u32>,
        params: Params,
    ) -> password_hash::Result<PasswordHash> {
        let algorithm = algorithm
            .map(Algorithm::try_from)
            .transpose()?
            .unwrap_or_default();
        let version = version.map(Version::try_from).transpose()?.unwrap_or_default();
        let mut output = vec![0; params.output_len().unwrap_or(Params::DEFAULT_OUTPUT_LEN)];
        let mut memory = self.0.borrow_mut();
        memory.resize(params.block_count(), Block::new());
        Argon2::new(algorithm, version, params.clone()).hash_password_into_with_memory(
            password,
            salt,
            &mut output,
            &mut **memory,
        )?;
        Ok(PasswordHash {
            algorithm: algorithm.ident(),
            version: Some(version.into()),
            params: ParamsString::try_from(&params)?,
            salt: Some(Salt::new(salt)?),
            hash: Some(Output::new(&output)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn computation_without_an_idle_processor_is_repeated() {
        let passwords = Passwords::new().unwrap();
        let is_first = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let computation = move |_: &Memory| {
            if is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
                // Waits until the test ends.
                let _ = released.lock().unwrap().recv();
                return "first";
            }
            "second"
        };
        assert_eq!(passwords.run(computation).await, Ok("second"));
        drop(release);
    }

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
    async fn computations_leave_half_of_the_processors() {
        let numbers = [1, 2, 3, 4, 64].map(computations_at_once);
        assert_eq!(numbers, [1, 1, 1, 2, 2]);
        let passwords = Passwords::new().unwrap();
        let all = u32::try_from(passwords.computations.available_permits()).unwrap();
        let _all = passwords.computations.acquire_many(all).await.unwrap();
        tokio::time::pause();
        let refused = passwords.verify("password".to_owned(), None).await;
        assert_eq!(refused, Err(PasswordError::Busy));
    }
}
