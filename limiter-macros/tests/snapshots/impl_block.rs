impl<T> Mail for Outbox<T> {
    const SIZE: usize = 3;
    /// Sends.
    async fn send(&self, to: &str) -> Result<(), Rejection> {
        let __limiter_guard = {
            #[allow(unused_imports)]
            use limiter_core::token_limiter as _;
            static __LIMITER_FUNCTION: ::limiter_core::__private::FunctionId = ::limiter_core::__private::FunctionId::new();
            static __LIMITER_POLICY_0: ::limiter_core::__private::LazyLock<
                ::limiter_core::__private::BuiltPolicy,
            > = ::limiter_core::__private::LazyLock::new(|| ::limiter_core::__private::sliding_window(
                "mail::send",
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Amount::from_thousandths(5000u64),
                ),
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Duration::from_micros(60000000u64),
                ),
                &::limiter_core::__private::PolicyOptions {
                    deadline: ::core::option::Option::None,
                    on_store_failure: ::core::option::Option::None,
                    lease: ::core::option::Option::None,
                },
            ));
            ::limiter_core::__private::inventory::submit! {
                ::limiter_core::__private::RegisteredAnnotation { name : "mail::send",
                function : ::core::concat!(::core::module_path!(), "::", "Outbox::send"),
                file : ::core::file!(), line : ::core::line!(), id : &
                __LIMITER_FUNCTION, shared : false, limiter : false, held : false, key :
                ::limiter_core::__private::KeyTemplate::Template { text : "{to}", pieces
                : & [::limiter_core::__private::TemplatePiece::Part("to")] }, group :
                ::core::option::Option::None, policy :
                ::limiter_core::__private::AnnotationPolicy::Fixed(||
                ::limiter_core::__private::BuiltPolicy::clone(& __LIMITER_POLICY_0)),
                need : ::core::option::Option::Some(||
                ::core::result::Result::Ok(::limiter_core::__private::Amount::from_thousandths(1000u64))),
                }
            }
            ::limiter_core::__private::inventory::submit! {
                ::limiter_core::__private::RegisteredAnnotation { name : "burst",
                function : ::core::concat!(::core::module_path!(), "::", "Outbox::send"),
                file : ::core::file!(), line : ::core::line!(), id : &
                __LIMITER_FUNCTION, shared : true, limiter : false, held : false, key :
                ::limiter_core::__private::KeyTemplate::Template { text : "{to}", pieces
                : & [::limiter_core::__private::TemplatePiece::Part("to")] }, group :
                ::core::option::Option::None, policy :
                ::limiter_core::__private::AnnotationPolicy::Named, need :
                ::core::option::Option::Some(||
                ::core::result::Result::Ok(::limiter_core::__private::Amount::from_thousandths(1000u64))),
                }
            }
            static __LIMITER_REPORTER: ::limiter_core::__private::Reporter = ::limiter_core::__private::Reporter::new(
                ::core::concat!(::core::module_path!(), "::", "Outbox::send"),
            );
            let mut __limiter_key_0_buffer = ::limiter_core::__private::KeyBuffer::new();
            let __limiter_key_0 = __limiter_key_0_buffer.part(&to).key();
            let mut __limiter_key_1_buffer = ::limiter_core::__private::KeyBuffer::new();
            let __limiter_key_1 = __limiter_key_1_buffer.part(&to).key();
            let __limiter_made = ::limiter_core::__private::AnnotationGuard::new(
                    &__LIMITER_REPORTER,
                    ::core::option::Option::None,
                    [
                        ::limiter_core::__private::AnnotationEntry::fixed(
                            &__LIMITER_POLICY_0,
                            __limiter_key_0,
                        ),
                        ::limiter_core::__private::AnnotationEntry::named(
                            "burst",
                            __limiter_key_1,
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
                        return <Result<
                            (),
                            Rejection,
                        > as ::limiter_core::__private::FromRejection>::from_rejection(
                            __limiter_refused.rejection,
                        );
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
    async fn queue(&self) {}
    fn size(&self) -> usize {
        Self::SIZE
    }
}
