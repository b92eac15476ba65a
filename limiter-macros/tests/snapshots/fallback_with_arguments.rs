async fn send(
    &self,
    mut to: Phone,
    __limiter_arg2: Batch,
    __limiter_arg3: Token,
    limit: u32,
) -> Receipt {
    #![allow(unused)]
    let __limiter_guard = {
        static __LIMITER_FUNCTION: ::limiter_core::__private::FunctionId = ::limiter_core::__private::FunctionId::new();
        ::limiter_core::__private::inventory::submit! {
            ::limiter_core::__private::RegisteredAnnotation { name : "send", function :
            ::core::concat!(::core::module_path!(), "::", "send"), file :
            ::core::file!(), line : ::core::line!(), id : & __LIMITER_FUNCTION, shared :
            false, limiter : true, held : false, key :
            ::limiter_core::__private::KeyTemplate::Template { text : "{to.0}", pieces :
            & [::limiter_core::__private::TemplatePiece::Part("to.0")] }, group :
            ::core::option::Option::Some(::limiter_core::__private::KeyTemplate::Computed),
            policy : ::limiter_core::__private::AnnotationPolicy::Computed, need :
            ::core::option::Option::None, }
        }
        static __LIMITER_REPORTER: ::limiter_core::__private::Reporter = ::limiter_core::__private::Reporter::new(
            ::core::concat!(::core::module_path!(), "::", "send"),
        );
        let Batch { count, items } = &__limiter_arg2;
        let _ = &count;
        let _ = &items;
        let __limiter_applies: bool = *count > 0;
        if __limiter_applies {
            let __limiter_policy_0 = ::limiter_core::__private::sliding_window(
                "send",
                {
                    let __limiter_converted = ::limiter_core::__private::ToAmount::to_amount(
                        &(limit),
                    );
                    __limiter_converted
                },
                ::core::result::Result::Ok(
                    ::limiter_core::__private::Duration::from_micros(60000000u64),
                ),
                &::limiter_core::__private::PolicyOptions {
                    deadline: ::core::option::Option::Some(
                        ::core::result::Result::Ok(
                            ::limiter_core::__private::Duration::from_micros(20000u64),
                        ),
                    ),
                    on_store_failure: ::core::option::Option::Some(
                        ::limiter_core::__private::OnStoreFailure::FailOpen,
                    ),
                    lease: ::core::option::Option::None,
                },
            );
            let __limiter_need_0 = {
                let __limiter_converted = ::limiter_core::__private::ToAmount::to_amount(
                    &(*count),
                );
                __limiter_converted
            };
            let mut __limiter_key_0_buffer = ::limiter_core::__private::KeyBuffer::new();
            let __limiter_key_0 = __limiter_key_0_buffer.part(&to.0).key();
            let mut __limiter_group_0_buffer = ::limiter_core::__private::KeyBuffer::new();
            let __limiter_group_0 = ::limiter_core::__private::ToKey::to_key(
                &(tenant),
                &mut __limiter_group_0_buffer,
            );
            let __limiter_made = ::limiter_core::__private::AnnotationGuard::new(
                    &__LIMITER_REPORTER,
                    ::core::option::Option::Some(
                        ::limiter_core::__private::ToLimiter::to_limiter(&(self.limits)),
                    ),
                    [
                        ::limiter_core::__private::AnnotationEntry::built(
                                __limiter_policy_0,
                                __limiter_key_0.in_group(__limiter_group_0),
                            )
                            .need(__limiter_need_0),
                    ],
                    ::core::option::Option::Some(
                        ::core::result::Result::Ok(
                            ::limiter_core::__private::Duration::from_micros(1000000u64),
                        ),
                    ),
                )
                .try_enter();
            __limiter_made
        } else {
            ::core::option::Option::None
        }
    };
    if let ::core::option::Option::Some(__limiter_undecided) = __limiter_guard {
        if let ::core::result::Result::Err(__limiter_refused) = ::limiter_core::__private::enter(
                __limiter_undecided,
            )
            .await
        {
            use ::limiter_core::__private::ResolveValue as _;
            let __limiter_value0 = to;
            let __limiter_value1 = __limiter_arg2;
            let __limiter_value2 = __limiter_arg3;
            let __limiter_value3 = limit;
            let __limiter_rejection = __limiter_refused.rejection;
            let __limiter_value: Receipt = ::limiter_core::__private::Fallback(
                    self
                        .queue(
                            __limiter_value0,
                            __limiter_value1,
                            __limiter_value2,
                            __limiter_value3,
                            __limiter_rejection,
                        ),
                )
                .resolve()
                .await;
            return __limiter_value;
        }
    }
    let Batch { count, mut items } = __limiter_arg2;
    { deliver(to, items).await }
}
