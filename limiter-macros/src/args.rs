//! The arguments of one attribute, as they are written: words and values, each with its place.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Ident, Token, parenthesized, token};

use crate::constant::peel;
use crate::diagnostics::{Diagnostics, meant};
use crate::words::{Kind, OF_POLICIES, Row, TABLE, Word};

/// The arguments of one attribute.
pub(crate) struct Args {
    pub(crate) kind: Kind,
    /// Where the attribute stands.
    pub(crate) span: Span,
    /// The methods that are named by `except(…)`.
    pub(crate) except: Vec<Ident>,
    given: Vec<Given>,
}

struct Given {
    word: Word,
    span: Span,
    /// `None` for a flag, and for a value that was refused already.
    value: Option<Expr>,
}

impl Args {
    pub(crate) fn parse(kind: Kind, span: Span, tokens: TokenStream, diagnostics: &mut Diagnostics) -> Self {
        let mut args = Self {
            kind,
            span,
            except: Vec::new(),
            given: Vec::new(),
        };
        let all = |input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(error) = args.one(input, diagnostics) {
                    diagnostics.push(error);
                    skip_to_comma(input);
                }
                let _: Option<Token![,]> = input.parse()?;
            }
            Ok(())
        };
        if let Err(error) = all.parse2(tokens) {
            diagnostics.push(error);
        }
        args
    }

    /// Where an argument stands, if it is given.
    pub(crate) fn place(&self, word: Word) -> Option<Span> {
        self.given
            .iter()
            .find(|given| given.word == word)
            .map(|given| given.span)
    }

    /// The arguments that are given, each with its place.
    pub(crate) fn words(&self) -> impl Iterator<Item = (Word, Span)> {
        self.given.iter().map(|given| (given.word, given.span))
    }

    /// The value of an argument, if one is given that can be used.
    pub(crate) fn take_value(&mut self, word: Word) -> Option<Expr> {
        self.given
            .iter_mut()
            .find(|given| given.word == word)
            .and_then(|given| given.value.take())
    }

    /// The value of an argument that must be given.
    pub(crate) fn require(&mut self, word: Word, diagnostics: &mut Diagnostics) -> Option<Expr> {
        if self.place(word).is_none() {
            let (text, example) = (word.text(), word.example());
            diagnostics.at(self.span, format!("`{text}` is missing, add `{example}`"));
        }
        self.take_value(word)
    }

    fn one(&mut self, input: ParseStream<'_>, diagnostics: &mut Diagnostics) -> syn::Result<()> {
        if !input.peek(Ident::peek_any) {
            let example = match self.kind {
                Kind::Window => "limit = 5",
                Kind::Concurrency => "max = 4",
                Kind::Token | Kind::Funnel => "capacity = 20",
            };
            return Err(input.error(format!("expected an argument, such as `{example}`")));
        }
        let ident: Ident = input.call(Ident::parse_any)?;
        let written = ident.unraw().to_string();
        let Some(row) = TABLE
            .iter()
            .find(|row| row.text == written && row.is_of(self.kind))
        else {
            return Err(self.unknown(&ident, &written));
        };
        let Row {
            word, text, example, ..
        } = *row;
        if self.place(word).is_some() {
            diagnostics.at(ident.span(), format!("`{text}` is given twice"));
        }
        self.given.push(Given {
            word,
            span: ident.span(),
            value: None,
        });

        if row.is_list() {
            return self.list(input, text, example);
        }
        if input.is_empty() || input.peek(Token![,]) {
            return match row.is_flag() {
                true => Ok(()),
                false => Err(syn::Error::new(
                    ident.span(),
                    format!("`{text}` needs a value, such as `{example}`"),
                )),
            };
        }
        if row.is_flag() {
            let message = format!("`{text}` stands alone: write `{text}`, or leave it out");
            return Err(syn::Error::new(ident.span(), message));
        }
        if !input.peek(Token![=]) || input.peek(Token![==]) {
            return Err(input.error(format!("expected `=` after `{text}`, such as `{example}`")));
        }
        let _: Token![=] = input.parse()?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(syn::Error::new(
                ident.span(),
                format!("`{text}` needs a value, such as `{example}`"),
            ));
        }
        let value: Expr = input.parse()?;
        if !input.is_empty() && !input.peek(Token![,]) {
            diagnostics.push(input.error(format!("expected `,` after the value of `{text}`")));
            if !input.peek(Ident::peek_any) {
                skip_to_comma(input);
            }
        }
        if let Some(place) = first_await(&value) {
            let message = format!(
                "`{text}` is computed before the first `.await`, so that nothing of it is held while the limiter is \
                 asked: await in a function around this one, and hand the value in as an argument"
            );
            return Err(syn::Error::new(place, message));
        }
        if let Some(given) = self.given.last_mut() {
            given.value = Some(value);
        }
        Ok(())
    }

    fn list(&mut self, input: ParseStream<'_>, text: &str, example: &str) -> syn::Result<()> {
        if !input.peek(token::Paren) {
            let message = format!("expected names in parentheses after `{text}`, such as `{example}`");
            return Err(input.error(message));
        }
        let names;
        let parentheses = parenthesized!(names in input);
        if names.is_empty() {
            let message = format!("`{text}` names methods, such as `{example}`");
            return Err(syn::Error::new(parentheses.span.join(), message));
        }
        self.except
            .extend(Punctuated::<Ident, Token![,]>::parse_terminated(&names)?);
        Ok(())
    }

    /// What to say about a word that this attribute does not take.
    fn unknown(&mut self, ident: &Ident, written: &str) -> syn::Error {
        let (kind, name) = (self.kind, self.kind.name());
        let own = || TABLE.iter().filter(|row| row.is_of(kind));
        let near = meant(written, own().map(|row| row.text));
        let close = own()
            .find(|row| row.also.contains(&written))
            .or_else(|| own().find(|row| near == Some(row.text)))
            .filter(|row| self.place(row.word).is_none());
        let elsewhere = TABLE.iter().any(|row| row.text == written);
        let message = match close {
            _ if OF_POLICIES.contains(&written) => format!(
                "`{written}` is said by a policy: put one into a registry, and name it here, `policy = \"login\"`, in place of \
                 what the attribute says about the limit"
            ),
            Some(row) => {
                // What is probably meant counts as given, so that it is not reported as missing as
                // well.
                self.given.push(Given {
                    word: row.word,
                    span: ident.span(),
                    value: None,
                });
                let (text, example) = (row.text, row.example);
                match elsewhere {
                    true => format!("`#[{name}]` takes no `{written}`: write `{text}`, such as `{example}`"),
                    false => format!("unknown argument `{written}`, did you mean `{text}`?"),
                }
            }
            None => {
                let all: Vec<String> = own().map(|row| format!("`{}`", row.text)).collect();
                format!(
                    "unknown argument `{written}` of `#[{name}]`, expected one of {}",
                    all.join(", ")
                )
            }
        };
        syn::Error::new(ident.span(), message)
    }
}

/// The word of an argument that is a plain name, such as `allow`.
pub(crate) fn plain_word(expr: &Expr) -> Option<String> {
    match peel(expr) {
        Expr::Path(path) => path.path.get_ident().map(Ident::to_string),
        _ => None,
    }
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        // Cannot fail before the end.
        let _: syn::Result<proc_macro2::TokenTree> = input.parse();
    }
}

/// The first `.await` that belongs to the annotated function itself.
fn first_await(expr: &Expr) -> Option<Span> {
    struct Awaits(Option<Span>);
    impl<'ast> Visit<'ast> for Awaits {
        fn visit_expr_await(&mut self, found: &'ast syn::ExprAwait) {
            self.0.get_or_insert(found.await_token.span());
            visit::visit_expr_await(self, found);
        }

        fn visit_expr_async(&mut self, _: &'ast syn::ExprAsync) {}

        fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}
    }
    let mut awaits = Awaits(None);
    awaits.visit_expr(expr);
    awaits.0
}
