//! An `impl` block under an attribute: every async method of it is limited, but those that are left
//! out by name.

mod parse;

use proc_macro2::{Group, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{Attribute, Ident, Path};

use crate::args::Args;
use crate::boxed::Boxed;
use crate::diagnostics::{Diagnostics, Mistake, meant};
use crate::expand;
use crate::func::Func;
use crate::model::{Around, Attr, LimitedFn};

pub(crate) use parse::is_block;

/// The block, its methods taken apart as far as their bodies.
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
    /// Untouched.
    Other(TokenStream),
}

/// One of the block's attributes, and whom it leaves out.
struct OfBlock {
    attr: Attr,
    except: Vec<Ident>,
}

impl Block {
    /// The block with its methods limited by the attribute and by those that follow it; or, beside
    /// all mistakes, the block as it was.
    pub(crate) fn limit(mut self, first: Attr) -> TokenStream {
        let mut diagnostics = Diagnostics::default();
        let (rest, taken) = Attr::from_args(&mut self.attrs, true, &mut diagnostics);
        let attrs: Vec<OfBlock> = std::iter::once(first).chain(rest).map(OfBlock::new).collect();
        self.check_names(&attrs, &mut diagnostics);

        let (mut limited, mut mistakes) = (Vec::new(), Mistakes::default());
        for item in &self.items {
            let Item::Method(func) = item else {
                limited.push(Ok(item.to_token_stream()));
                continue;
            };
            let own: Vec<Attr> = attrs
                .iter()
                .filter(|attr| func.can_be_limited() && !attr.leaves_out(&func.sig.ident))
                .map(|attr| attr.attr.clone())
                .collect();
            if own.is_empty() {
                limited.push(Ok(func.to_token_stream()));
                continue;
            }
            let around = Around {
                attrs: own,
                taken: taken.clone(),
                owner: Some(self.owner.clone()),
            };
            let mut func = (**func).clone();
            let mut found = Diagnostics::default();
            let name = func.sig.ident.unraw().to_string();
            limited.push(match LimitedFn::read(around, &mut func, &mut found) {
                Ok(method) => Ok(method.to_token_stream()),
                Err(taken) => Err((func, taken)),
            });
            mistakes.add(&name, found);
        }
        if mistakes.methods.is_empty() {
            let place = attrs.first().map(|attr| attr.attr.span);
            diagnostics.at(
                place.unwrap_or_else(proc_macro2::Span::call_site),
                "this block has no method to limit: a limiter attribute on an `impl` block limits its async methods",
            );
        }
        mistakes.report(&mut diagnostics);
        let is_wrong = diagnostics.count() > 0;
        let items = limited
            .into_iter()
            .zip(&self.items)
            .map(|(limited, item)| match limited {
                Ok(limited) if !is_wrong => limited,
                Ok(_) => item.without_limits(&taken),
                Err((func, taken)) => mentioning(func, &taken),
            });
        let items = items.collect();
        let (block, errors) = (self.with(items), diagnostics.into_tokens());
        quote!(#block #errors)
    }

    /// Names that are left out and that no method has.
    fn check_names(&self, attrs: &[OfBlock], diagnostics: &mut Diagnostics) {
        let methods: Vec<String> = self.items.iter().filter_map(Item::name).collect();
        for name in attrs.iter().flat_map(|attr| &attr.except) {
            let written = name.unraw().to_string();
            if methods.contains(&written) {
                continue;
            }
            let known = methods.iter().map(String::as_str);
            let message = match meant(&written, known) {
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

impl OfBlock {
    /// What is wrong with the attribute is reported where it is read for a method.
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

    fn leaves_out(&self, method: &Ident) -> bool {
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

    /// The item beside the mistakes of others. Its own limiter attributes would find only more of
    /// them.
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
    /// Whether an attribute of the block is for this method.
    fn can_be_limited(&self) -> bool {
        self.sig.asyncness.is_some() || Boxed::read(&self.sig.output, &self.body).is_some()
    }
}

fn mentioning(mut func: Func, taken: &[Path]) -> TokenStream {
    func.body = expand::mention(taken, &func.body);
    func.to_token_stream()
}

/// What was found for each method. What is wrong for all of them is said once; what is wrong for
/// some says for which.
#[derive(Default)]
struct Mistakes {
    methods: Vec<String>,
    found: Vec<Found>,
}

struct Found {
    mistake: Mistake,
    /// The place and the text, by which it is known again.
    known_by: (String, String),
    methods: Vec<String>,
}

impl Mistakes {
    fn add(&mut self, method: &str, diagnostics: Diagnostics) {
        self.methods.push(method.to_owned());
        for mistake in diagnostics.into_mistakes() {
            let known_by = (format!("{:?}", mistake.error.span()), mistake.error.to_string());
            let methods = vec![method.to_owned()];
            match self.found.iter_mut().find(|found| found.known_by == known_by) {
                Some(found) if mistake.of_block => found.methods.extend(methods),
                _ => self.found.push(Found {
                    mistake,
                    known_by,
                    methods,
                }),
            }
        }
    }

    fn report(self, diagnostics: &mut Diagnostics) {
        for Found {
            mistake: Mistake { error, of_block },
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
                format!("{error} (for {names}: `except({names})` leaves out what this does not fit)"),
            );
        }
    }
}
