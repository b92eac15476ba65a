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
    /// Where it stands.
    pub file: &'static str,
    /// Where it stands.
    pub line: u32,
    /// Where the function's name stands, which all of its attributes have in common.
    pub function_line: u32,
    /// The budget is meant to be shared with other functions that name it.
    pub shared: bool,
    /// The function names its limiter.
    pub limiter: bool,
    /// What is taken is held while the function runs.
    pub held: bool,
    /// Whose permits a call takes.
    pub key: KeyTemplate,
    /// Where the key lies, if that is said.
    pub group: Option<KeyTemplate>,
    /// What is limited.
    pub policy: AnnotationPolicy,
    /// The cost of each call, if it is constant and not 1.
    pub need: Option<fn() -> Result<Amount, ConfigError>>,
}

inventory::collect!(RegisteredAnnotation);

/// Where an annotation's policy comes from.
#[derive(Clone, Copy, Debug)]
pub enum AnnotationPolicy {
    /// The same on every call.
    Fixed(fn() -> Result<Policy, ConfigError>),
    /// Built from the arguments of a call.
    Computed,
    /// Kept elsewhere, under the annotation's name.
    Named,
}
