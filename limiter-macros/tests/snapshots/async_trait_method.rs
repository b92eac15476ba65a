fn send<'life0, 'async_trait>(
    &'life0 self,
    __arg1: State<App>,
) -> ::core::pin::Pin<
    Box<
        dyn ::core::future::Future<
            Output = Result<(), Error>,
        > + ::core::marker::Send + 'async_trait,
    >,
>
where
    'life0: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        let __limiter_guard = {
            static __LIMITER_FUNCTION: ::limiter_core::__private::FunctionId = ::limiter_core::__private::FunctionId::new();
            static __LIMITER_POLICY_0: ::limiter_core::__private::LazyLock<
                ::limiter_core::__private::BuiltPolicy,
            > = ::limiter_core::__private::LazyLock::new(|| ::limiter_core::__private::funnel(
                "mail",
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
                ::limiter_core::__private::RegisteredAnnotation { name : "mail", function
                : ::core::concat!(::core::module_path!(), "::", "send"), file :
                ::core::file!(), line : ::core::line!(), id : & __LIMITER_FUNCTION,
                shared : false, limiter : false, held : false, key :
                ::limiter_core::__private::KeyTemplate::Template { text : "{app.id}",
                pieces : & [::limiter_core::__private::TemplatePiece::Part("app.id")] },
                group : ::core::option::Option::None, policy :
                ::limiter_core::__private::AnnotationPolicy::Fixed(||
                ::limiter_core::__private::BuiltPolicy::clone(& __LIMITER_POLICY_0)),
                need : ::core::option::Option::Some(||
                ::core::result::Result::Ok(::limiter_core::__private::Amount::from_thousandths(1000u64))),
                }
            }
            static __LIMITER_REPORTER: ::limiter_core::__private::Reporter = ::limiter_core::__private::Reporter::new(
                ::core::concat!(::core::module_path!(), "::", "send"),
            );
            let State(app) = &__arg1;
            let _ = &app;
            let mut __limiter_key_0_buffer = ::limiter_core::__private::KeyBuffer::new();
            let __limiter_key_0 = __limiter_key_0_buffer.part(&app.id).key();
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
                    (),
                    Error,
                > as ::limiter_core::__private::FromRejection>::from_rejection(
                    __limiter_refused.rejection,
                );
            }
        }
        {
            let __self = self;
            let State(app) = {
                let __arg1 = __arg1;
                __arg1
            };
            let __ret: Result<(), Error> = { Ok(()) };
            __ret
        }
    })
}
