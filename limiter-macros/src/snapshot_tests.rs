//! Compares expansions with files. `UPDATE_SNAPSHOTS=1 cargo test -p limiter-macros` updates them.

use std::path::Path;

use proc_macro2::TokenStream;
use quote::quote;

use crate::argument_table::AttributeKind;
use crate::limit;

fn compare(name: &str, kind: AttributeKind, args: TokenStream, item: TokenStream) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(name)
        .with_extension("rs");
    let expansion = limit(kind, args, item).to_string();
    let file = syn::parse_file(&expansion).unwrap_or_else(|error| panic!("{error}: {expansion}"));
    let expansion = prettyplease::unparse(&file);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &expansion).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(expansion, expected, "{}", path.display());
}

#[test]
fn plain_function_is_limited() {
    compare(
        "plain_function",
        AttributeKind::Token,
        quote!(capacity = 20, rate = 10, key = "user:{user}"),
        quote! {
            /// Finds things.
            pub async fn search(user: &str) -> Result<u32, Error> {
                find(user).await
            }
        },
    );
}

#[test]
fn fallback_receives_arguments() {
    compare(
        "fallback_with_arguments",
        AttributeKind::Window,
        quote!(
            name = "send",
            limit = limit,
            window = "1m",
            key = "{to.0}",
            group = tenant,
            need = *count,
            wait = "1s",
            when = *count > 0,
            limiter = self.limits,
            fallback = self.queue,
            pass_args,
            pass_rejection,
            deadline = "20ms",
            on_store_failure = fail_open
        ),
        quote! {
            async fn send(&self, mut to: Phone, Batch { count, mut items }: Batch, _: Token, limit: u32) -> Receipt {
                #![allow(unused)]
                deliver(to, items).await
            }
        },
    );
}

#[test]
fn several_limits_are_decided_together() {
    compare(
        "several_limits",
        AttributeKind::Token,
        quote!(capacity = 5, rate = "7/3s", fallback = slow_down),
        quote! {
            #[limiter_core::window_limiter(name = "daily", limit = 1000, window = "1d")]
            #[must_use]
            async fn search() -> Result<(), Rejection> {
                Ok(())
            }
        },
    );
}

#[test]
fn async_trait_method_is_limited() {
    compare(
        "async_trait_method",
        AttributeKind::Funnel,
        quote!(name = "mail", capacity = 5, rate = 1, key = "{app.id}"),
        quote! {
            fn send<'life0, 'async_trait>(
                &'life0 self,
                __arg1: State<App>,
            ) -> ::core::pin::Pin<Box<dyn ::core::future::Future<Output = Result<(), Error>> + ::core::marker::Send + 'async_trait>>
            where
                'life0: 'async_trait,
                Self: 'async_trait,
            {
                Box::pin(async move {
                    let __self = self;
                    let State(app) = {
                        let __arg1 = __arg1;
                        __arg1
                    };
                    let __ret: Result<(), Error> = { Ok(()) };
                    __ret
                })
            }
        },
    );
}

#[test]
fn methods_of_block_are_limited() {
    compare(
        "impl_block",
        AttributeKind::Window,
        quote!(
            name = "mail",
            limit = 5,
            window = "1m",
            key = "{to}",
            except(queue)
        ),
        quote! {
            impl<T> Mail for Outbox<T> {
                const SIZE: usize = 3;

                /// Sends.
                #[limiter_core::token_limiter(policy = "burst", key = "{to}")]
                async fn send(&self, to: &str) -> Result<(), Rejection> {
                    Ok(())
                }

                async fn queue(&self) {}

                fn size(&self) -> usize {
                    Self::SIZE
                }
            }
        },
    );
}

#[test]
fn count_if_checks_result() {
    compare(
        "count_if_checks_result",
        AttributeKind::Token,
        quote!(capacity = 5, rate = 1, count_if = Result::is_err),
        quote! {
            #[window_limiter(policy = "daily")]
            async fn login(user: &str) -> Result<impl Iterator<Item = u32>, Error> {
                find(user).await
            }
        },
    );
}

/// An unfinished body is emitted completely, and its errors are not reported twice.
#[test]
fn unfinished_body_is_emitted() {
    let expansion = |args| {
        let item = quote! {
            async fn search() -> Result<(), Error> {
                let found = index. ;
            }
        };
        limit(AttributeKind::Token, args, item).to_string()
    };
    let limited = expansion(quote!(capacity = 20, rate = 10));
    assert!(limited.contains("let found = index . ;"), "{limited}");
    assert!(!limited.contains("compile_error"), "{limited}");
    let mistaken = expansion(quote!(capacity = 20));
    assert!(mistaken.contains("let found = index . ;"), "{mistaken}");
    assert_eq!(mistaken.matches("compile_error").count(), 1, "{mistaken}");
}
