//! `count_if`: the body runs in a block of its own, so that its result can be looked at wherever it
//! returns from.

use proc_macro2::{Group, Ident, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, Type};

use super::{local, mixed, private};
use crate::func::Output;
use crate::model::LimitedFn;

/// What holds the permits until it is known which of them count.
pub(super) fn charged() -> Ident {
    local("__limiter_charged")
}

impl LimitedFn {
    pub(super) fn is_counted(&self) -> bool {
        self.limits.iter().any(|limit| limit.count_if.is_some())
    }

    /// The body; where results are looked at, its result on the way out. The arguments are the
    /// body's, as they are without an attribute, and gone when the permits go back.
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
            // Never taken: it says what the body returns, as the signature does without an
            // attribute.
            let #output: #ty = async move {
                if let ::core::option::Option::Some(#returned) = ::core::option::Option::None::<#ty> {
                    return #returned;
                }
                let #returned: #ty = #body;
                #returned
            }.await;
            #charged.settle([#(#counts),*]).await;
            #output
        }
    }

    /// The return type, as far as it can be written down here.
    fn output_type(&self) -> Type {
        match &self.output {
            Output::Unit(_) => syn::parse_quote!(()),
            Output::Named(output) | Output::Inferred(output) | Output::Opaque(output) => {
                let mut output = output.clone();
                Inferred.visit_type_mut(&mut output);
                output
            }
        }
    }
}

/// Whether the call counts. What is wrong with the predicate shows at the predicate.
fn counts(predicate: &Expr, output: &Ident, private: &TokenStream) -> TokenStream {
    quote_spanned!(mixed(predicate.span())=> #private::counts(&#output, #predicate))
}

/// `_` for each `impl Trait`, which only inference can name.
struct Inferred;

impl VisitMut for Inferred {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        match ty {
            Type::ImplTrait(_) => *ty = syn::parse_quote!(_),
            other => visit_mut::visit_type_mut(self, other),
        }
    }
}
