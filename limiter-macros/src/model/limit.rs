//! Checks one attribute and combines its arguments to a `Limit`.
//!
//! Each argument is read on its own before the first early return, so that the errors of all of
//! them are reported. Then the arguments are compared with each other: a literal `need` with the
//! quota, and the arguments of a limit with a `policy` that defines them.
//!
//! The name of the policy must not be shared by accident: a method needs a `name`, `group` or
//! `policy`, because the attribute does not see its type. Tests: `tests/ui/fail`
//! (`method_without_name.rs`, `need_*.rs`, `policy_and_name.rs`), `tests/behaviour/named.rs`.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{Expr, LitStr, Macro, Path, PathSegment};

use super::numbers::algorithm;
use super::settings::{deadline, lease, on_store_failure};
use super::{Algorithm, Key, Limit, Name};
use crate::argument_parser::Args;
use crate::argument_table::{ALLOWED_WITH_POLICY, ArgumentName, AttributeKind};
use crate::constant_expr::peel;
use crate::diagnostics::Diagnostics;
use crate::fallback::Fallback;
use crate::func::Func;
use crate::literal::{self, Number};
use crate::template::{Names, Template, placeholder_in};

const MAX_NAME_BYTES: usize = 256;
/// The names that an attribute can refer to.
pub(super) struct Scope<'a> {
    pub(super) func: &'a Func,
    pub(super) names: Names,
    pub(super) is_method: bool,
    /// The type of the surrounding block, if it is annotated.
    pub(super) owner: Option<&'a str>,
    /// The arguments are unknown, because the function itself cannot be limited.
    pub(super) no_args: bool,
}

impl Scope<'_> {
    /// Checks one attribute. Reports all errors before it returns.
    pub(super) fn limit(
        &self,
        args: &mut Args,
        of_block: bool,
        diagnostics: &mut Diagnostics,
    ) -> Option<Limit> {
        if let Some(place) = args.span_of(ArgumentName::Except).filter(|_| !of_block) {
            let message = "`except` excludes methods of an annotated `impl` block: set it in the attribute of the block";
            diagnostics.at(place, message);
        }
        let key = args
            .take_value(ArgumentName::Key)
            .and_then(|expr| self.key(expr, diagnostics));
        let group = args
            .take_value(ArgumentName::Group)
            .and_then(|expr| self.key(expr, diagnostics));
        let is_named = args.span_of(ArgumentName::Policy).is_some();
        let (name, shared) = match is_named {
            true => (named(args, &self.names, diagnostics), true),
            false => self.name(args, group.as_ref(), of_block, diagnostics),
        };
        let read_need = match args.kind {
            AttributeKind::Window | AttributeKind::Concurrency => Number::read_whole,
            _ => Number::read,
        };
        let need = args
            .take_value(ArgumentName::Need)
            .map(|expr| read_need(expr, "need", "need = 2"));
        let need = need.map(|need| diagnostics.ok(need));
        let algorithm = match is_named {
            true => Some(Algorithm::Named {
                held: args.kind == AttributeKind::Concurrency,
            }),
            false => algorithm(args, diagnostics),
        };
        let deadline = args
            .take_value(ArgumentName::Deadline)
            .and_then(|expr| deadline(expr, diagnostics));
        let on_store_failure = args
            .take_value(ArgumentName::OnStoreFailure)
            .and_then(|expr| on_store_failure(&expr, diagnostics));
        let lease = args
            .take_value(ArgumentName::Lease)
            .and_then(|expr| lease(args.kind, expr, diagnostics));
        let fallback = Fallback::read(args, self.func.sig.receiver(), diagnostics);
        let count_if = args
            .take_value(ArgumentName::CountIf)
            .and_then(|expr| count_if(expr, diagnostics));

        let (algorithm, need) = (algorithm?, need.map_or(Some(None), |need| need.map(Some))?);
        match (algorithm.quota(), &need) {
            (Some((word, Number::Literal(quota))), Some(Number::Literal(cost))) if cost > quota => {
                let [cost, quota] = [cost, quota].map(literal::permits);
                let message = format!(
                    "`need` is {cost}, above the `{word}` of {quota}, so that no call would ever be allowed"
                );
                diagnostics.at(args.span_of(ArgumentName::Need).unwrap_or(args.span), message);
            }
            // The quotas of the other attributes are whole.
            (Some((word, Number::Literal(quota))), None) if *quota < 1_000 => {
                let quota = literal::permits(quota);
                let message = format!(
                    "`{word}` is {quota}, below the permit that a call needs by default, so that no call would ever be \
                     allowed: give it at least 1, or add `need = {quota}`"
                );
                diagnostics.at(args.span_of(ArgumentName::Capacity).unwrap_or(args.span), message);
            }
            _ => {}
        }
        let is_item = |path: &Path| self.is_item(path);
        let constant = algorithm.is_constant(&is_item)
            && [&deadline, &lease]
                .into_iter()
                .flatten()
                .all(|period| period.is_constant(&is_item));
        let has_constant_need = need.as_ref().is_some_and(|need| need.is_constant(&is_item));
        let constant_quota = algorithm.quota().filter(|(_, quota)| quota.is_constant(&is_item));
        let constant_quota = constant_quota.map(|(word, quota)| (word, quota.clone()));
        let place = match of_block {
            true => self.func.sig.ident.span(),
            false => args.span,
        };
        Some(Limit {
            place,
            name: name?,
            shared,
            constant,
            algorithm,
            deadline,
            on_store_failure,
            lease,
            key,
            group,
            need,
            has_constant_need,
            constant_quota,
            fallback,
            count_if,
        })
    }

    /// Returns whether a path has the same meaning inside an item of the function's body. The
    /// generic parameters of the surrounding `impl` are unknown, so in a method only a path through
    /// a module qualifies. An associated function without `self` cannot be distinguished from a
    /// free one, so a first name in the form of a parameter (`T`, `N2`) never qualifies.
    fn is_item(&self, path: &Path) -> bool {
        let is_generic =
            |segment: &PathSegment| !segment.arguments.is_empty() || self.func.is_generic(&segment.ident);
        let in_module = path.leading_colon.is_some()
            || path.segments.len() > 1
                && path.segments.first().is_some_and(|first| {
                    let first = first.ident.to_string();
                    first.starts_with(|letter: char| letter.is_lowercase())
                        || first == "Duration"
                        || first == "Rate"
                });
        let looks_generic = path.leading_colon.is_none() && path.segments.first().is_some_and(looks_generic);
        !looks_generic && !path.segments.iter().any(is_generic) && (!self.is_method || in_module)
    }

    fn key(&self, expr: Expr, diagnostics: &mut Diagnostics) -> Option<Key> {
        match literal::text(&expr) {
            None => match unreplaced(&expr, &self.names) {
                None => Some(Key::Computed(expr)),
                Some((span, inside)) => {
                    let message = format!(
                        "`{{{inside}}}` is not replaced in an expression: write the string alone, such as `key = \"{{{inside}}}\"`, \
                         or add the value with `Key::part`"
                    );
                    diagnostics.at(span, message);
                    None
                }
            },
            Some(_) if self.no_args => None,
            Some(text) => Template::parse(text, &self.names, diagnostics).map(Key::Template),
        }
    }

    /// Returns the policy's name, and whether the budget is shared.
    fn name(
        &self,
        args: &mut Args,
        group: Option<&Key>,
        of_block: bool,
        diagnostics: &mut Diagnostics,
    ) -> (Option<Name>, bool) {
        if let Some(place) = args.span_of(ArgumentName::Name) {
            let Some(expr) = args.take_value(ArgumentName::Name) else {
                return (None, false);
            };
            let Some(text) = literal::text(&expr).map(LitStr::value) else {
                diagnostics.at(
                    expr.span(),
                    "`name` is text in quotes, such as `name = \"search\"`",
                );
                return (None, false);
            };
            // Each method of a block has its own budget.
            let name = match of_block {
                true => format!("{text}::{}", self.func.sig.ident.unraw()),
                false => text.clone(),
            };
            if text.is_empty() || name.len() > MAX_NAME_BYTES {
                diagnostics.at(expr.span(), format!("a name has 1 to {MAX_NAME_BYTES} bytes"));
            } else if text.contains(['{', '}']) {
                diagnostics.at(
                    place,
                    "a name cannot contain placeholders: put values that differ between calls into `key`",
                );
            }
            return (Some(Name::Given(name)), false);
        }
        let group_text = match group {
            Some(Key::Template(template)) => template.as_text().map(|text| (template.span, text)),
            _ => None,
        };
        match group_text {
            Some((span, text)) => {
                if text.is_empty() || text.len() > MAX_NAME_BYTES {
                    diagnostics.at(span, format!("a group has 1 to {MAX_NAME_BYTES} bytes"));
                }
                (Some(Name::Given(text.to_owned())), true)
            }
            None if of_block => {
                let name = self.owner.unwrap_or_default().to_lowercase();
                let message = format!(
                    "a block names its limits: add `name = \"{name}\"`, and its method `send` has the limit `{name}::send`; \
                     or add `group = \"{name}\"`, and all its methods share one budget"
                );
                diagnostics.at(args.span, message);
                (None, false)
            }
            None if self.is_method => {
                let message = format!(
                    "a method names its limit, add `name = \"{}\"`: the attribute cannot see the type, and two methods \
                     called `{}` would share one budget",
                    self.func.sig.ident.unraw(),
                    self.func.sig.ident.unraw()
                );
                diagnostics.at(args.span, message);
                (None, false)
            }
            None => (Some(Name::OfFunction), false),
        }
    }
}

impl Limit {
    /// Returns the names at the start of placeholders, which are not tokens of the attribute.
    pub(super) fn roots(&self) -> impl Iterator<Item = TokenStream> {
        let templates = [&self.key, &self.group]
            .into_iter()
            .flatten()
            .filter_map(|key| match key {
                Key::Template(template) => Some(template),
                Key::Computed(_) => None,
            });
        templates.flat_map(Template::roots).map(ToTokens::to_token_stream)
    }
}

/// Returns whether a name has the form of a generic parameter: a capital, and digits.
fn looks_generic(segment: &PathSegment) -> bool {
    let name = segment.ident.to_string();
    let digits = name.strip_prefix(|first: char| first.is_ascii_uppercase());
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the name of a registry's policy. Arguments that the policy defines are rejected.
fn named(args: &mut Args, names: &Names, diagnostics: &mut Diagnostics) -> Option<Name> {
    for (word, place) in args
        .names()
        .filter(|(word, _)| !ALLOWED_WITH_POLICY.contains(word))
    {
        let text = word.text();
        let message = match word {
            ArgumentName::Name => "`policy` is the limit's name already: leave out `name`".to_owned(),
            _ => format!(
                "the policy defines `{text}`: leave out `{text}`, or define the limit here, without `policy`"
            ),
        };
        diagnostics.at(place, message);
    }
    let expr = args.take_value(ArgumentName::Policy)?;
    let Some(text) = literal::text(&expr).map(LitStr::value) else {
        diagnostics.at(
            expr.span(),
            "`policy` is a name in quotes, such as `policy = \"search\"`",
        );
        return None;
    };
    if text.is_empty() || text.len() > MAX_NAME_BYTES {
        diagnostics.at(expr.span(), format!("a name has 1 to {MAX_NAME_BYTES} bytes"));
        return None;
    }
    if let Some(inside) = placeholder_in(&text, names) {
        let message = format!(
            "the name of a policy is constant, and `{{{inside}}}` is not replaced: put values that differ \
             between calls into `key`"
        );
        diagnostics.at(expr.span(), message);
        return None;
    }
    Some(Name::Given(text))
}

/// Returns the first placeholder of an argument in a string inside an expression, where it is plain
/// text: all calls would share one key. `format!` and other macros replace it themselves.
fn unreplaced(expr: &Expr, names: &Names) -> Option<(Span, String)> {
    struct Strings<'n> {
        names: &'n Names,
        found: Option<(Span, String)>,
    }
    impl Strings<'_> {
        fn search(&mut self, text: &str, span: Span) {
            if let (None, Some(inside)) = (&self.found, placeholder_in(text, self.names)) {
                self.found = Some((span, inside.to_owned()));
            }
        }
    }
    impl<'ast> Visit<'ast> for Strings<'_> {
        fn visit_lit_str(&mut self, text: &'ast LitStr) {
            self.search(&text.value(), text.span());
        }

        fn visit_macro(&mut self, call: &'ast Macro) {
            if call.path.is_ident("concat") {
                self.search(&call.tokens.to_string(), call.path.span());
            }
        }
    }
    let mut strings = Strings { names, found: None };
    strings.visit_expr(expr);
    strings.found
}

/// Returns the predicate, if it can be a function from the result to a `bool`; the compiler checks
/// its type.
fn count_if(expr: Expr, diagnostics: &mut Diagnostics) -> Option<Expr> {
    if matches!(peel(&expr), Expr::Lit(_)) {
        diagnostics.at(
            expr.span(),
            "`count_if` decides whether a call counts: a function or closure that takes a reference to the \
             result, such as `count_if = Result::is_err` or `count_if = |reply| reply.status == 401`",
        );
        return None;
    }
    Some(expr)
}
