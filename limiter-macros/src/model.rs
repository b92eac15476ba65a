//! The annotated function after all checks that need no type information.
//!
//! A user fixes all errors of an attribute at once only if each error is found and has its own
//! span. [`LimitedFn::read`] therefore combines the parsed arguments of all attributes with the
//! signature, and reports every contradiction to [`Diagnostics`] instead of ending at the first
//! one. It continues with a valid value in place of an invalid one. The body of the function stays
//! raw tokens.
//!
//! Invariant: the expansion of a [`LimitedFn`] cannot fail. Errors that need types are left to
//! the compiler, at the spans of the arguments.
//!
//! Tests: `tests/ui/fail` has one error per file; `snapshot_tests.rs` shows the expansion.

mod limit;
mod numbers;
mod settings;
mod window;

use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, LitStr, Meta, Path, Type};

use crate::argument_parser::Args;
use crate::argument_table::{ArgumentName, AttributeKind};
use crate::constant_expr::peel;
use crate::diagnostics::Diagnostics;
use crate::fallback::Fallback;
use crate::func::{Func, GuardPosition, Output, Param, bound_names, mentions};
use crate::literal::{Number, Period, RateText};
use crate::template::{Names, Template};
use limit::Scope;

/// The limiter rejects decisions with more limits.
const MAX_LIMITS: usize = 16;

/// A function and its decision.
pub(crate) struct LimitedFn {
    pub(crate) func: Func,
    pub(crate) shape: GuardPosition,
    pub(crate) output: Output,
    pub(crate) params: Vec<Param>,
    pub(crate) krate: Path,
    pub(crate) when: Option<Expr>,
    pub(crate) limiter: Option<Expr>,
    pub(crate) wait: Option<Period>,
    pub(crate) limits: Vec<Limit>,
    /// The names that patterns bind and the attributes use.
    pub(crate) by_reference: Vec<Ident>,
    /// The paths of the attributes that were removed from the function.
    pub(crate) removed: Vec<Path>,
    /// The type of the surrounding block, if the block is annotated.
    pub(crate) owner: Option<String>,
}

/// One unparsed limiter attribute.
#[derive(Clone)]
pub(crate) struct Attr {
    pub(crate) kind: AttributeKind,
    pub(crate) span: Span,
    pub(crate) tokens: TokenStream,
    /// True for an attribute of the surrounding block.
    pub(crate) of_block: bool,
}

/// The attributes outside a function, the outermost first.
pub(crate) struct OuterAttrs {
    pub(crate) attrs: Vec<Attr>,
    /// The paths of the attributes that were removed from the block.
    pub(crate) removed: Vec<Path>,
    /// The type of the block, if it is annotated.
    pub(crate) owner: Option<String>,
}

/// The limit of one attribute.
pub(crate) struct Limit {
    /// The span of the attribute; the function's name for an attribute of the block.
    pub(crate) place: Span,
    pub(crate) name: Name,
    /// True if other functions may use the same budget.
    pub(crate) shared: bool,
    /// True if the policy is the same on every call.
    pub(crate) constant: bool,
    pub(crate) algorithm: Algorithm,
    pub(crate) deadline: Option<Period>,
    pub(crate) on_store_failure: Option<Ident>,
    pub(crate) lease: Option<Period>,
    pub(crate) key: Option<Key>,
    pub(crate) group: Option<Key>,
    pub(crate) need: Option<Number>,
    /// True if `need` is the same on every call and valid in an item.
    pub(crate) has_constant_need: bool,
    /// The argument that bounds `need`, if it is constant.
    pub(crate) constant_quota: Option<(&'static str, Number)>,
    pub(crate) fallback: Option<Fallback>,
    /// The predicate that decides whether a result counts.
    pub(crate) count_if: Option<Expr>,
}

/// A policy's name.
#[derive(PartialEq, Eq)]
pub(crate) enum Name {
    Given(String),
    /// The function's path.
    OfFunction,
}

pub(crate) enum Algorithm {
    Token {
        capacity: Number,
        rate: Rate,
    },
    Funnel {
        capacity: Number,
        rate: Rate,
        paced: bool,
    },
    Window {
        limit: Number,
        window: Period,
        /// True if `kind = exact` is omitted.
        kind_is_omitted: bool,
    },
    CounterWindow {
        limit: Number,
        window: Period,
    },
    /// Without a window, the period is a month.
    FixedWindow {
        limit: Number,
        window: Option<Period>,
        align: Option<LitStr>,
    },
    Concurrency {
        max: Number,
    },
    /// The registry's policy of this name at the time of the call.
    Named {
        /// True if the attribute limits concurrency.
        held: bool,
    },
}

pub(crate) enum Rate {
    Text(RateText),
    Per { amount: Number, period: Period },
    Computed(Expr),
}

pub(crate) enum Key {
    Template(Template),
    Computed(Expr),
}

impl LimitedFn {
    /// Checks a function and its attributes, the outermost first. Other attributes stay on the
    /// function. If the function cannot be limited, returns the paths of the removed attributes.
    pub(crate) fn read(
        around: OuterAttrs,
        func: &mut Func,
        diagnostics: &mut Diagnostics,
    ) -> Result<Self, Vec<Path>> {
        let OuterAttrs {
            attrs: mut attributes,
            mut removed,
            owner,
        } = around;
        let (own, own_taken) = Attr::from_args(&mut func.attrs, false, diagnostics);
        attributes.extend(own);
        removed.extend(own_taken);
        let mentions_self = attributes
            .iter()
            .any(|attr| mentions(attr.tokens.clone(), &|ident| ident == "Self"))
            || mentions(func.sig.to_token_stream(), &|ident| ident == "Self");

        let shape = func.shape(diagnostics);
        let params = shape.as_ref().map(|shape| func.params(shape)).unwrap_or_default();
        let bound: Vec<Ident> = params
            .iter()
            .filter_map(|param| param.pattern.as_ref())
            .flat_map(bound_names)
            .collect();
        let scope = Scope {
            func,
            names: names(func, &params, &bound),
            is_method: func.sig.receiver().is_some() || mentions_self || owner.is_some(),
            owner: owner.as_deref(),
            no_args: shape.is_none(),
        };

        let mut all = FunctionOptions::default();
        let mut limits: Vec<(Span, Limit)> = Vec::new();
        let mut mentioned = Vec::new();
        if let Some(attr) = attributes.get(MAX_LIMITS) {
            diagnostics.at(attr.span, format!("one function has at most {MAX_LIMITS} limits"));
        }
        for attr in attributes {
            let Attr {
                kind,
                span,
                tokens,
                of_block,
            } = attr;
            diagnostics.of_block = of_block;
            let mut args = Args::parse(kind, span, tokens.clone(), diagnostics);
            all.read(&mut args, diagnostics);
            let Some(limit) = scope.limit(&mut args, of_block, diagnostics) else {
                continue;
            };
            if limits.iter().any(|(_, above)| above.name == limit.name) {
                let place = args.span_of(ArgumentName::Name).unwrap_or(span);
                diagnostics.at(
                    place,
                    "another limit of this function has the same name, and both would share one budget: give each a \
                     `name = \"…\"` of its own",
                );
            }
            mentioned.push(tokens);
            mentioned.extend(limit.roots());
            limits.push((span, limit));
        }
        diagnostics.of_block = false;
        let output = shape.as_ref().map(|shape| func.output(shape));
        if let Some(Output::Opaque(output)) = &output {
            if limits.iter().any(|(_, limit)| limit.fallback.is_none()) {
                diagnostics.at(
                output.span(),
                "a limited call must return a value, and `impl Trait` hides its type: add `fallback = function` \
                 (it returns the same type as this function), or return a `Result<_, E>` with `E: From<Rejection>`",
            );
            }
        }
        if let Some(Output::Named(Type::Never(output))) = &output {
            let message = "a rejected call returns, and `!` has no value: return a `Result<Infallible, E>` with `E: From<Rejection>`";
            diagnostics.at(output.span(), message);
        }
        let (Some(shape), Some(output), 0) = (shape, output, diagnostics.count()) else {
            return Err(removed);
        };
        let by_reference = bound
            .into_iter()
            .filter(|name| {
                mentioned
                    .iter()
                    .any(|tokens| mentions(tokens.clone(), &|ident| ident == name))
            })
            .collect();
        Ok(Self {
            output,
            shape,
            removed,
            owner,
            params,
            krate: all.krate.unwrap_or_else(|| syn::parse_quote!(::limiter_core)),
            when: all.when,
            limiter: all.limiter,
            wait: all.wait,
            limits: limits.into_iter().map(|(_, limit)| limit).collect(),
            by_reference,
            func: Func {
                attrs: func.attrs.clone(),
                vis: func.vis.clone(),
                sig: func.sig.clone(),
                body: func.body.clone(),
            },
        })
    }

    /// Returns whether a fallback takes the arguments, which must then not be moved before.
    pub(crate) fn passes_args(&self) -> bool {
        self.limits
            .iter()
            .filter_map(|limit| limit.fallback.as_ref())
            .any(|fallback| fallback.pass_args)
    }
}

impl Attr {
    /// Removes the limiter attributes, and returns their paths.
    pub(crate) fn from_args(
        attrs: &mut Vec<Attribute>,
        of_block: bool,
        diagnostics: &mut Diagnostics,
    ) -> (Vec<Self>, Vec<Path>) {
        let (mut own, mut others, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        for attr in std::mem::take(attrs) {
            let word = attr
                .path()
                .segments
                .last()
                .map(|segment| segment.ident.unraw().to_string());
            match AttributeKind::ALL
                .into_iter()
                .find(|kind| word.as_deref() == Some(kind.name()))
            {
                None => others.push(attr),
                Some(kind) => {
                    let tokens = match &attr.meta {
                        Meta::List(list) => Some(list.tokens.clone()),
                        Meta::Path(_) => Some(TokenStream::new()),
                        Meta::NameValue(meta) => {
                            let message = format!(
                                "the arguments of `#[{0}]` stand in parentheses: `#[{0}(…)]`",
                                kind.name()
                            );
                            diagnostics.at(meta.eq_token.span(), message);
                            None
                        }
                    };
                    own.extend(tokens.map(|tokens| Self {
                        kind,
                        span: attr.path().span(),
                        tokens,
                        of_block,
                    }));
                    removed.push(attr.path().clone());
                }
            }
        }
        *attrs = others;
        (own, removed)
    }
}

/// Arguments that apply to the whole function, in whichever of its attributes they are set.
#[derive(Default)]
struct FunctionOptions {
    seen: Vec<ArgumentName>,
    krate: Option<Path>,
    when: Option<Expr>,
    limiter: Option<Expr>,
    wait: Option<Period>,
}

impl FunctionOptions {
    fn read(&mut self, args: &mut Args, diagnostics: &mut Diagnostics) {
        for word in [
            ArgumentName::When,
            ArgumentName::Limiter,
            ArgumentName::Wait,
            ArgumentName::Crate,
        ] {
            let Some(place) = args.span_of(word) else { continue };
            if self.seen.contains(&word) {
                let text = word.text();
                let message = format!(
                    "`{text}` applies to the whole function, which makes one decision: set it in one of the attributes"
                );
                diagnostics.at(place, message);
                continue;
            }
            self.seen.push(word);
            let Some(value) = args.take_value(word) else {
                continue;
            };
            match word {
                ArgumentName::When => self.when = Some(value),
                ArgumentName::Limiter => self.limiter = Some(value),
                ArgumentName::Wait => self.wait = diagnostics.ok(Period::read(value, "wait")),
                _ => match peel(&value) {
                    Expr::Path(path) if path.qself.is_none() => self.krate = Some(path.path.clone()),
                    other => diagnostics.at(
                        other.span(),
                        "`crate` is the path to limiter-core, without quotes, such as `crate = my_crate::limiter_core`",
                    ),
                },
            }
        }
    }
}

fn names(func: &Func, params: &[Param], bound: &[Ident]) -> Names {
    let receiver = func
        .sig
        .receiver()
        .map(|receiver| Ident::new("self", receiver.self_token.span));
    let whole = params
        .iter()
        .filter(|param| param.rename.is_none() && param.pattern.is_none());
    Names {
        names: receiver
            .into_iter()
            .chain(whole.map(|param| param.ident.clone()))
            .chain(bound.iter().cloned())
            .collect(),
    }
}
