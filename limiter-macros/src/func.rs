//! The annotated function: its signature is parsed, and its body is kept as raw tokens, so that
//! editors can complete an unfinished body.
//!
//! The module derives the position of the guard, the output type, and the variables of the
//! arguments; an argument with a pattern is renamed, so that the guard can use its value.
//!
//! Functions that cannot be limited are reported: `const fn`, `unsafe fn`, and plain functions
//! without the body of `async_trait_body.rs`. Tests: `tests/behaviour/shapes.rs`, `tests/ui/fail`
//! (`not_async.rs`, `const_function.rs`, `unsafe_function.rs`, `no_body.rs`).

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, FnArg, GenericParam, Pat, ReturnType, Safety, Signature, Token, Type, Visibility};

use crate::async_trait_body::AsyncTraitBody;
use crate::diagnostics::Diagnostics;

/// The name by which an attribute recognises a body that another attribute has wrapped.
pub(crate) const MARKER: &str = "__limiter_guard";

/// A function below the attribute.
#[derive(Clone)]
pub(crate) struct Func {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    pub(crate) body: Group,
}

impl Parse for Func {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let sig: Signature = input.parse().map_err(|error| {
            syn::Error::new(
                error.span(),
                "a limiter attribute goes on an `async fn`, or on an `impl` block with async methods",
            )
        })?;
        if input.peek(Token![;]) {
            let message = "this function has no body to limit, put the attribute on its implementation";
            return Err(syn::Error::new(sig.ident.span(), message));
        }
        Ok(Self {
            attrs,
            vis,
            sig,
            body: body(input)?,
        })
    }
}

/// Parses the braces of the body. A `$body:block` of a macro is inside an invisible group.
fn body(input: ParseStream<'_>) -> syn::Result<Group> {
    let span = input.span();
    let mut tree: TokenTree = input.parse()?;
    loop {
        let inner = match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return Ok(group),
            TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
                group.stream().into_iter().next()
            }
            _ => None,
        };
        tree = inner.ok_or_else(|| syn::Error::new(span, "expected the body of the function in braces"))?;
    }
}

impl ToTokens for Func {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.attrs.iter().for_each(|attr| attr.to_tokens(tokens));
        self.vis.to_tokens(tokens);
        self.sig.to_tokens(tokens);
        self.body.to_tokens(tokens);
    }
}

/// The position of the guard.
pub(crate) enum GuardPosition {
    /// The start of the body.
    Async,
    /// The start of the async block with which the body ends.
    AsyncTraitBody(Box<AsyncTraitBody>),
}

/// The output of the function.
pub(crate) enum Output {
    Unit(Span),
    /// A type that can be named in the body.
    Named(Type),
    /// An `impl Trait` inside another type, which only inference can name.
    Inferred(Type),
    /// `impl Trait` itself.
    Opaque(Type),
}

/// One argument, except `self`.
pub(crate) struct Param {
    /// The variable with the argument's value.
    pub(crate) ident: Ident,
    /// The pattern that destructures it, if any.
    pub(crate) pattern: Option<Pat>,
    /// The index of the input, if the signature does not name it `ident`.
    pub(crate) rename: Option<usize>,
    /// The `#[cfg(…)]` of the argument, for all code that uses it.
    pub(crate) cfgs: Vec<Attribute>,
}

impl Func {
    /// Returns the position of the guard. Reports functions that cannot be limited.
    pub(crate) fn shape(&self, diagnostics: &mut Diagnostics) -> Option<GuardPosition> {
        let before = diagnostics.count();
        let sig = &self.sig;
        if let Some(token) = &sig.constness {
            diagnostics.at(
                token.span,
                "a `const fn` cannot be limited: a decision is made at run time, and awaits",
            );
        }
        if let Safety::Unsafe(token) = &sig.safety {
            diagnostics.at(
                token.span,
                "an `unsafe fn` cannot be limited: put the attribute on a safe async fn that calls it",
            );
        }
        if mentions(self.body.stream(), &|ident| ident == MARKER) {
            diagnostics.at(
                Span::call_site(),
                "this function already has a limiter attribute. Several attributes form one atomic decision only under \
                 their own names: write `token_limiter`, `window_limiter` and `funnel_limiter` in place of a renamed import",
            );
        }
        let shape = match (&sig.asyncness, &sig.constness) {
            (Some(_), _) => Some(GuardPosition::Async),
            (None, Some(_)) => None,
            (None, None) => AsyncTraitBody::read(&self.sig.output, &self.body)
                .map(|boxed| GuardPosition::AsyncTraitBody(Box::new(boxed))),
        };
        if shape.is_none() && sig.constness.is_none() {
            diagnostics.at(
                sig.fn_token.span,
                "a limiter attribute goes on an `async fn`, since a decision is awaited. Write `async fn`; where another \
                 attribute takes the `async` away, such as `#[tokio::main]`, put this one above it",
            );
        }
        if let Some(GuardPosition::AsyncTraitBody(boxed)) = &shape {
            if let Some(early_return) = boxed.early_return() {
                diagnostics.at(
                    early_return,
                    "a call that returns before `Box::pin(async move { … })` would not be limited: return inside the \
                     async block",
                );
            }
        }
        shape.filter(|_| before == diagnostics.count())
    }

    /// Returns the output of a call.
    pub(crate) fn output(&self, shape: &GuardPosition) -> Output {
        let output = match (shape, &self.sig.output) {
            (GuardPosition::AsyncTraitBody(boxed), _) => &boxed.output,
            (GuardPosition::Async, ReturnType::Type(_, output)) => &**output,
            (GuardPosition::Async, ReturnType::Default) => return Output::Unit(self.sig.ident.span()),
        };
        let mut opaque = FindOpaque(false);
        opaque.visit_type(output);
        match output {
            Type::ImplTrait(_) => Output::Opaque(output.clone()),
            _ if opaque.0 => Output::Inferred(output.clone()),
            _ => Output::Named(output.clone()),
        }
    }

    /// Returns the arguments, except `self`.
    pub(crate) fn params(&self, shape: &GuardPosition) -> Vec<Param> {
        let destructured_params = match shape {
            GuardPosition::Async => Vec::new(),
            GuardPosition::AsyncTraitBody(boxed) => boxed.destructured_params(),
        };
        let of = |(position, input): (usize, &FnArg)| {
            let FnArg::Typed(typed) = input else { return None };
            let is_cfg = |attr: &&Attribute| attr.path().is_ident("cfg");
            let cfgs = typed.attrs.iter().filter(is_cfg).cloned().collect();
            Some(match &*typed.pat {
                Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => {
                    let pattern = destructured_params.iter().find(|(ident, _)| *ident == name.ident);
                    Param {
                        ident: name.ident.clone(),
                        pattern: pattern.map(|(_, pat)| pat.clone()),
                        rename: None,
                        cfgs,
                    }
                }
                pattern => Param {
                    ident: format_ident!("__limiter_arg{position}", span = Span::mixed_site()),
                    pattern: Some(pattern.clone()).filter(|pattern| !matches!(pattern, Pat::Wild(_))),
                    rename: Some(position),
                    cfgs,
                },
            })
        };
        self.sig.inputs.iter().enumerate().filter_map(of).collect()
    }

    /// Returns whether a name is a generic parameter of the function, or `Self`: items in its body
    /// cannot use these.
    pub(crate) fn is_generic(&self, name: &Ident) -> bool {
        let is = |param: &GenericParam| match param {
            GenericParam::Type(param) => param.ident == *name,
            GenericParam::Const(param) => param.ident == *name,
            GenericParam::Lifetime(_) => false,
        };
        name == "Self" || self.sig.generics.params.iter().any(is)
    }
}

/// Returns the names that a pattern binds.
pub(crate) fn bound_names(pattern: &Pat) -> Vec<Ident> {
    struct BoundNames(Vec<Ident>);
    impl<'ast> Visit<'ast> for BoundNames {
        fn visit_pat_ident(&mut self, name: &'ast syn::PatIdent) {
            self.0.push(name.ident.clone());
            visit::visit_pat_ident(self, name);
        }
    }
    let mut names = BoundNames(Vec::new());
    names.visit_pat(pattern);
    names.0
}

/// Returns whether the tokens contain an identifier that satisfies the predicate.
pub(crate) fn mentions(tokens: TokenStream, is: &dyn Fn(&Ident) -> bool) -> bool {
    tokens.into_iter().any(|tree| match tree {
        TokenTree::Ident(ident) => is(&ident),
        TokenTree::Group(group) => mentions(group.stream(), is),
        _ => false,
    })
}

struct FindOpaque(bool);

impl<'ast> Visit<'ast> for FindOpaque {
    fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
        self.0 = true;
    }
}

/// Returns the inputs with some patterns replaced.
pub(crate) fn renamed(
    inputs: &Punctuated<FnArg, Token![,]>,
    params: &[Param],
) -> Punctuated<FnArg, Token![,]> {
    let mut inputs = inputs.clone();
    for (position, input) in inputs.iter_mut().enumerate() {
        if let FnArg::Typed(typed) = input {
            if let Some(param) = params.iter().find(|param| param.rename == Some(position)) {
                let ident = &param.ident;
                *typed.pat = syn::parse_quote!(#ident);
            }
        }
    }
    inputs
}
