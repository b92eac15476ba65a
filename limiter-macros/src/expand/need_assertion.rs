//! Compile-time check of a constant `need`: one above the quota would be denied on every call.
//!
//! The macro compares literals itself. Constants are compared by the compiler, in an assertion of
//! the expansion.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::Expr;
use syn::spanned::Spanned;

use super::mixed;
use crate::constant_expr::is_constant_item;
use crate::literal::Number;
use crate::model::Limit;

/// Returns the assertion, where `need` and the quota are constant and at least one of them is no
/// literal.
pub(super) fn assertion(limit: &Limit, private: &TokenStream) -> Option<TokenStream> {
    let need = limit.need.as_ref().filter(|_| limit.has_constant_need)?;
    let (word, quota) = limit.constant_quota.as_ref()?;
    let span = match (need, quota) {
        (Number::Literal(_), Number::Literal(_)) => return None,
        (Number::Computed(need), _) => need.span(),
        (_, Number::Computed(quota)) => quota.span(),
    };
    let message = format!("`need` is above the `{word}`, so that no call would ever be allowed");
    let (need, quota) = (thousandths(need, private)?, thousandths(quota, private)?);
    Some(quote_spanned! {mixed(span)=>
        const _: () = ::core::assert!(#private::need_fits(#need, #quota), #message);
    })
}

/// `Option<u128>`, computed in a constant. `None` for an expression whose type depends on its use,
/// or which the compiler cannot evaluate: `verify_annotations` checks such a need.
fn thousandths(number: &Number, private: &TokenStream) -> Option<TokenStream> {
    match number {
        Number::Literal(thousandths) => {
            let thousandths = u128::from(*thousandths);
            Some(quote!(::core::option::Option::Some(#thousandths)))
        }
        Number::Computed(expr) => is_constant_item(expr).then(|| constant(expr, private)),
    }
}

fn constant(expr: &Expr, private: &TokenStream) -> TokenStream {
    quote_spanned! {mixed(expr.span())=>
        #private::ConstantNumber(::core::mem::ManuallyDrop::new(#expr)).thousandths()
    }
}
