/// Finds things.
pub async fn search(user: &str) -> Result<u32, Error> {
    let __limiter_guard = {
        static __LIMITER_FUNCTION: ::limiter_core::__private::FunctionId = ::limiter_core::__private::FunctionId::new();
        static __LIMITER_POLICY_0: ::limiter_core::__private::LazyLock<
            ::limiter_core::__private::BuiltPolicy,
        > = ::limiter_core::__private::LazyLock::new(|| ::limiter_core::__private::token_bucket(
            ::core::concat!(::core::module_path!(), "::", "search"),
            ::core::result::Result::Ok(
                ::limiter_core::__private::Amount::from_thousandths(20000u64),
            ),
            ::limiter_core::__private::rate_per(
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Amount::from_thousandths(1u64),
                ),
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Duration::from_micros(100u64),
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
            ::limiter_core::__private::KeyTemplate::Template { text : "user:{user}",
            pieces : & [::limiter_core::__private::TemplatePiece::Text("user:"),
            ::limiter_core::__private::TemplatePiece::Part("user")] }, group :
            ::core::option::Option::None, policy :
            ::limiter_core::__private::AnnotationPolicy::Fixed(||
            ::limiter_core::__private::BuiltPolicy::clone(& __LIMITER_POLICY_0)), need :
            ::core::option::Option::Some(||
            ::core::result::Result::Ok(::limiter_core::__private::Amount::from_thousandths(1000u64))),
            }
        }
        static __LIMITER_REPORTER: ::limiter_core::__private::Reporter = ::limiter_core::__private::Reporter::new(
            ::core::concat!(::core::module_path!(), "::", "search"),
        );
        let mut __limiter_key_0_buffer = ::limiter_core::__private::KeyBuffer::new();
        let __limiter_key_0 = __limiter_key_0_buffer.text("user:").part(&user).key();
        let __limiter_made = ::limiter_core::__private::AnnotationGuard::new(
                &__LIMITER_REPORTER,
                ::core::option::Option::None,
                [
                    ::limiter_core::__private::AnnotationEntry::fixed(
                        &__LIMITER_POLICY_0,
                        __limiter_key_0,
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
            return <Result<
                u32,
                Error,
            > as ::limiter_core::__private::FromRejection>::from_rejection(
                __limiter_refused.rejection,
            );
        }
    }
    { find(user).await }
}
