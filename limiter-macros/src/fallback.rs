//! What answers a rejected call: the function of `fallback = …`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprLit, Ident, Lit, Member};

use crate::args::Args;
use crate::constant::peel;
use crate::diagnostics::Diagnostics;
use crate::func::Param;
use crate::words::Word;

/// A fallback and what it is given.
pub(crate) struct Fallback {
    callee: Callee,
    pub(crate) span: Span,
    pub(crate) pass_args: bool,
    pub(crate) pass_rejection: bool,
}

enum Callee {
    Path(Expr),
    /// `self.method`, or a method of a field.
    Method {
        receiver: Expr,
        method: Ident,
    },
}

impl Fallback {
    /// The fallback of one attribute, if it has one.
    pub(crate) fn read(args: &mut Args, has_self: bool, diagnostics: &mut Diagnostics) -> Option<Self> {
        let (pass_args, pass_rejection) = (args.place(Word::PassArgs), args.place(Word::PassRejection));
        if args.place(Word::Fallback).is_none() {
            for (flag, place) in [(Word::PassArgs, pass_args), (Word::PassRejection, pass_rejection)] {
                if let Some(place) = place {
                    let (flag, example) = (flag.text(), Word::Fallback.example());
                    diagnostics.at(place, format!("`{flag}` belongs to a fallback, add `{example}`"));
                }
            }
        }
        let expr = args.take_value(Word::Fallback)?;
        let span = expr.span();
        let callee = diagnostics.ok(callee(&expr, has_self))?;
        Some(Self {
            callee,
            span,
            pass_args: pass_args.is_some(),
            pass_rejection: pass_rejection.is_some(),
        })
    }

    /// What stands before the call, and the call. Its errors show at the fallback. All of its
    /// tokens are the expansion's own, bound before where need be: the compiler then offers no edit
    /// of the attribute, which would be a wrong one.
    pub(crate) fn call(&self, params: &[Param], rejection: &TokenStream) -> (TokenStream, TokenStream) {
        let span = self.span.resolved_at(Span::mixed_site());
        let mut before = TokenStream::new();
        let mut arguments: Vec<Ident> = Vec::new();
        for (index, param) in params.iter().filter(|_| self.pass_args).enumerate() {
            let (value, ident) = (Ident::new(&format!("__limiter_value{index}"), span), &param.ident);
            before.extend(quote!(let #value = #ident;));
            arguments.push(value);
        }
        if self.pass_rejection {
            let value = Ident::new("__limiter_rejection", span);
            before.extend(quote!(let #value = #rejection;));
            arguments.push(value);
        }
        match &self.callee {
            Callee::Path(path) => {
                let function = Ident::new("__limiter_fallback", span);
                before.extend(quote!(let #function = #path;));
                (before, quote_spanned!(span=> #function(#(#arguments),*)))
            }
            Callee::Method { receiver, method } => {
                let mut method = method.clone();
                method.set_span(method.span().resolved_at(Span::mixed_site()));
                (before, quote_spanned!(span=> #receiver.#method(#(#arguments),*)))
            }
        }
    }
}

fn callee(expr: &Expr, has_self: bool) -> syn::Result<Callee> {
    let refuse = |message: &str| Err(syn::Error::new(expr.span(), message));
    match peel(expr) {
        Expr::Path(path) if path.path.is_ident("self") => {
            refuse("`self` is no function: name one of its methods, such as `fallback = self.on_limited`")
        }
        path @ Expr::Path(_) => Ok(Callee::Path(path.clone())),
        Expr::Field(field) if starts_with_self(&field.base) => match &field.member {
            Member::Named(_) if !has_self => {
                refuse("there is no `self` here: name a function, such as `fallback = on_limited`")
            }
            Member::Named(method) => Ok(Callee::Method {
                receiver: (*field.base).clone(),
                method: method.clone(),
            }),
            Member::Unnamed(_) => {
                refuse("a fallback is a function: name a method, such as `fallback = self.on_limited`")
            }
        },
        Expr::Call(_) | Expr::MethodCall(_) => refuse(
            "name the fallback without calling it, such as `fallback = on_limited`: `pass_args` gives it the \
             function's arguments, `pass_rejection` the reason",
        ),
        Expr::Lit(ExprLit { lit: Lit::Str(_), .. }) => refuse(
            "a fallback is a function or a method, without quotes, such as `fallback = on_limited` or \
             `fallback = self.on_limited`",
        ),
        _ => refuse(
            "a fallback is a function or a method, such as `fallback = on_limited` or `fallback = self.on_limited`",
        ),
    }
}

fn starts_with_self(expr: &Expr) -> bool {
    match peel(expr) {
        Expr::Path(path) => path.path.is_ident("self"),
        Expr::Field(field) => starts_with_self(&field.base),
        _ => false,
    }
}
