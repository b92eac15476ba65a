//! The form in which the expansion of an attribute registers its function.

use crate::annotations::key_template::KeyTemplate;
use crate::error::ConfigError;
use crate::policy::Policy;
use crate::units::Amount;

/// One limiter attribute of one function, as the expansion registers it.
#[derive(Clone, Copy, Debug)]
pub struct RegisteredAnnotation {
    /// The policy's name.
    pub name: &'static str,
    /// The function's path.
    pub function: &'static str,
    /// The source file.
    pub file: &'static str,
    /// The line of the attribute.
    pub line: u32,
    /// Identifies the function: one static for all of its attributes.
    pub id: &'static FunctionId,
    /// Other functions may use the same policy name on purpose.
    pub shared: bool,
    /// The function names its limiter.
    pub limiter: bool,
    /// The attribute is `concurrency_limiter`: permits are held while the function runs.
    pub held: bool,
    /// The key of a call.
    pub key: KeyTemplate,
    /// The group of the key, if the attribute names one.
    pub group: Option<KeyTemplate>,
    /// The source of the policy.
    pub policy: AnnotationPolicy,
    /// The cost of each call, if it is constant.
    pub need: Option<fn() -> Result<Amount, ConfigError>>,
}

inventory::collect!(RegisteredAnnotation);

/// Identifies an annotated function by the address of a static. Neither its path nor its line does:
/// the path of a method lacks its type, and all functions that a macro generates have one line.
#[derive(Debug)]
#[expect(dead_code, reason = "a static without a size has no address of its own")]
pub struct FunctionId(u8);

impl FunctionId {
    /// Creates the identity of one function.
    #[expect(
        clippy::new_without_default,
        reason = "only expansions of attributes create one"
    )]
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }
}

/// The source of an annotation's policy.
#[derive(Clone, Copy, Debug)]
pub enum AnnotationPolicy {
    /// One policy for all calls.
    Fixed(fn() -> Result<Policy, ConfigError>),
    /// Built from the arguments of a call.
    Computed,
    /// Looked up in the registry of the limiter, by the name of the annotation.
    Named,
}
