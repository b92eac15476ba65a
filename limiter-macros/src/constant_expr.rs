//! Detects expressions with the same value on every call, so that a policy can be built once.
//!
//! A macro has tokens and no types, so detection is by syntax: literals, names in upper case, and
//! constructors of `Duration` and `Rate`. Arithmetic on literals is also evaluated, so that its
//! result is checked like a literal.
//!
//! An expression that is not detected is computed in each call. Tests: below, and
//! `tests/compiles/constants.rs`.

use proc_macro2::Ident;
use syn::{BinOp, Expr, Lit, Path, UnOp};

/// Returns the expression without enclosing parentheses and without the invisible groups of
/// `macro_rules`.
pub(crate) fn peel(expr: &Expr) -> &Expr {
    match expr {
        Expr::Group(group) => peel(&group.expr),
        Expr::Paren(paren) => peel(&paren.expr),
        _ => expr,
    }
}

/// Returns whether the expression has the same value on every call and is valid in an item:
/// literals, constants, and `Duration::from_…` and `Rate::per…` of those. `is_item` returns whether
/// an item inside the function can use a path.
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

/// Returns the value of integer arithmetic on literals without a type. `None` for any other
/// expression, and for one that the compiler rejects.
pub(crate) fn folded(expr: &Expr) -> Option<i128> {
    match peel(expr) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) if number.suffix().is_empty() => number.base10_parse().ok(),
            _ => None,
        },
        Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => folded(&unary.expr)?.checked_neg(),
        Expr::Binary(binary) => {
            let (left, right) = (folded(&binary.left)?, folded(&binary.right)?);
            match binary.op {
                BinOp::Add(_) => left.checked_add(right),
                BinOp::Sub(_) => left.checked_sub(right),
                BinOp::Mul(_) => left.checked_mul(right),
                BinOp::Div(_) => left.checked_div(right),
                BinOp::Rem(_) => left.checked_rem(right),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns whether an item can contain the value of a constant expression: the type follows from
/// the expression alone, and the compiler can evaluate it. The type of `2 * 3` depends on its use,
/// the type of `2 * LIMIT` does not; the value of `*LIMIT` can be that of a `LazyLock`.
pub(crate) fn is_constant_item(expr: &Expr) -> bool {
    has_type(expr) && !dereferences(expr)
}

fn dereferences(expr: &Expr) -> bool {
    match peel(expr) {
        Expr::Unary(unary) => matches!(unary.op, UnOp::Deref(_)) || dereferences(&unary.expr),
        Expr::Binary(binary) => dereferences(&binary.left) || dereferences(&binary.right),
        Expr::Cast(cast) => dereferences(&cast.expr),
        _ => false,
    }
}

fn has_type(expr: &Expr) -> bool {
    match peel(expr) {
        Expr::Path(_) | Expr::Cast(_) => true,
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => !number.suffix().is_empty(),
            Lit::Float(number) => !number.suffix().is_empty(),
            _ => false,
        },
        Expr::Unary(unary) => has_type(&unary.expr),
        Expr::Binary(binary) => {
            let is_shift = matches!(binary.op, BinOp::Shl(_) | BinOp::Shr(_));
            has_type(&binary.left) || !is_shift && has_type(&binary.right)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_on_literals_is_folded() {
        assert_eq!(folded(&syn::parse_quote!((20 + 1) * 2 - 7 / 2)), Some(39));
        assert_eq!(folded(&syn::parse_quote!(-(3 % 2))), Some(-1));
        for other in ["1 / 0", "2 * LIMIT", "1u8 + 1", "0.5 + 1.0", "1 << 3"] {
            let expr: Expr = syn::parse_str(other).unwrap();
            assert_eq!(folded(&expr), None, "{other}");
        }
    }

    #[test]
    fn constant_item_has_a_type_and_no_dereferenced_value() {
        for (expr, expected) in [
            ("LIMIT", true),
            ("2 * LIMIT", true),
            ("-(2 as i8)", true),
            ("1 + 1u8", true),
            ("1 << LIMIT", false),
            ("LIMIT << 1", true),
            ("0.5 + 0.5", false),
            ("*LIMIT", false),
            ("LIMIT - *LIMIT as u32", false),
        ] {
            let parsed = syn::parse_str(expr).unwrap();
            assert_eq!(is_constant_item(&parsed), expected, "{expr}");
        }
    }

    #[test]
    fn constants_are_distinguished_from_values() {
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
