//! The annotated functions of the program: their limiter, their limits, and checks at start-up.
//!
//! Each attribute registers its function (`registered`). A call uses the limiter that the attribute
//! names, else that of the task ([`with_limiter`]), else that of the program ([`install`]).
//! [`annotations()`] lists the functions, [`verify_annotations`] reports errors that only a
//! comparison of several annotations finds, and [`Limiter::annotation`](crate::Limiter::annotation)
//! reads and resets the usage of a key.
//!
//! Invariant: in a release build, an annotated function without a limiter rejects each call.

// Tests: `tests/install.rs`, `limiter-macros/tests/behaviour.rs`.

pub(crate) mod context;
pub(crate) mod key_template;
pub(crate) mod limits;
pub(crate) mod registered;
mod verify;

use std::fmt;

pub use crate::annotations::context::{install, with_limiter};
pub(crate) use crate::annotations::key_template::build_key;
pub use crate::annotations::limits::{AnnotationLimit, KeyLimit};
use crate::annotations::registered::{AnnotationPolicy, RegisteredAnnotation};
pub use crate::annotations::verify::verify_annotations;
use crate::error::ConfigError;
use crate::policy::Policy;

/// One annotation: a limiter attribute of one function. [`annotations`] returns all of a program.
///
/// It displays as one line: name, function, file and line, key, policy.
#[derive(Clone, Copy)]
pub struct Annotation(pub(crate) &'static RegisteredAnnotation);

/// Returns all annotations of the program, including those of its libraries, in the order of file,
/// line and name.
///
/// An attribute of an `impl` block is an annotation of each method that it limits.
///
/// ```
/// use limiter_core::annotations::annotations;
/// use limiter_core::{Rejection, token_limiter};
///
/// #[token_limiter(name = "catalogue", capacity = 20, rate = 10, key = "user:{user}")]
/// async fn search(user: &str) -> Result<String, Rejection> {
///     Ok(format!("{user} found nothing"))
/// }
///
/// for annotation in annotations() {
///     println!("{annotation}"); // catalogue: … (src/search.rs:12), key "user:{user}", token bucket: …
/// }
/// let annotation = annotations().into_iter().find(|annotation| annotation.name() == "catalogue").unwrap();
/// assert!(annotation.function().ends_with("::search") && annotation.line() > 1);
/// assert_eq!(annotation.key(), Some("user:{user}"));
/// assert_eq!(annotation.policy()?.quota().whole(), 20);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[must_use]
pub fn annotations() -> Vec<Annotation> {
    let mut annotations: Vec<Annotation> = inventory::iter::<RegisteredAnnotation>
        .into_iter()
        .map(Annotation)
        .collect();
    annotations.sort_by_key(|annotation| (annotation.file(), annotation.line(), annotation.name()));
    annotations
}

impl Annotation {
    /// Returns the policy's name. Annotations with the same name share a budget.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Returns the function's path, such as `shop::mail::send`, or with its type for an attribute
    /// of an `impl` block: `shop::mail::Outbox::send`.
    #[must_use]
    pub fn function(&self) -> &'static str {
        self.0.function
    }

    /// Returns the source file, with the path that the compiler received.
    #[must_use]
    pub fn file(&self) -> &'static str {
        self.0.file
    }

    /// Returns the line of the attribute, counted from 1, or the line of the method for an
    /// attribute of an `impl` block.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.0.line
    }

    /// Returns the key as written in the attribute, such as `user:{claims.sub}`; `""` if all calls
    /// share one. `None` for an expression.
    #[must_use]
    pub fn key(&self) -> Option<&'static str> {
        self.0.key.text()
    }

    /// Returns the key's group as written in the attribute. `None` if there is none, and for an
    /// expression.
    #[must_use]
    pub fn group(&self) -> Option<&'static str> {
        self.0.group.and_then(|group| group.text())
    }

    /// Returns the policy, if every call uses one policy.
    ///
    /// # Errors
    ///
    /// The policy depends on the arguments of a call or comes from the registry (`policy = "…"`),
    /// or one of its parameters is invalid.
    pub fn policy(&self) -> Result<Policy, ConfigError> {
        let expected = match self.0.policy {
            AnnotationPolicy::Fixed(policy) => return policy(),
            AnnotationPolicy::Computed => {
                "an attribute whose policy does not depend on the arguments of a call"
            }
            AnnotationPolicy::Named => {
                "an attribute with its own policy parameters; this one names a policy of the registry"
            }
        };
        Err(ConfigError::invalid("annotation", self.0.name, expected))
    }
}

impl fmt::Display for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegisteredAnnotation {
            name,
            function,
            file,
            line,
            key,
            policy,
            ..
        } = self.0;
        write!(f, "{name}: {function} ({file}:{line}), key {key}, ")?;
        match policy {
            AnnotationPolicy::Computed => f.write_str("policy from its arguments"),
            AnnotationPolicy::Named => f.write_str("policy by its name"),
            AnnotationPolicy::Fixed(policy) => match policy() {
                Ok(policy) => write!(f, "{policy}"),
                Err(error) => write!(f, "no policy: {error}"),
            },
        }
    }
}

impl fmt::Debug for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Annotation({self})")
    }
}
