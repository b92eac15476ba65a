//! The body that `#[async_trait]` generates for an async fn: a plain fn whose body ends in
//! `Box::pin(async move { … })`.
//!
//! An attribute that is expanded after `#[async_trait]` receives a function that is not async, in
//! which a guard cannot await. This module recognizes the form by its tokens and splits it, so that
//! the expansion inserts the guard into the async block. Other bodies yield `None`, and `func.rs`
//! reports an error unless the function is async.
//!
//! Tests: `tests/behaviour/shapes.rs`, and the snapshot of `tests/snapshots/async_trait_method.rs`.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::quote;
use syn::parse::{ParseStream, Parser};
use syn::visit::Visit;
use syn::{Expr, GenericArgument, Pat, PathArguments, ReturnType, Stmt, Type, TypeParamBound};

/// The parts of such a body.
pub(crate) struct AsyncTraitBody {
    /// The body up to `Box::pin`.
    pub(crate) before: TokenStream,
    /// `Box::pin`.
    pub(crate) pin: TokenStream,
    /// `async move`.
    pub(crate) head: TokenStream,
    pub(crate) block: Group,
    /// The output type of the future.
    pub(crate) output: Type,
}

impl AsyncTraitBody {
    /// Splits a body of this form; `None` for other bodies.
    pub(crate) fn read(output: &ReturnType, body: &Group) -> Option<Self> {
        let ReturnType::Type(_, output) = output else {
            return None;
        };
        let output = future_output(output)?.clone();
        let mut trees: Vec<TokenTree> = body.stream().into_iter().collect();
        let Some(TokenTree::Group(argument)) = trees.pop() else {
            return None;
        };
        let pin_start = trees.len().checked_sub(4)?;
        let pin = trees.split_off(pin_start);
        let is_pin = matches!(
            pin.as_slice(),
            [TokenTree::Ident(boxed), TokenTree::Punct(_), TokenTree::Punct(_), TokenTree::Ident(pin)]
                if boxed == "Box" && pin == "pin"
        );
        let mut head: Vec<TokenTree> = argument.stream().into_iter().collect();
        let Some(TokenTree::Group(block)) = head.pop() else {
            return None;
        };
        let is_async = matches!(
            head.as_slice(),
            [TokenTree::Ident(first), TokenTree::Ident(second)] if first == "async" && second == "move"
        );
        (is_pin
            && is_async
            && argument.delimiter() == Delimiter::Parenthesis
            && block.delimiter() == Delimiter::Brace)
            .then(|| Self {
                before: trees.into_iter().collect(),
                pin: pin.into_iter().collect(),
                head: head.into_iter().collect(),
                block,
                output,
            })
    }

    /// Returns the first `return` before the async block. The guard is in that block, so a call
    /// that returns another future is not limited.
    pub(crate) fn early_return(&self) -> Option<Span> {
        let statements = |input: ParseStream<'_>| syn::Block::parse_within(input);
        let Self {
            before, pin, head, ..
        } = self;
        let mut found = FindReturn(None);
        for statement in &statements.parse2(quote!(#before #pin(#head {}))).ok()? {
            found.visit_stmt(statement);
        }
        found.0
    }

    /// Returns the parameters that the async block destructures first. `#[async_trait]` generates
    /// `let State(app) = { let __arg1 = __arg1; __arg1 };`. Other statements belong to the body:
    /// their patterns may be refutable, and their names do not exist before the body runs.
    pub(crate) fn destructured_params(&self) -> Vec<(Ident, Pat)> {
        let statements = |input: ParseStream<'_>| syn::Block::parse_within(input);
        let Ok(statements) = statements.parse2(self.block.stream()) else {
            return Vec::new();
        };
        let pair = |statement: &Stmt| {
            let Stmt::Local(local) = statement else {
                return None;
            };
            let mut value = &*local.init.as_ref()?.expr;
            if let Expr::Block(block) = value {
                if let Some(Stmt::Expr(last, None)) = block.block.stmts.last() {
                    value = last;
                }
            }
            let Expr::Path(path) = value else { return None };
            let param = path.path.get_ident()?;
            let pattern = Some(&local.pat).filter(|pattern| !matches!(pattern, Pat::Ident(_) | Pat::Type(_)));
            (param.to_string().starts_with("__arg")).then_some((param.clone(), pattern?.clone()))
        };
        statements.iter().filter_map(pair).collect()
    }
}

/// The first `return` of the function itself.
struct FindReturn(Option<Span>);

impl<'ast> Visit<'ast> for FindReturn {
    fn visit_expr_return(&mut self, found: &'ast syn::ExprReturn) {
        self.0.get_or_insert(found.return_token.span);
    }

    fn visit_expr_async(&mut self, _: &'ast syn::ExprAsync) {}

    fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}

    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

/// `T` of `Pin<Box<dyn Future<Output = T> + …>>`.
fn future_output(boxed: &Type) -> Option<&Type> {
    match boxed {
        Type::TraitObject(object) => object.bounds.iter().find_map(|bound| match bound {
            TypeParamBound::Trait(bound) => bound.path.segments.last(),
            _ => None,
        }),
        Type::Path(path) => {
            let Some(PathArguments::AngleBracketed(inner)) =
                path.path.segments.last().map(|last| &last.arguments)
            else {
                return None;
            };
            return inner.args.iter().find_map(|argument| match argument {
                GenericArgument::Type(inner) => future_output(inner),
                _ => None,
            });
        }
        _ => None,
    }
    .filter(|future| future.ident == "Future")
    .and_then(|future| match &future.arguments {
        PathArguments::AngleBracketed(inner) => inner.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(output) if output.ident == "Output" => Some(&output.ty),
            _ => None,
        }),
        _ => None,
    })
}
