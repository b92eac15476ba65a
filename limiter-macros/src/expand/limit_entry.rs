//! One attribute's limit, as the guard computes it for one call.
//!
//! The policy and the cost own their data, and a key borrows from its buffer or from the arguments.
//! Each is computed in a statement of its own, so that a lock that one expression takes is released
//! before the next one is evaluated. Tests: `expressions_release_their_locks_before_next_one` in
//! `tests/behaviour/keys.rs`, `snapshot_tests.rs`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote};

use super::guard_values::{key_statements, number};
use super::policy_static;
use crate::literal::Number;
use crate::model::{Algorithm, Limit, LimitedFn};

impl LimitedFn {
    /// Returns the statements that compute the policy and the cost, unless they are constant, and
    /// the keys.
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
        let key = limit
            .key
            .as_ref()
            .map(|key| key_statements(key, &key_value(index), private));
        let group = limit.group.as_ref();
        let group = group.map(|group| key_statements(group, &group_value(index), private));
        quote!(#policy #need #key #group)
    }

    /// Returns the entry, which refers to these values.
    pub(super) fn entry(&self, index: usize, limit: &Limit, private: &TokenStream) -> TokenStream {
        let mut whose = match &limit.key {
            Some(_) => key_value(index).into_token_stream(),
            None => quote!(#private::Key::global()),
        };
        if limit.group.is_some() {
            let group = group_value(index);
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

fn key_value(index: usize) -> Ident {
    format_ident!("__limiter_key_{index}", span = Span::mixed_site())
}

fn group_value(index: usize) -> Ident {
    format_ident!("__limiter_group_{index}", span = Span::mixed_site())
}
