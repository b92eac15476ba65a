//! The annotated function with everything checked that can be checked before types are known.

mod limit;
mod numbers;
mod settings;
mod window;

use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Expr, LitStr, Meta, Path};

use crate::args::Args;
use crate::constant::peel;
use crate::diagnostics::Diagnostics;
use crate::fallback::Fallback;
use crate::func::{Func, Output, Param, Shape, bound_names, mentions};
use crate::literal::{Number, Period, RateText};
use crate::template::{Names, Template};
use crate::words::{Kind, Word};
use limit::Scope;

/// More limits than this in one decision are refused by the limiter.
const MAX_LIMITS: usize = 16;

/// A function and the one decision before it.
pub(crate) struct LimitedFn {
    pub(crate) func: Func,
    pub(crate) shape: Shape,
    pub(crate) output: Output,
    pub(crate) params: Vec<Param>,
    pub(crate) krate: Path,
    pub(crate) when: Option<Expr>,
    pub(crate) limiter: Option<Expr>,
    pub(crate) wait: Option<Period>,
    pub(crate) limits: Vec<Limit>,
    /// The names that patterns bind and the attributes mention.
    pub(crate) by_reference: Vec<Ident>,
    /// The paths of the attributes that were taken from the function.
    pub(crate) taken: Vec<Path>,
    /// The type of the block that the function stands in, where the block is annotated.
    pub(crate) owner: Option<String>,
}

/// One limiter attribute, as it is written.
#[derive(Clone)]
pub(crate) struct Attr {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
    pub(crate) tokens: TokenStream,
    /// It stands on the block around the function.
    pub(crate) of_block: bool,
}

/// What stands around a function: the attributes that are not its own, the outermost first.
pub(crate) struct Around {
    pub(crate) attrs: Vec<Attr>,
    /// The paths of those that were taken from the block.
    pub(crate) taken: Vec<Path>,
    /// The type of the block, where it is annotated.
    pub(crate) owner: Option<String>,
}

/// One attribute.
pub(crate) struct Limit {
    /// Where it stands; the function's name, where the attribute is that of a block.
    pub(crate) place: Span,
    pub(crate) name: Name,
    /// Other functions may take from the same budget.
    pub(crate) shared: bool,
    /// The policy is the same on every call.
    pub(crate) constant: bool,
    pub(crate) algorithm: Algorithm,
    pub(crate) deadline: Option<Period>,
    pub(crate) on_store_failure: Option<Ident>,
    pub(crate) lease: Option<Period>,
    pub(crate) key: Option<Key>,
    pub(crate) group: Option<Key>,
    pub(crate) need: Option<Number>,
    /// `need` is the same on every call, and can stand in an item.
    pub(crate) has_constant_need: bool,
    /// The argument that `need` must not exceed, if that is constant, too.
    pub(crate) constant_quota: Option<(&'static str, Number)>,
    pub(crate) fallback: Option<Fallback>,
    /// What tells of a result whether its call counts.
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
        /// `kind = exact` is not written out.
        unspelled: bool,
    },
    CounterWindow {
        limit: Number,
        window: Period,
    },
    /// Without a window it is a month.
    FixedWindow {
        limit: Number,
        window: Option<Period>,
        align: Option<LitStr>,
    },
    Concurrency {
        max: Number,
    },
    /// Whatever the policy of that name says when the call is made.
    Named {
        /// Whether the attribute is one of concurrency.
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
    /// Checks a function and its attributes, the outermost first. The function keeps its other
    /// attributes; where it cannot be limited, the paths of those that it lost come back.
    pub(crate) fn read(
        around: Around,
        func: &mut Func,
        diagnostics: &mut Diagnostics,
    ) -> Result<Self, Vec<Path>> {
        let Around {
            attrs: mut attributes,
            mut taken,
            owner,
        } = around;
        let (own, own_taken) = Attr::from_args(&mut func.attrs, false, diagnostics);
        attributes.extend(own);
        taken.extend(own_taken);
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

        let mut all = Shared::default();
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
                let place = args.place(Word::Name).unwrap_or(span);
                diagnostics.at(
                    place,
                    "another limit of this function has the same name, and they would share one budget: give each a \
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
        let (Some(shape), Some(output), 0) = (shape, output, diagnostics.count()) else {
            return Err(taken);
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
            taken,
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

    /// Whether some fallback takes the arguments, which must then be whole until it is called.
    pub(crate) fn passes_args(&self) -> bool {
        self.limits
            .iter()
            .filter_map(|limit| limit.fallback.as_ref())
            .any(|fallback| fallback.pass_args)
    }
}

impl Attr {
    /// Takes the limiter attributes out, with their paths.
    pub(crate) fn from_args(
        attrs: &mut Vec<Attribute>,
        of_block: bool,
        diagnostics: &mut Diagnostics,
    ) -> (Vec<Self>, Vec<Path>) {
        let (mut own, mut kept, mut taken) = (Vec::new(), Vec::new(), Vec::new());
        for attr in std::mem::take(attrs) {
            let word = attr
                .path()
                .segments
                .last()
                .map(|segment| segment.ident.unraw().to_string());
            match Kind::ALL
                .into_iter()
                .find(|kind| word.as_deref() == Some(kind.name()))
            {
                None => kept.push(attr),
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
                    taken.push(attr.path().clone());
                }
            }
        }
        *attrs = kept;
        (own, taken)
    }
}

/// What belongs to the function, whichever of its attributes says it.
#[derive(Default)]
struct Shared {
    seen: Vec<Word>,
    krate: Option<Path>,
    when: Option<Expr>,
    limiter: Option<Expr>,
    wait: Option<Period>,
}

impl Shared {
    fn read(&mut self, args: &mut Args, diagnostics: &mut Diagnostics) {
        for word in [Word::When, Word::Limiter, Word::Wait, Word::Crate] {
            let Some(place) = args.place(word) else { continue };
            if self.seen.contains(&word) {
                let text = word.text();
                let message = format!(
                    "`{text}` belongs to the function, whose limits are one decision: give it in one of the attributes"
                );
                diagnostics.at(place, message);
                continue;
            }
            self.seen.push(word);
            let Some(value) = args.take_value(word) else {
                continue;
            };
            match word {
                Word::When => self.when = Some(value),
                Word::Limiter => self.limiter = Some(value),
                Word::Wait => self.wait = diagnostics.ok(Period::read(value, "wait")),
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
