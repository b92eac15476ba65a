//! Parses an `impl` block; the bodies of its methods stay raw tokens.
//!
//! `syn` rejects a block with one unfinished body, and an editor then completes nothing in the
//! block. The head is therefore parsed with an empty body, methods are parsed as `Func`, and any
//! other item is the tokens up to its semicolon, or to the braces of a macro or function.
//!
//! Invariant: tokens of items that are not methods are unchanged. Tests: below.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::discouraged::Speculative;
use syn::parse::{Parse, ParseStream, Parser};
use syn::{Attribute, Ident, ItemImpl, Token, Type};

use super::{Block, Item};
use crate::func::Func;

/// Returns whether an item is an `impl` block.
pub(crate) fn is_block(item: &TokenStream) -> bool {
    let looks = |input: ParseStream<'_>| {
        let _: Vec<Attribute> = input.call(Attribute::parse_outer)?;
        let mut words = Vec::new();
        while words.len() < 3 && input.peek(Ident::peek_any) {
            words.push(Ident::parse_any(input)?.to_string());
        }
        let _: TokenStream = input.parse()?;
        let mut words = words
            .iter()
            .skip_while(|word| ["default", "unsafe"].contains(&word.as_str()));
        Ok(words.next().is_some_and(|word| word == "impl"))
    };
    looks.parse2(item.clone()).unwrap_or(false)
}

impl Parse for Block {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let mut trees: Vec<TokenTree> = input.parse::<TokenStream>()?.into_iter().collect();
        let Some(TokenTree::Group(braces)) = trees.pop().filter(is_braces) else {
            return Err(input.error("expected an `impl` block"));
        };
        let head: TokenStream = trees.into_iter().collect();
        let owner = owner(&syn::parse2::<ItemImpl>(quote!(#head {}))?.self_ty);
        let items = |input: ParseStream<'_>| {
            let mut items = Vec::new();
            while !input.is_empty() {
                items.push(Item::parse(input)?);
            }
            Ok(items)
        };
        Ok(Self {
            attrs,
            head,
            owner,
            items: items.parse2(braces.stream())?,
            braces,
        })
    }
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let ahead = input.fork();
        if let Ok(func) = ahead.parse::<Func>() {
            input.advance_to(&ahead);
            return Ok(Self::Method(Box::new(func)));
        }
        let mut item: Vec<TokenTree> = Vec::new();
        while !input.is_empty() {
            // A macro ends with its braces; the value of a constant does not.
            let of_macro = matches!(item.last(), Some(TokenTree::Punct(punct)) if punct.as_char() == '!');
            let of_function = item
                .iter()
                .any(|tree| matches!(tree, TokenTree::Ident(ident) if ident == "fn"));
            let tree: TokenTree = input.parse()?;
            let ends = match &tree {
                TokenTree::Punct(punct) => punct.as_char() == ';',
                braces => is_braces(braces) && (of_macro || of_function),
            };
            item.push(tree);
            if ends && !input.peek(Token![;]) {
                break;
            }
        }
        Ok(Self::Other(item.into_iter().collect()))
    }
}

fn is_braces(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group) if Group::delimiter(group) == Delimiter::Brace)
}

/// Returns the last segment of the type's path.
fn owner(of: &Type) -> String {
    match of {
        Type::Path(path) => path
            .path
            .segments
            .last()
            .map(|last| last.ident.unraw().to_string()),
        Type::Reference(reference) => Some(owner(&reference.elem)),
        Type::Group(group) => Some(owner(&group.elem)),
        Type::Paren(paren) => Some(owner(&paren.elem)),
        _ => None,
    }
    .unwrap_or_else(|| of.to_token_stream().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_distinguished_from_functions() {
        for block in [
            quote!(impl Outbox {}),
            quote!(
                #[a]
                unsafe impl<T> Mail for Outbox<T> {}
            ),
            quote!(impl Outbox<{ 1 + 1 }> {}),
        ] {
            assert!(is_block(&block), "{block}");
        }
        for other in [
            quote!(
                async fn send() {}
            ),
            quote!(
                unsafe fn send() -> impl Fn() {}
            ),
            quote!(
                trait Mail {}
            ),
        ] {
            assert!(!is_block(&other), "{other}");
        }
    }

    #[test]
    fn other_items_are_unchanged() {
        let block: Block = syn::parse_quote! {
            impl<const N: usize> crate::Outbox<{ N + 1 }> {
                const SIZES: [usize; 2] = { [1, 2] };
                type Of = fn(u8) -> u8;
                local! { a; b }
                local!(c; d);
                pub(crate) fn plain(&self) {}
                /// Half typed.
                async fn send(&self) { self. }
            }
        };
        assert_eq!(block.owner, "Outbox");
        let items: Vec<String> = block
            .items
            .iter()
            .map(|item| item.name().unwrap_or_else(|| item.to_token_stream().to_string()))
            .collect();
        assert_eq!(
            items,
            [
                "const SIZES : [usize ; 2] = { [1 , 2] } ;",
                "type Of = fn (u8) -> u8 ;",
                "local ! { a ; b }",
                "local ! (c ; d) ;",
                "plain",
                "send"
            ]
        );
    }
}
