//! The annotated function: its signature parsed, its body kept as raw tokens, so that a half-typed
//! body still gets the editor's help.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, FnArg, GenericParam, Pat, ReturnType, Safety, Signature, Token, Type, Visibility};

use crate::boxed::Boxed;
use crate::diagnostics::Diagnostics;

/// The name by which an attribute recognises the body that another one has wrapped.
pub(crate) const MARKER: &str = "__limiter_guard";

/// A function as it stands under the attribute.
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
            body: input.parse()?,
        })
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

/// Where the guard goes.
pub(crate) enum Shape {
    /// The start of the body.
    Async,
    /// The start of the async block with which the body ends.
    Boxed(Box<Boxed>),
}

/// What the function gives back.
pub(crate) enum Output {
    Unit(Span),
    /// Can be written down in the body.
    Named(Type),
    /// An `impl Trait` inside another type: only inference can name it.
    Inferred(Type),
    /// `impl Trait` itself.
    Opaque(Type),
}

/// One argument beside `self`.
pub(crate) struct Param {
    /// What holds the argument's value.
    pub(crate) ident: Ident,
    /// What takes it apart, where something does.
    pub(crate) pattern: Option<Pat>,
    /// The place among the inputs, where the signature does not call it `ident`.
    pub(crate) rename: Option<usize>,
}

impl Func {
    /// Where the guard goes; what cannot be limited is reported.
    pub(crate) fn shape(&self, diagnostics: &mut Diagnostics) -> Option<Shape> {
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
                "another limiter attribute has limited this function already. Several of them make one atomic decision, \
                 for which each is recognised by its name: write `token_limiter`, `window_limiter` and `funnel_limiter`, \
                 not a name of your own",
            );
        }
        let shape = match (&sig.asyncness, &sig.constness) {
            (Some(_), _) => Some(Shape::Async),
            (None, Some(_)) => None,
            (None, None) => {
                Boxed::read(&self.sig.output, &self.body).map(|boxed| Shape::Boxed(Box::new(boxed)))
            }
        };
        if shape.is_none() && sig.constness.is_none() {
            diagnostics.at(
                sig.fn_token.span,
                "a limiter attribute goes on an `async fn`, since a decision is awaited. Write `async fn`; where another \
                 attribute takes the `async` away, such as `#[tokio::main]`, put this one above it",
            );
        }
        shape.filter(|_| before == diagnostics.count())
    }

    /// What a call gives back.
    pub(crate) fn output(&self, shape: &Shape) -> Output {
        let output = match (shape, &self.sig.output) {
            (Shape::Boxed(boxed), _) => &boxed.output,
            (Shape::Async, ReturnType::Type(_, output)) => &**output,
            (Shape::Async, ReturnType::Default) => return Output::Unit(self.sig.ident.span()),
        };
        let mut opaque = FindOpaque(false);
        opaque.visit_type(output);
        match output {
            Type::ImplTrait(_) => Output::Opaque(output.clone()),
            _ if opaque.0 => Output::Inferred(output.clone()),
            _ => Output::Named(output.clone()),
        }
    }

    /// The arguments beside `self`.
    pub(crate) fn params(&self, shape: &Shape) -> Vec<Param> {
        let taken_apart = match shape {
            Shape::Async => Vec::new(),
            Shape::Boxed(boxed) => boxed.taken_apart(),
        };
        let of = |(position, input): (usize, &FnArg)| {
            let FnArg::Typed(typed) = input else { return None };
            Some(match &*typed.pat {
                Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => {
                    let pattern = taken_apart.iter().find(|(ident, _)| *ident == name.ident);
                    Param {
                        ident: name.ident.clone(),
                        pattern: pattern.map(|(_, pat)| pat.clone()),
                        rename: None,
                    }
                }
                pattern => Param {
                    ident: format_ident!("__limiter_arg{position}", span = Span::mixed_site()),
                    pattern: Some(pattern.clone()).filter(|pattern| !matches!(pattern, Pat::Wild(_))),
                    rename: Some(position),
                },
            })
        };
        self.sig.inputs.iter().enumerate().filter_map(of).collect()
    }

    /// Whether a name is a parameter of the function's generics, or `Self`: what an item in its
    /// body cannot use.
    pub(crate) fn is_generic(&self, name: &Ident) -> bool {
        let is = |param: &GenericParam| match param {
            GenericParam::Type(param) => param.ident == *name,
            GenericParam::Const(param) => param.ident == *name,
            GenericParam::Lifetime(_) => false,
        };
        name == "Self" || self.sig.generics.params.iter().any(is)
    }
}

/// The names that a pattern binds.
pub(crate) fn bound_names(pattern: &Pat) -> Vec<Ident> {
    struct Names(Vec<Ident>);
    impl<'ast> Visit<'ast> for Names {
        fn visit_pat_ident(&mut self, name: &'ast syn::PatIdent) {
            self.0.push(name.ident.clone());
            visit::visit_pat_ident(self, name);
        }
    }
    let mut names = Names(Vec::new());
    names.visit_pat(pattern);
    names.0
}

/// Whether an identifier of a kind stands anywhere in the tokens.
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

/// The inputs, with other patterns in some places.
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
