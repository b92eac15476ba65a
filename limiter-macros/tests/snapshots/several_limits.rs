#[must_use]
async fn search() -> Result<(), Rejection> {
    let __limiter_guard = {
        #[allow(unused_imports)]
        use limiter_core::window_limiter as _;
        static __LIMITER_FUNCTION: ::limiter_core::__private::FunctionId = ::limiter_core::__private::FunctionId::new();
        static __LIMITER_POLICY_0: ::limiter_core::__private::LazyLock<
            ::limiter_core::__private::BuiltPolicy,
        > = ::limiter_core::__private::LazyLock::new(|| ::limiter_core::__private::token_bucket(
            ::core::concat!(::core::module_path!(), "::", "search"),
            ::core::result::Result::Ok(
                ::limiter_core::__private::Amount::from_thousandths(5000u64),
            ),
            ::limiter_core::__private::rate_per(
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Amount::from_thousandths(7u64),
                ),
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Duration::from_micros(3000u64),
                ),
            ),
            &::limiter_core::__private::PolicyOptions {
                deadline: ::core::option::Option::None,
                on_store_failure: ::core::option::Option::None,
                lease: ::core::option::Option::None,
            },
        ));
        ::limiter_core::__private::inventory::submit! {
            ::limiter_core::__private::RegisteredAnnotation { name :
            ::core::concat!(::core::module_path!(), "::", "search"), function :
            ::core::concat!(::core::module_path!(), "::", "search"), file :
            ::core::file!(), line : ::core::line!(), id : & __LIMITER_FUNCTION, shared :
            false, limiter : false, held : false, key :
            ::limiter_core::__private::KeyTemplate::Template { text : "", pieces : & []
            }, group : ::core::option::Option::None, policy :
            ::limiter_core::__private::AnnotationPolicy::Fixed(||
            ::limiter_core::__private::BuiltPolicy::clone(& __LIMITER_POLICY_0)), need :
            ::core::option::Option::Some(||
            ::core::result::Result::Ok(::limiter_core::__private::Amount::from_thousandths(1000u64))),
            }
        }
        static __LIMITER_POLICY_1: ::limiter_core::__private::LazyLock<
            ::limiter_core::__private::BuiltPolicy,
        > = ::limiter_core::__private::LazyLock::new(|| ::limiter_core::__private::sliding_window(
            "daily",
            ::core::result::Result::Ok(
                ::limiter_core::__private::Amount::from_thousandths(1000000u64),
            ),
            ::core::result::Result::Ok(
                ::limiter_core::__private::Duration::from_micros(86400000000u64),
            ),
            &::limiter_core::__private::PolicyOptions {
                deadline: ::core::option::Option::None,
                on_store_failure: ::core::option::Option::None,
                lease: ::core::option::Option::None,
            },
        ));
        ::limiter_core::__private::inventory::submit! {
            ::limiter_core::__private::RegisteredAnnotation { name : "daily", function :
            ::core::concat!(::core::module_path!(), "::", "search"), file :
            ::core::file!(), line : ::core::line!(), id : & __LIMITER_FUNCTION, shared :
            false, limiter : false, held : false, key :
            ::limiter_core::__private::KeyTemplate::Template { text : "", pieces : & []
            }, group : ::core::option::Option::None, policy :
            ::limiter_core::__private::AnnotationPolicy::Fixed(||
            ::limiter_core::__private::BuiltPolicy::clone(& __LIMITER_POLICY_1)), need :
            ::core::option::Option::Some(||
            ::core::result::Result::Ok(::limiter_core::__private::Amount::from_thousandths(1000u64))),
            }
        }
        static __LIMITER_REPORTER: ::limiter_core::__private::Reporter = ::limiter_core::__private::Reporter::new(
            ::core::concat!(::core::module_path!(), "::", "search"),
        );
        let __limiter_made = ::limiter_core::__private::AnnotationGuard::new(
                &__LIMITER_REPORTER,
                ::core::option::Option::None,
                [
                    ::limiter_core::__private::AnnotationEntry::fixed(
                        &__LIMITER_POLICY_0,
                        ::limiter_core::__private::Key::global(),
                    ),
                    ::limiter_core::__private::AnnotationEntry::fixed(
                        &__LIMITER_POLICY_1,
                        ::limiter_core::__private::Key::global(),
                    ),
                ],
                ::core::option::Option::None,
            )
            .try_enter();
        __limiter_made
    };
    if let ::core::option::Option::Some(__limiter_undecided) = __limiter_guard {
        if let ::core::result::Result::Err(__limiter_refused) = ::limiter_core::__private::enter(
                __limiter_undecided,
            )
            .await
        {
            match __limiter_refused.index {
                0usize => {
                    use ::limiter_core::__private::ResolveValue as _;
                    let __limiter_fallback = slow_down;
                    let __limiter_value: Result<(), Rejection> = ::limiter_core::__private::Fallback(
                            __limiter_fallback(),
                        )
                        .resolve()
                        .await;
                    return __limiter_value;
                }
                _ => {
                    return <Result<
                        (),
                        Rejection,
                    > as ::limiter_core::__private::FromRejection>::from_rejection(
                        __limiter_refused.rejection,
                    );
                }
            }
        }
    }
    { Ok(()) }
}
