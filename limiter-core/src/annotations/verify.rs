//! Errors of annotations that only a comparison of all annotations finds.
//!
//! The compiler checks each attribute alone, so two functions can share a policy name by accident,
//! and a named policy can be missing in the registry. `verify_annotations` reads all registered
//! annotations at start-up and reports every error with file and line: policies that cannot be
//! built, shared names, different policies under one name, names without a matching policy, a
//! `need` above the quota, and limits of one function in different groups. Tests: below, and
//! `limiter-macros/tests/behaviour/sites.rs`.

use std::collections::BTreeMap;

use crate::annotations::context;
use crate::annotations::key_template::whole_key;
use crate::annotations::registered::{AnnotationPolicy, FunctionId, RegisteredAnnotation};
use crate::error::ConfigError;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::registry::PolicyRegistry;

/// Checks every annotation of the program: that its policy can be built, that no two functions
/// share a budget by accident, and that functions which share one on purpose have the same limit.
/// Call it at start-up.
///
/// Policies that annotations name (`policy = "search"`) are looked up in the registry of the task's
/// limiter, else of the installed one, unless the function names its `limiter`. The registry must
/// contain them, for any app, with an algorithm that the attribute can use. Call the function after
/// [`install`](crate::annotations::install), and after the registry has been read. Until the first
/// text of a followed registry in Redis arrives, a missing name is not an error.
///
/// A constant `need` above the quota of its policy is also an error: the compiler finds it if the
/// quota is constant, and this function finds it if the policy comes from the registry or the
/// constants are untyped.
///
/// It also finds limits of one function with different keys if one of them has no `group`, since a
/// cluster cannot decide them together. The compiler accepts such attributes, because a limiter
/// with [`standalone_only`](crate::InProcessBuilder::standalone_only) can decide them, and the
/// limiter is known only at run time. Any other limiter rejects every call of the function with
/// [`ConfigError::DifferentGroups`]. Therefore this is not an error if the task's limiter, or else
/// the installed one, is `standalone_only`, and it is not checked if the function names its
/// `limiter`.
///
/// # Errors
///
/// [`ConfigError::Annotations`] with one line for each error.
pub fn verify_annotations() -> Result<(), ConfigError> {
    let annotations = || inventory::iter::<RegisteredAnnotation>.into_iter().copied();
    let mut errors = errors(annotations());
    let limiter = context::installed();
    if !limiter.as_ref().is_some_and(Limiter::is_standalone_only) {
        errors.extend(apart(annotations()));
    }
    if let Some(limiter) = &limiter {
        errors.extend(misnamed(annotations(), limiter.registry()));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ConfigError::Annotations { errors })
    }
}

fn errors(annotations: impl Iterator<Item = RegisteredAnnotation>) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<(RegisteredAnnotation, Option<Policy>)>> = BTreeMap::new();
    let mut errors = Vec::new();
    for annotation in annotations {
        let policy = match annotation.policy {
            AnnotationPolicy::Fixed(policy) => policy(),
            AnnotationPolicy::Computed | AnnotationPolicy::Named => {
                by_name
                    .entry(annotation.name)
                    .or_default()
                    .push((annotation, None));
                continue;
            }
        };
        let policy = policy
            .inspect_err(|error| errors.push(format!("{}: {error}", place(&annotation))))
            .ok();
        errors.extend(policy.as_ref().and_then(|policy| excess(&annotation, policy)));
        by_name
            .entry(annotation.name)
            .or_default()
            .push((annotation, policy));
    }
    for (name, annotations) in by_name {
        let Some(((first, _), others)) = annotations.split_first() else {
            continue;
        };
        let known = |(annotation, policy): &(RegisteredAnnotation, Option<Policy>)| {
            Some((place(annotation), policy.clone()?))
        };
        let known = annotations.iter().find_map(known);
        for (other, policy) in others {
            let (here, there) = (place(other), place(first));
            if !(first.shared && other.shared) {
                errors.push(format!(
                    "{here}: limit `{name}` has the name of {there}, expected a name of its own, or `group = …` in \
                     both to share one budget"
                ));
                continue;
            }
            match (&known, policy) {
                (Some((there, known)), Some(policy)) if known != policy => errors.push(format!(
                    "{here}: {policy} shares a budget with {there}, which has {known}"
                )),
                _ => {}
            }
        }
    }
    errors
}

/// Returns an error for each annotation whose named policy is not in the registry, or has the wrong
/// kind.
fn misnamed(
    annotations: impl Iterator<Item = RegisteredAnnotation>,
    registry: &PolicyRegistry,
) -> Vec<String> {
    let by_name = |annotation: &RegisteredAnnotation| {
        matches!(annotation.policy, AnnotationPolicy::Named) && !annotation.limiter
    };
    let error = |annotation: RegisteredAnnotation| {
        let Some(entry) = registry.get(annotation.name) else {
            let message = format!(
                "{}: no policy is called `{}` in the limiter's registry, expected {}",
                place(&annotation),
                annotation.name,
                names_of(registry)
            );
            return Some(message).filter(|_| !registry.awaits_redis());
        };
        let policy = entry.policy();
        let misfit = (policy.is_concurrency() != annotation.held).then(|| {
            let expected = match annotation.held {
                true => "a concurrency policy, or a rate limiter attribute",
                false => "a rate policy, or `#[concurrency_limiter]`",
            };
            format!(
                "{}: the limiter's registry has {policy}, expected {expected}",
                place(&annotation)
            )
        });
        misfit.or_else(|| excess(&annotation, policy))
    };
    annotations.filter(by_name).filter_map(error).collect()
}

/// Returns the error of a constant `need` that the policy never admits.
fn excess(annotation: &RegisteredAnnotation, policy: &Policy) -> Option<String> {
    let (need, quota) = (annotation.need?().ok()?, policy.quota());
    let place = place(annotation);
    if need > quota {
        return Some(format!(
            "{place}: `need` is {need}, above the quota of {quota} of {policy}, so that no call would ever be allowed"
        ));
    }
    let counts_whole = policy.is_concurrency() || policy.algorithm().is_window();
    (counts_whole && !need.is_whole())
        .then(|| format!("{place}: `need` is {need}, expected whole permits, as {policy} counts"))
}

/// Returns the registered names, if there are only a few.
fn names_of(registry: &PolicyRegistry) -> String {
    const MOST: usize = 10;
    let names = registry.names();
    match names.len() {
        0 => "a registry that has policies".to_owned(),
        1..=MOST => format!("one of `{}`", names.join("`, `")),
        count => format!("one of its {count}"),
    }
}

/// Returns an error for each function whose limits a cluster cannot decide together. Concurrency
/// limits are not part of that decision.
fn apart(annotations: impl Iterator<Item = RegisteredAnnotation>) -> Vec<String> {
    let mut by_function: BTreeMap<(&str, *const FunctionId), Vec<RegisteredAnnotation>> = BTreeMap::new();
    // A limiter that the function names may accept limits of different groups.
    for annotation in annotations.filter(|annotation| !annotation.held && !annotation.limiter) {
        let function = (annotation.function, std::ptr::from_ref(annotation.id));
        by_function.entry(function).or_default().push(annotation);
    }
    let error = |annotations: Vec<RegisteredAnnotation>| {
        // Explicit groups with different texts can have equal values.
        let alone = |annotation: &&RegisteredAnnotation| {
            annotation.group.is_none() && annotation.key.text().is_some()
        };
        let first = annotations.iter().find(alone)?;
        // A key without a group is its own group.
        let group = |annotation: &RegisteredAnnotation| annotation.group.unwrap_or(annotation.key).text();
        let keys: BTreeMap<&str, String> = annotations
            .iter()
            .filter_map(|annotation| {
                Some((
                    group(annotation)?,
                    whole_key(&annotation.key, annotation.group.as_ref()),
                ))
            })
            .collect();
        let keys: Vec<String> = keys.into_values().collect();
        (keys.len() > 1).then(|| {
            format!(
                "{}: its limits are one decision, but have the keys {}, expected the same key, or the same `group = …` \
                 in every attribute, or a limiter that is `standalone_only()`",
                place(first),
                keys.join(" and ")
            )
        })
    };
    by_function.into_values().filter_map(error).collect()
}

fn place(annotation: &RegisteredAnnotation) -> String {
    format!(
        "{} ({}:{})",
        annotation.function, annotation.file, annotation.line
    )
}

#[cfg(test)]
mod tests {
    use crate::annotations::key_template::KeyTemplate;
    use crate::annotations::verify::*;
    use crate::units::Amount;

    fn five() -> Result<Policy, ConfigError> {
        Policy::token_bucket("mail").capacity(5).rate(1).build()
    }

    fn six() -> Result<Policy, ConfigError> {
        Policy::token_bucket("mail").capacity(6).rate(1).build()
    }

    fn none() -> Result<Policy, ConfigError> {
        Policy::token_bucket("mail").capacity(0).rate(1).build()
    }

    static SEND: FunctionId = FunctionId::new();
    static OTHER: FunctionId = FunctionId::new();

    const ANNOTATION: RegisteredAnnotation = RegisteredAnnotation {
        name: "mail",
        function: "a::send",
        file: "a.rs",
        line: 3,
        id: &SEND,
        shared: true,
        limiter: false,
        held: false,
        key: template("{to}"),
        group: None,
        policy: AnnotationPolicy::Fixed(five),
        need: None,
    };

    #[test]
    fn need_above_the_quota_is_an_error() {
        const NEEDS_SIX: RegisteredAnnotation = RegisteredAnnotation {
            need: Some(|| Ok(Amount::from_thousandths(6_000))),
            ..ANNOTATION
        };
        let found = errors([NEEDS_SIX].into_iter());
        assert!(
            found[0].starts_with("a::send (a.rs:3): `need` is 6, above the quota of 5 of mail"),
            "{found:?}"
        );
        let named = RegisteredAnnotation {
            policy: AnnotationPolicy::Named,
            ..NEEDS_SIX
        };
        let of = |policy: Result<Policy, ConfigError>| {
            misnamed([named].into_iter(), &PolicyRegistry::new().with(policy.unwrap()))
        };
        assert_eq!(of(five()), found);
        assert!(of(six()).is_empty());
        let fits = RegisteredAnnotation {
            policy: AnnotationPolicy::Fixed(six),
            ..NEEDS_SIX
        };
        assert!(errors([fits].into_iter()).is_empty());
    }

    #[test]
    fn fractional_need_of_a_window_is_an_error() {
        let halves = RegisteredAnnotation {
            need: Some(|| Ok(Amount::from_thousandths(1_500))),
            policy: AnnotationPolicy::Named,
            ..ANNOTATION
        };
        let of = |policy: Policy| misnamed([halves].into_iter(), &PolicyRegistry::new().with(policy));
        assert!(of(five().unwrap()).is_empty(), "a bucket");
        let window = Policy::fixed_window("mail").limit(5).window("1m").build();
        let found = of(window.unwrap());
        assert!(
            found[0].starts_with("a::send (a.rs:3): `need` is 1.5, expected whole permits, as mail (")
                && found[0].ends_with("counts"),
            "{found:?}"
        );
    }

    const fn template(text: &'static str) -> KeyTemplate {
        KeyTemplate::Template { text, pieces: &[] }
    }

    #[test]
    fn limits_of_one_function_must_share_a_group() {
        let with = |key| RegisteredAnnotation {
            name: "other",
            key,
            ..ANNOTATION
        };
        let of = |text| with(template(text));
        let placed = [
            RegisteredAnnotation {
                group: Some(template("{to}")),
                ..of("a")
            },
            RegisteredAnnotation {
                limiter: true,
                ..of("b")
            },
            with(KeyTemplate::Computed),
        ];
        assert!(apart([ANNOTATION, of("{to}")].into_iter().chain(placed)).is_empty());
        let elsewhere = RegisteredAnnotation {
            id: &OTHER,
            ..of("{tenant}")
        };
        assert!(apart([ANNOTATION, elsewhere].into_iter()).is_empty());
        let found = apart([ANNOTATION, of(""), of("{tenant}")].into_iter());
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains(r#"have the keys "" and "{tenant}" and "{to}", expected the same key"#),
            "{found:?}"
        );
        assert!(
            found[0].ends_with("or a limiter that is `standalone_only()`"),
            "{found:?}"
        );
    }

    #[test]
    fn limit_without_the_group_of_the_others_is_an_error() {
        let in_tenant = RegisteredAnnotation {
            name: "other",
            group: Some(template("{tenant}")),
            ..ANNOTATION
        };
        let of_tenant = RegisteredAnnotation {
            name: "tenant",
            key: template("{tenant}"),
            ..ANNOTATION
        };
        assert!(apart([in_tenant, of_tenant].into_iter()).is_empty(), "one group");
        let elsewhere = RegisteredAnnotation {
            group: Some(template("{customer}")),
            ..in_tenant
        };
        // Different texts of explicit groups can have equal values.
        assert!(apart([in_tenant, elsewhere].into_iter()).is_empty());
        let found = apart([in_tenant, ANNOTATION].into_iter());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains(
                r#"have the keys "{to}" in the group "{tenant}" and "{to}", expected the same key"#
            ),
            "{found:?}"
        );
    }

    #[test]
    fn annotated_name_needs_usable_policy() {
        let registry = PolicyRegistry::new()
            .with(five().unwrap())
            .with(Policy::concurrency("export").max(3).build().unwrap());
        let named = |name, held| RegisteredAnnotation {
            name,
            held,
            policy: AnnotationPolicy::Named,
            ..ANNOTATION
        };
        let message = |annotation: RegisteredAnnotation| misnamed([annotation].into_iter(), &registry);
        assert_eq!(message(named("mail", false)), Vec::<String>::new());
        assert_eq!(message(named("export", true)), Vec::<String>::new());
        assert_eq!(
            message(named("mial", false)),
            [
                "a::send (a.rs:3): no policy is called `mial` in the limiter's registry, expected one of `export`, `mail`"
            ]
        );
        assert!(
            message(named("mail", true))[0]
                .ends_with("expected a concurrency policy, or a rate limiter attribute")
        );
        assert!(
            message(named("export", false))[0]
                .contains("expected a rate policy, or `#[concurrency_limiter]`")
        );
        let elsewhere = RegisteredAnnotation {
            limiter: true,
            ..named("mial", false)
        };
        assert!(message(elsewhere).is_empty(), "the function names its limiter");
        let missing = misnamed([named("mail", false)].into_iter(), &PolicyRegistry::new());
        assert!(
            missing[0].ends_with("expected a registry that has policies"),
            "{missing:?}"
        );
    }

    #[test]
    fn shared_budget_needs_intention_and_equal_limits() {
        let found = |annotations: &[RegisteredAnnotation]| errors(annotations.iter().copied());
        let other = RegisteredAnnotation {
            function: "b::send",
            file: "b.rs",
            ..ANNOTATION
        };
        assert_eq!(
            found(&[
                ANNOTATION,
                other,
                RegisteredAnnotation {
                    policy: AnnotationPolicy::Computed,
                    ..other
                }
            ]),
            Vec::<String>::new()
        );
        assert!(
            found(&[
                ANNOTATION,
                RegisteredAnnotation {
                    policy: AnnotationPolicy::Fixed(six),
                    ..other
                }
            ])[0]
                .starts_with("b::send (b.rs:3): mail (token bucket: 6")
        );
        // The limit of the first annotation is unknown.
        let computed = RegisteredAnnotation {
            policy: AnnotationPolicy::Computed,
            ..other
        };
        let larger = RegisteredAnnotation {
            policy: AnnotationPolicy::Fixed(six),
            ..other
        };
        assert_eq!(found(&[computed, ANNOTATION, larger]).len(), 1);
        assert!(
            found(&[
                ANNOTATION,
                RegisteredAnnotation {
                    shared: false,
                    ..other
                }
            ])[0]
                .contains("has the name of a::send (a.rs:3)")
        );
        assert!(
            found(&[RegisteredAnnotation {
                policy: AnnotationPolicy::Fixed(none),
                ..ANNOTATION
            }])[0]
                .contains("capacity is `0`")
        );
        assert!(
            found(&[
                ANNOTATION,
                RegisteredAnnotation {
                    name: "other",
                    ..other
                }
            ])
            .is_empty()
        );
    }
}
