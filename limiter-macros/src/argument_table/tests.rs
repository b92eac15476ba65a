use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::*;
use crate::limit;

/// The errors of an attribute with one argument on a function.
fn errors(kind: AttributeKind, argument: &str) -> String {
    let name = format_ident!("{argument}");
    let args: TokenStream = quote!(#name = 1);
    limit(
        kind,
        args,
        quote!(
            async fn search() {}
        ),
    )
    .to_string()
}

#[test]
fn java_names_suggest_arguments() {
    for (kind, written, suggested) in [
        (AttributeKind::Token, "tokenRate", "rate"),
        (AttributeKind::Token, "rateUnit", "per"),
        (AttributeKind::Token, "timeUnit", "per"),
        (AttributeKind::Token, "requestNeed", "need"),
        (AttributeKind::Token, "value", "name"),
        (AttributeKind::Token, "isAbort", "wait"),
        (AttributeKind::Token, "timeout", "wait"),
        (AttributeKind::Token, "timeoutUnit", "wait"),
        (AttributeKind::Token, "passArgs", "pass_args"),
        (AttributeKind::Funnel, "funnelRate", "rate"),
        (AttributeKind::Funnel, "passRate", "rate"),
        (AttributeKind::Funnel, "addWater", "rate"),
        (AttributeKind::Window, "during", "window"),
        (AttributeKind::Window, "duringUnit", "window"),
        (AttributeKind::Window, "passCount", "limit"),
        (AttributeKind::Window, "limitForPeriod", "limit"),
        (AttributeKind::Window, "limitRefreshPeriod", "window"),
        (AttributeKind::Window, "timeoutDuration", "wait"),
        (AttributeKind::Window, "fallbackMethod", "fallback"),
        (AttributeKind::Window, "blockHandler", "fallback"),
        (AttributeKind::Token, "cacheKey", "key"),
        (AttributeKind::Token, "skipCondition", "when"),
    ] {
        let expected = format!("unknown argument `{written}`, did you mean `{suggested}`?");
        let found = errors(kind, written);
        assert!(found.contains(&expected), "{expected}: {found}");
    }
}
