//! One attribute's limit, as the guard computes it for one call.
//!
//! The policy and the cost own their data. They are computed in statements before the keys, which
//! borrow until the decision, so that a lock that one expression takes is released before the next
//! one is evaluated. Tests: `numbers_release_their_locks_before_next_expression` in
//! `tests/behaviour/keys.rs`, `snapshot_tests.rs`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote};

use super::guard_values::{group_buffer, key_buffer, key_of, number};
use super::policy_static;
use crate::literal::Number;
use crate::model::{Algorithm, Limit, LimitedFn};

impl LimitedFn {
    /// Returns the statements that compute the policy and the cost, unless they are constant.
    pub(super) fn values(&self, index: usize, limit: &Limit, private: &TokenStream) -> TokenStream {
        let is_named = matches!(limit.algorithm, Algorithm::Named { .. });
        let policy = (!limit.constant && !is_named).then(|| {
            let (value, policy) = (policy_value(index), self.policy(limit, private));
            quote!(let #value = #policy;)
        });
        let need = limit.need.as_ref().filter(|need| is_computed(need)).map(|need| {
            let (value, need) = (need_value(index), number(need, private));
            quote!(let #value = #need;)
        });
        quote!(#policy #need)
    }

    /// Returns the entry, which refers to these values.
    pub(super) fn entry(&self, index: usize, limit: &Limit, private: &TokenStream) -> TokenStream {
        let mut whose = match &limit.key {
            Some(key) => key_of(key, &key_buffer(index), private),
            None => quote!(#private::Key::global()),
        };
        if let Some(group) = &limit.group {
            let group = key_of(group, &group_buffer(index), private);
            whose = quote!(#whose.in_group(#group));
        }
        let need = limit.need.as_ref().map(|need| {
            let need = match is_computed(need) {
                true => need_value(index).into_token_stream(),
                false => number(need, private),
            };
            quote!(.need(#need))
        });
        if limit.constant {
            let policy = policy_static(index);
            return quote!(#private::AnnotationEntry::fixed(&#policy, #whose) #need);
        }
        if matches!(limit.algorithm, Algorithm::Named { .. }) {
            let name = self.name(limit);
            return quote!(#private::AnnotationEntry::named(#name, #whose) #need);
        }
        let policy = policy_value(index);
        quote!(#private::AnnotationEntry::built(#policy, #whose) #need)
    }
}

fn is_computed(number: &Number) -> bool {
    matches!(number, Number::Computed(_))
}

fn policy_value(index: usize) -> Ident {
    format_ident!("__limiter_policy_{index}", span = Span::mixed_site())
}

fn need_value(index: usize) -> Ident {
    format_ident!("__limiter_need_{index}", span = Span::mixed_site())
}
