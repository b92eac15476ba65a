//! The entry of an annotation in the program's list of annotations.
//!
//! Tests: `tests/behaviour/sites.rs` (`all_annotations_are_listed`), `tests/behaviour/lines.rs`,
//! `snapshot_tests.rs`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};

use super::guard_values::{number, option};
use super::{function_id, need_assertion, policy_static};
use crate::literal::Number;
use crate::model::{Key, Limit, LimitedFn};
use crate::template::{Piece, Template};

impl LimitedFn {
    /// Returns the policy, if it is built once, and the entry in the list.
    pub(super) fn annotation_entry(&self, index: usize, limit: &Limit, private: &TokenStream) -> TokenStream {
        let name = self.name(limit);
        let function = self.path();
        let shared = limit.shared;
        let global = Template::global();
        let key = match &limit.key {
            Some(key) => written(key, private),
            None => template(&global, private),
        };
        let group = option(limit.group.as_ref().map(|group| written(group, private)));
        let (limiter, held) = (self.limiter.is_some(), limit.algorithm.is_held());
        let assertion = need_assertion::assertion(limit, private);
        let need = match &limit.need {
            None => Some(number(&Number::ONE, private)),
            Some(need) => limit.has_constant_need.then(|| number(need, private)),
        };
        let need = option(need.map(|need| quote!(|| #need)));
        let policy_static = policy_static(index);
        let (item, policy) = if limit.constant {
            let policy = self.policy(limit, private);
            let item = quote! {
                static #policy_static: #private::LazyLock<#private::BuiltPolicy> = #private::LazyLock::new(|| #policy);
            };
            (
                item,
                quote!(#private::AnnotationPolicy::Fixed(|| #private::BuiltPolicy::clone(&#policy_static))),
            )
        } else if matches!(limit.algorithm, crate::model::Algorithm::Named { .. }) {
            (TokenStream::new(), quote!(#private::AnnotationPolicy::Named))
        } else {
            (TokenStream::new(), quote!(#private::AnnotationPolicy::Computed))
        };
        // `line!` returns the line of its own tokens, or of the outermost macro invocation, as
        // `file!` does.
        let line = quote_spanned!(limit.place=> ::core::line!());
        let id = function_id();
        quote! {
            #item
            #assertion
            #private::inventory::submit! {
                #private::RegisteredAnnotation {
                    name: #name,
                    function: #function,
                    file: ::core::file!(),
                    line: #line,
                    id: &#id,
                    shared: #shared,
                    limiter: #limiter,
                    held: #held,
                    key: #key,
                    group: #group,
                    policy: #policy,
                    need: #need,
                }
            }
        }
    }
}

/// Returns the key as written, from which the key's parts are formatted.
fn written(key: &Key, private: &TokenStream) -> TokenStream {
    match key {
        Key::Template(of) => template(of, private),
        Key::Computed(_) => quote!(#private::KeyTemplate::Computed),
    }
}

fn template(Template { written, pieces, .. }: &Template, private: &TokenStream) -> TokenStream {
    let pieces = pieces.iter().map(|piece| match piece {
        Piece::Text(text) => quote!(#private::TemplatePiece::Text(#text)),
        place @ Piece::Place { .. } => {
            let name = place.name();
            quote!(#private::TemplatePiece::Part(#name))
        }
    });
    quote!(#private::KeyTemplate::Template { text: #written, pieces: &[#(#pieces),*] })
}
