//! Parses the arguments of one attribute: names and values, each with its span.
//!
//! The names and the syntax of the arguments come from `argument_table.rs`. After an error the
//! parser records it, skips to the next comma and continues, so that one compilation reports all
//! errors.
//!
//! Invariant: an argument with an invalid value, and the probable argument of a misspelt name,
//! count as present, so that they are not also reported as missing. Tests:
//! `argument_table/tests.rs`, and `tests/ui/fail`, where `every_mistake_at_once.rs` has several
//! errors.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Ident, Token, parenthesized, token};

use crate::argument_table::{ArgumentName, ArgumentSpec, AttributeKind, OF_POLICIES, TABLE};
use crate::constant_expr::peel;
use crate::diagnostics::{Diagnostics, closest_match};

/// The parsed arguments of one attribute.
pub(crate) struct Args {
    pub(crate) kind: AttributeKind,
    /// The span of the attribute.
    pub(crate) span: Span,
    /// The methods in `except(…)`.
    pub(crate) except: Vec<Ident>,
    values: Vec<ArgValue>,
}

struct ArgValue {
    word: ArgumentName,
    span: Span,
    /// `None` for a flag, and for a value that was rejected before.
    value: Option<Expr>,
}

impl Args {
    pub(crate) fn parse(
        kind: AttributeKind,
        span: Span,
        tokens: TokenStream,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        let mut args = Self {
            kind,
            span,
            except: Vec::new(),
            values: Vec::new(),
        };
        let all = |input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(error) = args.parse_one(input, diagnostics) {
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

    /// Returns the span of an argument, if present.
    pub(crate) fn span_of(&self, word: ArgumentName) -> Option<Span> {
        self.values
            .iter()
            .find(|values| values.word == word)
            .map(|values| values.span)
    }

    /// Returns the names and spans of the present arguments.
    pub(crate) fn names(&self) -> impl Iterator<Item = (ArgumentName, Span)> {
        self.values.iter().map(|values| (values.word, values.span))
    }

    /// Takes the value of an argument, if it is present and valid.
    pub(crate) fn take_value(&mut self, word: ArgumentName) -> Option<Expr> {
        self.values
            .iter_mut()
            .find(|values| values.word == word)
            .and_then(|values| values.value.take())
    }

    /// Takes the value of a required argument.
    pub(crate) fn require(&mut self, word: ArgumentName, diagnostics: &mut Diagnostics) -> Option<Expr> {
        if self.span_of(word).is_none() {
            let (text, example) = (word.text(), word.example());
            diagnostics.at(self.span, format!("`{text}` is missing, add `{example}`"));
        }
        self.take_value(word)
    }

    fn parse_one(&mut self, input: ParseStream<'_>, diagnostics: &mut Diagnostics) -> syn::Result<()> {
        if !input.peek(Ident::peek_any) {
            let example = match self.kind {
                AttributeKind::Window => "limit = 5",
                AttributeKind::Concurrency => "max = 4",
                AttributeKind::Token | AttributeKind::Funnel => "capacity = 20",
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
        let ArgumentSpec {
            word, text, example, ..
        } = *row;
        if self.span_of(word).is_some() {
            diagnostics.at(ident.span(), format!("`{text}` is given twice"));
        }
        self.values.push(ArgValue {
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
                "`{text}` is computed before the first `.await` and cannot contain one: await in a calling function, and \
                 pass the value as an argument"
            );
            return Err(syn::Error::new(place, message));
        }
        if let Some(values) = self.values.last_mut() {
            values.value = Some(value);
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

    /// Returns the error for a name that this attribute does not accept.
    fn unknown(&mut self, ident: &Ident, written: &str) -> syn::Error {
        let (kind, name) = (self.kind, self.kind.name());
        let own = || TABLE.iter().filter(|row| row.is_of(kind));
        let near = closest_match(written, own().map(|row| row.text));
        let close = own()
            .find(|row| row.also.contains(&written))
            .or_else(|| own().find(|row| near == Some(row.text)))
            .filter(|row| self.span_of(row.word).is_none());
        let elsewhere = TABLE.iter().any(|row| row.text == written);
        let message = match close {
            _ if OF_POLICIES.contains(&written) => format!(
                "`{written}` is a setting of a policy: add the policy to a registry, and name it, `policy = \"login\"`, in place of \
                 the arguments of the limit"
            ),
            Some(row) => {
                // The probable argument counts as present, so that it is not also reported as
                // missing.
                self.values.push(ArgValue {
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

/// Returns the name in an argument that is a plain identifier, such as `allow`.
pub(crate) fn plain_word(expr: &Expr) -> Option<String> {
    match peel(expr) {
        Expr::Path(path) => path.path.get_ident().map(Ident::to_string),
        _ => None,
    }
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        // Fails only at the end of the input.
        let _: syn::Result<proc_macro2::TokenTree> = input.parse();
    }
}

/// Returns the first `.await` that belongs to the annotated function itself.
fn first_await(expr: &Expr) -> Option<Span> {
    struct AwaitFinder(Option<Span>);
    impl<'ast> Visit<'ast> for AwaitFinder {
        fn visit_expr_await(&mut self, found: &'ast syn::ExprAwait) {
            self.0.get_or_insert(found.await_token.span());
            visit::visit_expr_await(self, found);
        }

        fn visit_expr_async(&mut self, _: &'ast syn::ExprAsync) {}

        fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}
    }
    let mut awaits = AwaitFinder(None);
    awaits.visit_expr(expr);
    awaits.0
}
