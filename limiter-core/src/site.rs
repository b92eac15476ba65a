//! The annotated functions of the program, and the mistakes that only show when they are seen together.

use std::collections::{BTreeMap, BTreeSet};

use crate::context;
use crate::error::ConfigError;
use crate::policy::Policy;

/// One limiter attribute of one function. The expansion registers it.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// The policy's name.
    pub name: &'static str,
    /// The function's path.
    pub function: &'static str,
    /// Where it stands.
    pub file: &'static str,
    /// Where it stands.
    pub line: u32,
    /// The budget is meant to be shared with other functions that name it.
    pub shared: bool,
    /// The key's text; `None` where it does not tell the group: there is a `group`, an expression, or a `limiter`.
    pub key: Option<&'static str>,
    /// The policy, unless it depends on the arguments of a call.
    pub policy: Option<fn() -> Result<Policy, ConfigError>>,
}

inventory::collect!(Site);

/// Checks every annotation of the program: that its policy can be built, that no two functions share a budget by
/// accident, and that those which share one by intention mean the same limit. Call it at start-up.
///
/// It also finds limits of one function whose keys are written differently and which have no `group`, since no cluster
/// could decide them together; unless the task's limiter, or else the installed one, is `standalone_only`, or the function
/// names its `limiter`.
///
/// # Errors
///
/// [`ConfigError::Sites`] with one line for each mistake.
pub fn verify_sites() -> Result<(), ConfigError> {
    let sites = || inventory::iter::<Site>.into_iter().copied();
    let mut mistakes = mistakes(sites());
    if !context::current_needs_no_cluster() {
        mistakes.extend(apart(sites()));
    }
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(ConfigError::Sites { mistakes })
    }
}

fn mistakes(sites: impl Iterator<Item = Site>) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<(Site, Option<Policy>)>> = BTreeMap::new();
    let mut mistakes = Vec::new();
    for site in sites {
        let policy = match site.policy.map(|policy| policy()) {
            Some(Ok(policy)) => Some(policy),
            Some(Err(error)) => {
                mistakes.push(format!("{}: {error}", place(&site)));
                None
            }
            None => None,
        };
        by_name.entry(site.name).or_default().push((site, policy));
    }
    for (name, sites) in by_name {
        let Some(((first, first_policy), others)) = sites.split_first() else {
            continue;
        };
        for (other, policy) in others {
            let (here, there) = (place(other), place(first));
            if !(first.shared && other.shared) {
                mistakes.push(format!(
                    "{here}: limit `{name}` has the name of {there}, expected a name of its own, or `group = …` in \
                     both to share one budget"
                ));
            } else if let (Some(first_policy), Some(policy)) = (first_policy, policy)
                && first_policy != policy
            {
                mistakes.push(format!(
                    "{here}: {policy} shares a budget with {there}, which says {first_policy}"
                ));
            }
        }
    }
    mistakes
}

/// The functions whose limits no cluster could decide at one place.
fn apart(sites: impl Iterator<Item = Site>) -> Vec<String> {
    let mut by_function: BTreeMap<(&str, &str, u32), (Site, BTreeSet<&str>)> = BTreeMap::new();
    for site in sites {
        if let Some(key) = site.key {
            // All attributes of a function have its line, and two functions of one path (in different impls) do not.
            let function = (site.function, site.file, site.line);
            let (_, keys) = by_function
                .entry(function)
                .or_insert_with(|| (site, BTreeSet::new()));
            keys.insert(key);
        }
    }
    let apart = by_function.into_values().filter(|(_, keys)| keys.len() > 1);
    let mistake = |(site, keys): (Site, BTreeSet<&str>)| {
        let keys: Vec<String> = keys.iter().map(|key| format!("\"{key}\"")).collect();
        format!(
            "{}: its limits are one decision, but have the keys {}, expected the same key, or the same `group = …` in \
             every attribute",
            place(&site),
            keys.join(" and ")
        )
    };
    apart.map(mistake).collect()
}

fn place(site: &Site) -> String {
    format!("{} ({}:{})", site.function, site.file, site.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn five() -> Result<Policy, ConfigError> {
        Policy::token_bucket("mail").capacity(5).rate(1).build()
    }

    fn six() -> Result<Policy, ConfigError> {
        Policy::token_bucket("mail").capacity(6).rate(1).build()
    }

    fn none() -> Result<Policy, ConfigError> {
        Policy::token_bucket("mail").capacity(0).rate(1).build()
    }

    const SITE: Site = Site {
        name: "mail",
        function: "a::send",
        file: "a.rs",
        line: 3,
        shared: true,
        key: Some("{to}"),
        policy: Some(five),
    };

    #[test]
    fn limits_of_one_function_lie_together() {
        let with = |key| Site {
            name: "other",
            key,
            ..SITE
        };
        assert!(apart([SITE, with(Some("{to}")), with(None)].into_iter()).is_empty());
        let elsewhere = Site {
            line: 9,
            ..with(Some("{tenant}"))
        };
        assert!(apart([SITE, elsewhere].into_iter()).is_empty());
        let found = apart([SITE, with(Some("")), with(Some("{tenant}"))].into_iter());
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains(r#"have the keys "" and "{tenant}" and "{to}", expected the same key"#),
            "{found:?}"
        );
    }

    #[test]
    fn a_budget_is_shared_by_intention_and_with_one_meaning() {
        let found = |sites: &[Site]| mistakes(sites.iter().copied());
        let other = Site {
            function: "b::send",
            file: "b.rs",
            ..SITE
        };
        assert_eq!(
            found(&[
                SITE,
                other,
                Site {
                    policy: None,
                    ..other
                }
            ]),
            Vec::<String>::new()
        );
        assert!(
            found(&[
                SITE,
                Site {
                    policy: Some(six),
                    ..other
                }
            ])[0]
                .starts_with("b::send (b.rs:3): mail (token bucket: 6")
        );
        assert!(
            found(&[
                SITE,
                Site {
                    shared: false,
                    ..other
                }
            ])[0]
                .contains("has the name of a::send (a.rs:3)")
        );
        assert!(
            found(&[Site {
                policy: Some(none),
                ..SITE
            }])[0]
                .contains("capacity is `0`")
        );
        assert!(
            found(&[
                SITE,
                Site {
                    name: "other",
                    ..other
                }
            ])
            .is_empty()
        );
    }
}
