async fn login(user: &str) -> Result<impl Iterator<Item = u32>, Error> {
    let __limiter_guard = {
        #[allow(unused_imports)]
        use window_limiter as _;
        static __LIMITER_FUNCTION: ::limiter_core::__private::FunctionId = ::limiter_core::__private::FunctionId::new();
        static __LIMITER_POLICY_0: ::limiter_core::__private::LazyLock<
            ::limiter_core::__private::BuiltPolicy,
        > = ::limiter_core::__private::LazyLock::new(|| ::limiter_core::__private::token_bucket(
            ::core::concat!(::core::module_path!(), "::", "login"),
            ::core::result::Result::Ok(
                ::limiter_core::__private::Amount::from_thousandths(5000u64),
            ),
            ::limiter_core::__private::rate_per(
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Amount::from_thousandths(1u64),
                ),
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Duration::from_micros(1000u64),
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
            ::core::concat!(::core::module_path!(), "::", "login"), function :
            ::core::concat!(::core::module_path!(), "::", "login"), file :
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
        ::limiter_core::__private::inventory::submit! {
            ::limiter_core::__private::RegisteredAnnotation { name : "daily", function :
            ::core::concat!(::core::module_path!(), "::", "login"), file :
            ::core::file!(), line : ::core::line!(), id : & __LIMITER_FUNCTION, shared :
            true, limiter : false, held : false, key :
            ::limiter_core::__private::KeyTemplate::Template { text : "", pieces : & []
            }, group : ::core::option::Option::None, policy :
            ::limiter_core::__private::AnnotationPolicy::Named, need :
            ::core::option::Option::Some(||
            ::core::result::Result::Ok(::limiter_core::__private::Amount::from_thousandths(1000u64))),
            }
        }
        static __LIMITER_REPORTER: ::limiter_core::__private::Reporter = ::limiter_core::__private::Reporter::new(
            ::core::concat!(::core::module_path!(), "::", "login"),
        );
        let __limiter_made = ::limiter_core::__private::AnnotationGuard::new(
                &__LIMITER_REPORTER,
                ::core::option::Option::None,
                [
                    ::limiter_core::__private::AnnotationEntry::fixed(
                        &__LIMITER_POLICY_0,
                        ::limiter_core::__private::Key::global(),
                    ),
                    ::limiter_core::__private::AnnotationEntry::named(
                        "daily",
                        ::limiter_core::__private::Key::global(),
                    ),
                ],
                ::core::option::Option::None,
            )
            .into_pending();
        __limiter_made
    };
    let __limiter_charged = match ::limiter_core::__private::enter_counted(
            __limiter_guard,
        )
        .await
    {
        ::core::result::Result::Ok(__limiter_charged) => __limiter_charged,
        ::core::result::Result::Err(__limiter_refused) => {
            match __limiter_refused.index {
                0usize => {
                    return ::limiter_core::__private::FromRejection::from_rejection(
                        __limiter_refused.rejection,
                    );
                }
                _ => {
                    return ::limiter_core::__private::FromRejection::from_rejection(
                        __limiter_refused.rejection,
                    );
                }
            }
        }
    };
    let __limiter_output: Result<_, Error> = async move {
        if let ::core::option::Option::Some(__limiter_returned) = ::core::option::Option::None::<
            Result<_, Error>,
        > {
            return __limiter_returned;
        }
        let __limiter_returned: Result<_, Error> = { find(user).await };
        #[allow(unreachable_code)] __limiter_returned
    }
        .await;
    __limiter_charged
        .settle([
            ::limiter_core::__private::counts(&__limiter_output, Result::is_err),
            true,
        ])
        .await;
    __limiter_output
}
