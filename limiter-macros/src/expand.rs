//! Generates the function with its guard. The model is checked, so nothing here can fail.
//!
//! The guard is computed in its own block, in which the call is decided unless it has to wait:
//! borrows and locks of its expressions end before the first await.
//!
//! Tests: `snapshot_tests.rs`, `tests/ui.rs`, `tests/compiles`, `tests/behaviour/shapes.rs`
//! (`future_holds_no_borrow_across_first_await`).

mod annotation_entry;
mod borrow;
mod count_if;
mod guard_values;
mod limit_entry;
mod need_assertion;

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{Attribute, Path};

use crate::async_trait_body::AsyncTraitBody;
use crate::func::{self, Func, GuardPosition, MARKER, Output, Param};
use crate::literal::{Number, Period};
use crate::model::{Algorithm, Limit, LimitedFn, Name};
use borrow::by_reference;
use guard_values::{convert, number, option, period, rate_of};

impl ToTokens for LimitedFn {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let guard = self.guard();
        let mut sig = self.func.sig.clone();
        let mut rebind = TokenStream::new();
        if self.passes_args() {
            sig.inputs = func::renamed(&sig.inputs, &self.params);
            for param in self.params.iter().filter(|param| param.rename.is_some()) {
                let (Some(pattern), ident, cfgs) = (&param.pattern, &param.ident, &param.cfgs) else {
                    continue;
                };
                rebind.extend(quote!(#(#cfgs)* let #pattern = #ident;));
            }
        }
        let body = match &self.shape {
            GuardPosition::Async => {
                let (inner, rest) = inner_attributes(self.func.body.stream());
                // Generated braces, which the lint against unneeded braces ignores.
                let rest = self.counted(braced(rest, mixed(self.func.body.span())));
                braced(quote!(#(#inner)* #guard #rebind #rest), self.func.body.span())
            }
            GuardPosition::AsyncTraitBody(boxed) => {
                let AsyncTraitBody {
                    before,
                    pin,
                    head,
                    block,
                    ..
                } = &**boxed;
                let rest = self.counted(braced(block.stream(), mixed(block.span())));
                let block = braced(quote!(#guard #rebind #rest), block.span());
                braced(quote!(#before #pin(#head #block)), self.func.body.span())
            }
        };
        let Func { attrs, vis, .. } = &self.func;
        Func {
            attrs: attrs.clone(),
            vis: vis.clone(),
            sig,
            body,
        }
        .to_tokens(tokens);
    }
}

impl LimitedFn {
    /// Returns the decision, and the response to its rejection.
    fn guard(&self) -> TokenStream {
        let private = &private(&self.krate);
        let guard = marker();
        let refused = &local("__limiter_refused");
        let (made, applies) = (local("__limiter_made"), local("__limiter_applies"));
        let policies = self
            .limits
            .iter()
            .enumerate()
            .map(|(index, limit)| self.annotation_entry(index, limit, private));
        let names = self.by_reference();
        let (reporter, function) = (local("__LIMITER_REPORTER"), self.path());
        let limiter = match &self.limiter {
            Some(expr) => {
                let limiter = convert(private, "ToLimiter", "to_limiter", expr);
                quote!(::core::option::Option::Some(#limiter))
            }
            None => quote!(::core::option::Option::None),
        };
        let wait = option(self.wait.as_ref().map(|wait| period(wait, private)));
        let (waits, wait) = match &self.wait {
            Some(Period::Computed(_)) => {
                let value = local("__limiter_wait");
                (quote!(let #value = #wait;), value.into_token_stream())
            }
            _ => (TokenStream::new(), wait),
        };
        let values = self
            .limits
            .iter()
            .enumerate()
            .map(|(index, limit)| self.values(index, limit, private));
        let entries = self
            .limits
            .iter()
            .enumerate()
            .map(|(index, limit)| self.entry(index, limit, private));
        let decide = match self.is_counted() || self.holds() {
            true => quote!(into_pending),
            false => quote!(try_enter),
        };
        // One statement for the limiter and the decision, since the limiter may be borrowed from a
        // temporary value. The other values are computed before, so that their locks are released.
        let made = quote! {
            #(#values)*
            #waits
            let #made = #private::AnnotationGuard::new(&#reporter, #limiter, [#(#entries),*], #wait).#decide();
            #made
        };
        let made = match &self.when {
            None => made,
            Some(when) => {
                let when = quote_spanned!(mixed(when.span())=> let #applies: bool = #when;);
                quote!(#when if #applies { #made } else { ::core::option::Option::None })
            }
        };
        let answer = self.answer(refused, private);
        let (removed, id) = (&self.removed, function_id());
        let made = quote! {
            let #guard = { #(#[allow(unused_imports)] use #removed as _;)*
                static #id: #private::FunctionId = #private::FunctionId::new();
                #(#policies)*
                static #reporter: #private::Reporter = #private::Reporter::new(#function);
                #names #made };
        };
        if self.is_counted() {
            let charged = count_if::charged();
            return quote! {
                #made
                let #charged = match #private::enter_counted(#guard).await {
                    ::core::result::Result::Ok(#charged) => #charged,
                    ::core::result::Result::Err(#refused) => { #answer }
                };
            };
        }
        if self.holds() {
            let permits = local("__limiter_permits");
            return quote! {
                #made
                let #permits = match #private::hold(#guard).await {
                    ::core::result::Result::Ok(#permits) => #permits,
                    ::core::result::Result::Err(#refused) => { #answer }
                };
            };
        }
        let undecided = local("__limiter_undecided");
        quote! {
            #made
            if let ::core::option::Option::Some(#undecided) = #guard {
                if let ::core::result::Result::Err(#refused) = #private::enter(#undecided).await { #answer }
            }
        }
    }

    fn policy(&self, limit: &Limit, private: &TokenStream) -> TokenStream {
        let name = self.name(limit);
        let deadline = option(limit.deadline.as_ref().map(|deadline| period(deadline, private)));
        let answer = limit
            .on_store_failure
            .as_ref()
            .map(|variant| quote!(#private::OnStoreFailure::#variant));
        let answer = option(answer);
        let lease = option(limit.lease.as_ref().map(|lease| period(lease, private)));
        let options = quote!(&#private::PolicyOptions { deadline: #deadline, on_store_failure: #answer, lease: #lease });
        match &limit.algorithm {
            Algorithm::Token { capacity, rate } => {
                let (capacity, rate) = (number(capacity, private), rate_of(rate, private));
                quote!(#private::token_bucket(#name, #capacity, #rate, #options))
            }
            Algorithm::Funnel {
                capacity,
                rate,
                paced,
            } => {
                let (capacity, rate) = (number(capacity, private), rate_of(rate, private));
                let new = local(if *paced { "paced_funnel" } else { "funnel" });
                quote!(#private::#new(#name, #capacity, #rate, #options))
            }
            Algorithm::Window {
                limit: permits,
                window,
                kind_is_omitted,
            } => {
                // A literal was checked before, and a computed limit cannot be checked.
                let is_checked = *kind_is_omitted && limit.constant && matches!(permits, Number::Computed(_));
                let new = local(match is_checked {
                    true => "window_without_kind",
                    false => "sliding_window",
                });
                let (permits, window) = (number(permits, private), period(window, private));
                quote!(#private::#new(#name, #permits, #window, #options))
            }
            Algorithm::CounterWindow { limit, window } => {
                let (limit, window) = (number(limit, private), period(window, private));
                quote!(#private::counter_window(#name, #limit, #window, #options))
            }
            Algorithm::FixedWindow { limit, window, align } => {
                let limit = number(limit, private);
                let window = option(window.as_ref().map(|window| period(window, private)));
                let align = option(align.as_ref().map(ToTokens::to_token_stream));
                quote!(#private::fixed_window(#name, #limit, #window, #align, #options))
            }
            Algorithm::Concurrency { max } => {
                let max = number(max, private);
                quote!(#private::concurrency(#name, #max, #options))
            }
            // The registry builds the policy; the entry refers to it by name.
            Algorithm::Named { .. } => TokenStream::new(),
        }
    }

    fn name(&self, limit: &Limit) -> TokenStream {
        match &limit.name {
            Name::Given(name) => name.to_token_stream(),
            Name::OfFunction => self.path(),
        }
    }

    fn path(&self) -> TokenStream {
        let function = self.func.sig.ident.unraw().to_string();
        let function = match &self.owner {
            Some(owner) => format!("{owner}::{function}"),
            None => function,
        };
        quote!(::core::concat!(::core::module_path!(), "::", #function))
    }

    /// References with the names that patterns bind, if the attributes use them. The arguments are
    /// not moved.
    fn by_reference(&self) -> TokenStream {
        let mut bindings = TokenStream::new();
        let whole = |param: &&Param| param.rename.is_none() || self.passes_args();
        for param in self.params.iter().filter(whole) {
            let (Some(pattern), ident, cfgs) = (&param.pattern, &param.ident, &param.cfgs) else {
                continue;
            };
            if func::bound_names(pattern)
                .iter()
                .any(|name| self.by_reference.contains(name))
            {
                let binding = by_reference(pattern, ident);
                bindings.extend(quote!(#(#cfgs)* #binding));
                let names = func::bound_names(pattern).into_iter();
                bindings.extend(names.map(|name| quote!(#(#cfgs)* let _ = &#name;)));
            }
        }
        for param in self.params.iter().filter(|param| !whole(param)) {
            let names = param.pattern.iter().flat_map(func::bound_names);
            let names = names.filter(|name| self.by_reference.contains(name));
            let cfgs = &param.cfgs;
            bindings.extend(names.map(|name| quote!(#(#cfgs)* let #name = &#name; #(#cfgs)* let _ = #name;)));
        }
        bindings
    }

    /// Returns whether a permit is held until the body ends.
    fn holds(&self) -> bool {
        self.limits.iter().any(|limit| limit.algorithm.is_held())
    }

    fn answer(&self, refused: &Ident, private: &TokenStream) -> TokenStream {
        let rejection = quote!(#refused.rejection);
        let mut answers: Vec<TokenStream> = self
            .limits
            .iter()
            .map(|limit| self.answer_of(limit, &rejection, private))
            .collect();
        let Some(last) = answers.pop() else {
            return TokenStream::new();
        };
        if answers.is_empty() {
            return last;
        }
        let numbers = 0..answers.len();
        quote!(match #refused.index { #(#numbers => { #answers })* _ => { #last } })
    }

    fn answer_of(&self, limit: &Limit, rejection: &TokenStream, private: &TokenStream) -> TokenStream {
        let value = &local("__limiter_value");
        let Some(fallback) = &limit.fallback else {
            return match &self.output {
                Output::Unit(span) => quote_spanned! {mixed(*span)=>
                    return <() as #private::FromRejection>::from_rejection(#rejection);
                },
                Output::Named(output) => quote_spanned! {mixed(output.span())=>
                    return <#output as #private::FromRejection>::from_rejection(#rejection);
                },
                Output::Inferred(output) | Output::Opaque(output) => quote_spanned! {mixed(output.span())=>
                    return #private::FromRejection::from_rejection(#rejection);
                },
            };
        };
        let (before, call) = fallback.call(&self.params, rejection);
        let span = mixed(fallback.span);
        let output = match &self.output {
            Output::Unit(_) => Some(quote!(: ())),
            Output::Named(output) => Some(quote!(: #output)),
            Output::Inferred(_) | Output::Opaque(_) => None,
        };
        let wrapper = relocated(quote!(#private::Fallback), span);
        let resolved = quote_spanned!(span=> #wrapper(#call).resolve().await);
        quote! {
            use #private::ResolveValue as _;
            #before
            let #value #output = #resolved;
            return #value;
        }
    }
}

fn private(krate: &Path) -> TokenStream {
    quote_spanned!(Span::mixed_site()=> #krate::__private)
}

/// Returns an identifier that the function's code cannot refer to.
fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

fn marker() -> Ident {
    local(MARKER)
}

fn policy_static(index: usize) -> Ident {
    format_ident!("__LIMITER_POLICY_{index}", span = Span::mixed_site())
}

/// Returns the static that identifies the function in the list of annotations.
fn function_id() -> Ident {
    local("__LIMITER_FUNCTION")
}

/// Returns a span in the function with the hygiene of the expansion: errors are shown there, and
/// style lints ignore it.
fn mixed(span: Span) -> Span {
    span.resolved_at(Span::mixed_site())
}

/// Returns the tokens with another span for errors.
fn relocated(tokens: TokenStream, span: Span) -> TokenStream {
    let at = |mut tree: TokenTree| {
        tree.set_span(span.resolved_at(tree.span()));
        tree
    };
    tokens.into_iter().map(at).collect()
}

/// Returns a body that mentions the removed attributes of its function, so that their imports count
/// as used.
pub(crate) fn import_removed(removed: &[Path], body: &Group) -> Group {
    let (inner, rest) = inner_attributes(body.stream());
    braced(
        quote!(#(#inner)* #(#[allow(unused_imports)] use #removed as _;)* #rest),
        body.span(),
    )
}

fn braced(stream: TokenStream, span: Span) -> Group {
    let mut group = Group::new(proc_macro2::Delimiter::Brace, stream);
    group.set_span(span);
    group
}

/// Splits the inner attributes (`#![…]`) from the start of a body.
fn inner_attributes(body: TokenStream) -> (Vec<Attribute>, TokenStream) {
    let split = |input: syn::parse::ParseStream<'_>| {
        Ok((input.call(Attribute::parse_inner)?, input.parse::<TokenStream>()?))
    };
    split.parse2(body.clone()).unwrap_or((Vec::new(), body))
}
