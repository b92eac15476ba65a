//! The annotated functions of the program.

pub(crate) mod context;
pub(crate) mod key_template;
pub(crate) mod limits;
pub(crate) mod registered;
mod verify;

use std::fmt;

pub use crate::annotations::context::{install, with_limiter};
pub(crate) use crate::annotations::key_template::place;
pub use crate::annotations::limits::{AnnotationLimit, KeyLimit};
use crate::annotations::registered::{AnnotationPolicy, RegisteredAnnotation};
pub use crate::annotations::verify::verify_annotations;
use crate::error::ConfigError;
use crate::policy::Policy;

/// One annotated place: a limiter attribute in front of one function. All of a program are told by
/// [`annotations`].
///
/// It displays as one line: name, function, file and line, key, policy.
#[derive(Clone, Copy)]
pub struct Annotation(pub(crate) &'static RegisteredAnnotation);

/// Every annotated place of the program, those of its libraries included, in the order of file,
/// line and name.
///
/// An attribute of an `impl` block is a place of each method that it limits.
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
/// for site in annotations() {
///     println!("{site}"); // catalogue: … (src/search.rs:12), key "user:{user}", token bucket: …
/// }
/// let site = annotations().into_iter().find(|site| site.name() == "catalogue").unwrap();
/// assert!(site.function().ends_with("::search") && site.line() > 1);
/// assert_eq!(site.key(), Some("user:{user}"));
/// assert_eq!(site.policy()?.quota().whole(), 20);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[must_use]
pub fn annotations() -> Vec<Annotation> {
    let mut sites: Vec<Annotation> = inventory::iter::<RegisteredAnnotation>
        .into_iter()
        .map(Annotation)
        .collect();
    sites.sort_by_key(|site| (site.file(), site.line(), site.name()));
    sites
}

impl Annotation {
    /// The policy's name. Places with the same name share a budget.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The function's path, such as `shop::mail::send`; with its type, `shop::mail::Outbox::send`,
    /// where the attribute is that of an `impl` block.
    #[must_use]
    pub fn function(&self) -> &'static str {
        self.0.function
    }

    /// The file in which it stands, as the compiler was told of it.
    #[must_use]
    pub fn file(&self) -> &'static str {
        self.0.file
    }

    /// The line in which the attribute stands, counted from 1; the method's line, where the
    /// attribute is that of an `impl` block.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.0.line
    }

    /// The key as it is written, such as `user:{claims.sub}`; `""` where everybody shares one.
    /// `None` where it is an expression.
    #[must_use]
    pub fn key(&self) -> Option<&'static str> {
        self.0.key.text()
    }

    /// The key's group as it is written. `None` where there is none, and where it is an expression.
    #[must_use]
    pub fn group(&self) -> Option<&'static str> {
        self.0.group.and_then(|group| group.text())
    }

    /// What is limited, where that is the same on every call.
    ///
    /// # Errors
    ///
    /// The policy depends on the arguments of a call, or is kept elsewhere (`policy = "…"`), or one
    /// of its parameters cannot be used.
    pub fn policy(&self) -> Result<Policy, ConfigError> {
        let expected = match self.0.policy {
            AnnotationPolicy::Fixed(policy) => return policy(),
            AnnotationPolicy::Computed => {
                "one whose policy does not depend on the arguments of a call, as this one's does"
            }
            AnnotationPolicy::Named => {
                "one that says its policy itself, where this one names one that is kept elsewhere"
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
        write!(f, "Site({self})")
    }
}
