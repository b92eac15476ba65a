//! Which expressions are the same on every call, so that a policy of them can be built once.

use proc_macro2::Ident;
use syn::{Expr, Path};

/// The expression without enclosing parentheses and without the invisible groups of `macro_rules`.
pub(crate) fn peel(expr: &Expr) -> &Expr {
    match expr {
        Expr::Group(group) => peel(&group.expr),
        Expr::Paren(paren) => peel(&paren.expr),
        _ => expr,
    }
}

/// Whether the expression is the same on every call, and can stand in an item: literals, constants, `Duration::from_…`
/// and `Rate::per…` of those. `is_item` tells whether a path may be used by an item inside the function.
pub(crate) fn is_constant(expr: &Expr, is_item: &dyn Fn(&Path) -> bool) -> bool {
    match peel(expr) {
        Expr::Lit(_) => true,
        Expr::Unary(unary) => is_constant(&unary.expr, is_item),
        Expr::Binary(binary) => is_constant(&binary.left, is_item) && is_constant(&binary.right, is_item),
        Expr::Cast(cast) => is_constant(&cast.expr, is_item),
        Expr::Path(path) => {
            let shouts = |name: &Ident| {
                let name = name.to_string();
                name.starts_with(|first: char| first.is_ascii_uppercase())
                    && name
                        .chars()
                        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
            };
            path.qself.is_none()
                && path.path.segments.last().is_some_and(|last| shouts(&last.ident))
                && is_item(&path.path)
        }
        Expr::Call(call) => {
            let Expr::Path(function) = peel(&call.func) else {
                return false;
            };
            let mut names = function
                .path
                .segments
                .iter()
                .rev()
                .map(|segment| segment.ident.to_string());
            let constructor = match (names.next(), names.next()) {
                (Some(function), Some(owner)) => {
                    (owner == "Duration" && function.starts_with("from_"))
                        || (owner == "Rate" && function.starts_with("per"))
                }
                _ => false,
            };
            constructor
                && is_item(&function.path)
                && call.args.iter().all(|argument| is_constant(argument, is_item))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_told_from_values() {
        let constant = |expr: Expr| {
            is_constant(&expr, &|path| {
                !path.is_ident("N") && path.segments[0].ident != "Self"
            })
        };
        assert!(constant(syn::parse_quote!(60 * config::LIMIT as u64)));
        assert!(constant(syn::parse_quote!(Duration::from_secs(60))));
        assert!(constant(syn::parse_quote!(limiter_core::Rate::per(
            7,
            Duration::from_secs(3)
        ))));
        assert!(!constant(syn::parse_quote!(Self::LIMIT)));
        assert!(!constant(syn::parse_quote!(N * 2)));
        assert!(!constant(syn::parse_quote!(self.limit)));
        assert!(!constant(syn::parse_quote!(load())));
    }
}
