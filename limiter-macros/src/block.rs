//! An attribute on an `impl` block: limits all async methods of the block, except those that it
//! excludes by name.
//!
//! Each method is expanded as if it had the attributes of the block. Errors are collected by
//! method: an error that all methods have is reported once, and an error of some methods lists
//! them.
//!
//! Invariant: if there is an error, no method is limited and the items are emitted unchanged, so
//! that no further errors follow from it. Tests: `tests/behaviour/blocks.rs`,
//! `tests/compiles/blocks.rs`, `tests/ui/fail` (`block_*.rs`, `except_*.rs`).

mod parse;

use proc_macro2::{Group, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{Attribute, Ident, Path};

use crate::argument_parser::Args;
use crate::async_trait_body::AsyncTraitBody;
use crate::diagnostics::{AnnotationError, Diagnostics, closest_match};
use crate::expand;
use crate::func::Func;
use crate::model::{Attr, LimitedFn, OuterAttrs};

pub(crate) use parse::is_block;

/// The parsed block; the bodies of its methods stay raw tokens.
pub(crate) struct Block {
    attrs: Vec<Attribute>,
    /// `impl … for …`, up to the brace.
    head: TokenStream,
    /// The name of the type.
    owner: String,
    items: Vec<Item>,
    braces: Group,
}

enum Item {
    Method(Box<Func>),
    /// Unchanged tokens.
    Other(TokenStream),
}

/// One of the block's attributes, with the methods that it excludes.
struct BlockAttr {
    attr: Attr,
    except: Vec<Ident>,
}

impl Block {
    /// Expands the block with the limits of this attribute and of the attributes after it. On
    /// errors, emits the errors and the unchanged block.
    pub(crate) fn limit(mut self, first: Attr) -> TokenStream {
        let mut diagnostics = Diagnostics::default();
        let (rest, removed) = Attr::from_args(&mut self.attrs, true, &mut diagnostics);
        let attrs: Vec<BlockAttr> = std::iter::once(first).chain(rest).map(BlockAttr::new).collect();
        self.check_names(&attrs, &mut diagnostics);

        let (mut limited, mut errors) = (Vec::new(), MethodErrors::default());
        for item in &self.items {
            let Item::Method(func) = item else {
                limited.push(Ok(item.to_token_stream()));
                continue;
            };
            let own: Vec<Attr> = attrs
                .iter()
                .filter(|attr| func.can_be_limited() && !attr.excludes(&func.sig.ident))
                .map(|attr| attr.attr.clone())
                .collect();
            if own.is_empty() {
                limited.push(Ok(func.to_token_stream()));
                continue;
            }
            let around = OuterAttrs {
                attrs: own,
                removed: removed.clone(),
                owner: Some(self.owner.clone()),
            };
            let mut func = (**func).clone();
            let mut found = Diagnostics::default();
            let name = func.sig.ident.unraw().to_string();
            limited.push(match LimitedFn::read(around, &mut func, &mut found) {
                Ok(method) => Ok(method.to_token_stream()),
                Err(removed) => Err((func, removed)),
            });
            errors.add(&name, found);
        }
        if errors.methods.is_empty() {
            let place = attrs.first().map(|attr| attr.attr.span);
            diagnostics.at(
                place.unwrap_or_else(proc_macro2::Span::call_site),
                "this block has no method to limit: a limiter attribute on an `impl` block limits its async methods",
            );
        }
        errors.report(&mut diagnostics);
        let is_wrong = diagnostics.count() > 0;
        let items = limited
            .into_iter()
            .zip(&self.items)
            .map(|(limited, item)| match limited {
                Ok(limited) if !is_wrong => limited,
                Ok(_) => item.without_limits(&removed),
                Err((func, removed)) => mentioning(func, &removed),
            });
        let items = items.collect();
        let (block, errors) = (self.with(items), diagnostics.into_tokens());
        quote!(#block #errors)
    }

    /// Reports excluded names without a method.
    fn check_names(&self, attrs: &[BlockAttr], diagnostics: &mut Diagnostics) {
        let methods: Vec<String> = self.items.iter().filter_map(Item::name).collect();
        for name in attrs.iter().flat_map(|attr| &attr.except) {
            let written = name.unraw().to_string();
            if methods.contains(&written) {
                continue;
            }
            let known = methods.iter().map(String::as_str);
            let message = match closest_match(&written, known) {
                Some(near) => format!("the block has no method `{written}`, did you mean `{near}`?"),
                None => format!("the block has no method `{written}`"),
            };
            diagnostics.at(name.span(), message);
        }
    }

    fn with(&self, items: TokenStream) -> TokenStream {
        let Self { attrs, head, .. } = self;
        let mut braces = Group::new(proc_macro2::Delimiter::Brace, items);
        braces.set_span(self.braces.span());
        quote!(#(#attrs)* #head #braces)
    }
}

impl BlockAttr {
    /// Errors in the attribute's arguments are reported when a method is read.
    fn new(attr: Attr) -> Self {
        let args = Args::parse(
            attr.kind,
            attr.span,
            attr.tokens.clone(),
            &mut Diagnostics::default(),
        );
        Self {
            attr,
            except: args.except,
        }
    }

    fn excludes(&self, method: &Ident) -> bool {
        self.except.iter().any(|name| name.unraw() == method.unraw())
    }
}

impl Item {
    fn name(&self) -> Option<String> {
        match self {
            Self::Method(func) => Some(func.sig.ident.unraw().to_string()),
            Self::Other(_) => None,
        }
    }

    /// Returns the unchanged item, emitted with the errors. Its own limiter attributes are removed,
    /// because they would only report further errors.
    fn without_limits(&self, of_block: &[Path]) -> TokenStream {
        match self {
            Self::Other(tokens) => tokens.clone(),
            Self::Method(func) => {
                let mut func = (**func).clone();
                let (_, own) = Attr::from_args(&mut func.attrs, false, &mut Diagnostics::default());
                mentioning(func, &[of_block, &own].concat())
            }
        }
    }
}

impl ToTokens for Item {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Self::Method(func) => func.to_tokens(tokens),
            Self::Other(other) => other.to_tokens(tokens),
        }
    }
}

impl Func {
    /// Returns whether an attribute of the block applies to this method.
    fn can_be_limited(&self) -> bool {
        self.sig.asyncness.is_some() || AsyncTraitBody::read(&self.sig.output, &self.body).is_some()
    }
}

fn mentioning(mut func: Func, removed: &[Path]) -> TokenStream {
    func.body = expand::import_removed(removed, &func.body);
    func.to_token_stream()
}

/// The errors of all methods. An error of all methods is reported once; an error of some methods
/// lists them.
#[derive(Default)]
struct MethodErrors {
    methods: Vec<String>,
    found: Vec<MethodError>,
}

struct MethodError {
    error: AnnotationError,
    /// The span and the text, which identify the error.
    identity: (String, String),
    methods: Vec<String>,
}

impl MethodErrors {
    fn add(&mut self, method: &str, diagnostics: Diagnostics) {
        self.methods.push(method.to_owned());
        for error in diagnostics.into_errors() {
            let identity = (format!("{:?}", error.error.span()), error.error.to_string());
            let methods = vec![method.to_owned()];
            match self.found.iter_mut().find(|found| found.identity == identity) {
                Some(found) if error.of_block => found.methods.extend(methods),
                _ => self.found.push(MethodError {
                    error,
                    identity,
                    methods,
                }),
            }
        }
    }

    fn report(self, diagnostics: &mut Diagnostics) {
        for MethodError {
            error: AnnotationError { error, of_block },
            methods,
            ..
        } in self.found
        {
            if !of_block || methods.len() == self.methods.len() {
                diagnostics.push(error);
                continue;
            }
            let names = methods.join(", ");
            diagnostics.at(
                error.span(),
                format!("{error} (for {names}: exclude with `except({names})`)"),
            );
        }
    }
}
