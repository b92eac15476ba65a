//! The values of an attribute, as the guard computes them.
//!
//! Invariant: each expression is evaluated at most once for each call
//! (`arguments_are_evaluated_once` in `tests/behaviour/keys.rs`). Further tests:
//! `tests/behaviour/plain.rs`, `snapshot_tests.rs`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::Expr;
use syn::spanned::Spanned;

use super::mixed;
use crate::literal::{Number, Period, RateText};
use crate::model::{Key, Rate};
use crate::template::{Piece, Template};

pub(super) fn option(value: Option<TokenStream>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

/// Returns a conversion of a reference to the expression's value.
pub(super) fn convert(private: &TokenStream, of: &str, method: &str, expr: &Expr) -> TokenStream {
    let span = mixed(expr.span());
    let (of, method) = (Ident::new(of, span), Ident::new(method, span));
    quote_spanned!(span=> #private::#of::#method(&(#expr)))
}

/// Returns a conversion to a value without borrows. It is a statement of its own, so that a lock
/// that the expression takes is released after it.
fn convert_apart(private: &TokenStream, of: &str, method: &str, expr: &Expr) -> TokenStream {
    let span = mixed(expr.span());
    let (value, converted) = (
        Ident::new("__limiter_converted", span),
        convert(private, of, method, expr),
    );
    quote_spanned!(span=> { let #value = #converted; #value })
}

pub(super) fn number(number: &Number, private: &TokenStream) -> TokenStream {
    match number {
        Number::Literal(thousandths) => {
            quote!(::core::result::Result::Ok(#private::Amount::from_thousandths(#thousandths)))
        }
        Number::Computed(expr) => convert_apart(private, "ToAmount", "to_amount", expr),
    }
}

pub(super) fn period(period: &Period, private: &TokenStream) -> TokenStream {
    match period {
        Period::Literal(micros) => {
            quote!(::core::result::Result::Ok(#private::Duration::from_micros(#micros)))
        }
        Period::Computed(expr) => convert_apart(private, "ToDuration", "to_duration", expr),
    }
}

pub(super) fn rate_of(rate: &Rate, private: &TokenStream) -> TokenStream {
    match rate {
        Rate::Text(RateText { thousandths, micros }) => {
            let amount = number(&Number::Literal(*thousandths), private);
            let span = period(&Period::Literal(*micros), private);
            quote!(#private::rate_per(#amount, #span))
        }
        Rate::Per { amount, period: span } => {
            let (amount, span) = (number(amount, private), period(span, private));
            quote!(#private::rate_per(#amount, #span))
        }
        Rate::Computed(expr) => convert_apart(private, "ToRate", "to_rate", expr),
    }
}

/// Returns the statements that compute a key in the variable `value`. The key borrows from a
/// buffer.
pub(super) fn key_statements(key: &Key, value: &Ident, private: &TokenStream) -> TokenStream {
    let buffer = format_ident!("{value}_buffer", span = Span::mixed_site());
    let key = match key {
        Key::Computed(expr) => {
            let span = mixed(expr.span());
            quote_spanned!(span=> #private::ToKey::to_key(&(#expr), &mut #buffer))
        }
        Key::Template(Template { span, pieces, .. }) => {
            let pieces = pieces.iter().map(|piece| match piece {
                Piece::Text(text) => quote!(.text(#text)),
                Piece::Place { root, fields } => quote_spanned!(mixed(*span)=> .part(&#root #(.#fields)*)),
            });
            quote!(#buffer #(#pieces)* .key())
        }
    };
    quote! {
        let mut #buffer = #private::KeyBuffer::new();
        let #value = #key;
    }
}
