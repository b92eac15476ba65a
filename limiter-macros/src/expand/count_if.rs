//! `count_if`: the body runs in its own block, so that its result can be checked for every kind of
//! return.

use proc_macro2::{Group, Ident, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, Type};

use super::{local, mixed, private};
use crate::func::Output;
use crate::model::LimitedFn;

/// Returns the variable that holds the permits until the result is known.
pub(super) fn charged() -> Ident {
    local("__limiter_charged")
}

impl LimitedFn {
    pub(super) fn is_counted(&self) -> bool {
        self.limits.iter().any(|limit| limit.count_if.is_some())
    }

    /// Returns the body; with `count_if`, followed by the check of its result. The body owns its
    /// arguments, as without an attribute; they are dropped before the permits are refunded.
    pub(super) fn counted(&self, body: Group) -> TokenStream {
        if !self.is_counted() {
            return body.into_token_stream();
        }
        let private = &private(&self.krate);
        let (charged, output, returned) =
            (charged(), &local("__limiter_output"), local("__limiter_returned"));
        let ty = &self.output_type();
        let counts = self.limits.iter().map(|limit| match &limit.count_if {
            Some(predicate) => counts(predicate, output, private),
            None => quote!(true),
        });
        quote! {
            // Never executed: it determines the body's type by the return type of the signature.
            let #output: #ty = async move {
                if let ::core::option::Option::Some(#returned) = ::core::option::Option::None::<#ty> {
                    return #returned;
                }
                let #returned: #ty = #body;
                // A body that never returns, such as `todo!()`, is no reason for a warning.
                #[allow(unreachable_code)]
                #returned
            }.await;
            #charged.settle([#(#counts),*]).await;
            #output
        }
    }

    /// Returns the return type, as far as it can be named here.
    fn output_type(&self) -> Type {
        match &self.output {
            Output::Unit(_) => syn::parse_quote!(()),
            Output::Named(output) | Output::Inferred(output) | Output::Opaque(output) => {
                let mut output = output.clone();
                InferImplTrait.visit_type_mut(&mut output);
                output
            }
        }
    }
}

/// Returns tokens that evaluate whether the call counts. Type errors of the predicate are shown at
/// the predicate.
fn counts(predicate: &Expr, output: &Ident, private: &TokenStream) -> TokenStream {
    quote_spanned!(mixed(predicate.span())=> #private::counts(&#output, #predicate))
}

/// Replaces each `impl Trait` by `_`, because only inference can name its type.
struct InferImplTrait;

impl VisitMut for InferImplTrait {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        match ty {
            Type::ImplTrait(_) => *ty = syn::parse_quote!(_),
            other => visit_mut::visit_type_mut(self, other),
        }
    }
}
