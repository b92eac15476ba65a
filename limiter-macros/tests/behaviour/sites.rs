//! The list of annotated functions.

use limiter_core::annotations::{annotations, verify_annotations, with_limiter};
use limiter_core::registry::PolicyRegistry;
use limiter_core::{ConfigError, Limiter, Policy, Rejection, token_limiter};

#[test]
fn verification_reports_unusable_annotations() {
    let Err(ConfigError::Annotations { errors }) = verify_annotations() else {
        panic!("limits of different groups are an error")
    };
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors[0].starts_with("behaviour::windows::large (")
            && errors[0]
                .contains("limit is `10001`, expected at most 10000, since an exact window takes 8 bytes"),
        "{errors:?}"
    );
    assert!(
        errors[1].starts_with("behaviour::several::other_groups (")
            && errors[1].contains(r#"have the keys "{a}" and "{b}""#),
        "{errors:?}"
    );
}

#[tokio::test]
async fn named_policy_must_exist_and_match_its_attribute() {
    let bucket = |name: &str| Policy::token_bucket(name).capacity(5).rate(1).build().unwrap();
    let held = |name: &str| Policy::concurrency(name).max(5).build().unwrap();
    let errors_with = async |registry: PolicyRegistry| {
        let limits = Limiter::in_process()
            .registry(&registry)
            .standalone_only()
            .build();
        let Err(ConfigError::Annotations { errors }) =
            with_limiter(limits, async { verify_annotations() }).await
        else {
            panic!("a limit that is too large is an error")
        };
        assert!(errors[0].starts_with("behaviour::windows::large ("), "{errors:?}");
        errors[1..].to_vec()
    };
    let registry = PolicyRegistry::new()
        .with(bucket("search"))
        .with(bucket("sms"))
        .with(bucket("queue"))
        .with(held("counter"))
        .with(held("export"));
    assert_eq!(errors_with(registry.clone()).await, Vec::<String>::new());
    registry.remove("sms");
    registry.remove("export");
    registry.set(bucket("export"));
    let mut errors = errors_with(registry).await;
    errors.sort();
    let [export, send] = &errors[..] else {
        panic!("{errors:?}")
    };
    assert!(
        export.starts_with("behaviour::named::export (")
            && export.ends_with("expected a concurrency policy, or a rate limiter attribute"),
        "{export}"
    );
    assert!(
        send.starts_with("behaviour::named::send (")
            && send.ends_with(
                "no policy is called `sms` in the limiter's registry, expected one of `counter`, `export`, `queue`, `search`"
            ),
        "{send}"
    );
}

#[test]
fn all_annotations_are_listed() {
    let all = annotations();
    let find = |name: &str| all.iter().filter(|site| site.name() == name).collect::<Vec<_>>();

    let bucket = concat!("behaviour::plain", "::bucket");
    let [site] = find(bucket)[..] else {
        panic!("{bucket} is listed once")
    };
    assert_eq!(site.function(), bucket);
    assert!(site.file().ends_with("plain.rs"), "{}", site.file());
    assert!(site.line() > 1);
    assert!(site.policy().is_ok());

    assert_eq!(find("mail").len(), 2);
    assert!(find("tiers")[0].policy().is_err(), "its parameters are arguments");
    assert!(find("sized.size")[0].policy().is_err() && find("sized.module")[0].policy().is_ok());
    assert_eq!(find("mail.provided").len(), 1, "inside async_trait");
    assert_eq!(
        find("behaviour::shapes::generic").len(),
        1,
        "inside a generic function"
    );
    let places: Vec<_> = all
        .iter()
        .map(|site| (site.file(), site.line(), site.name()))
        .collect();
    assert!(places.is_sorted(), "{places:?}");
}

macro_rules! senders {
    ($($of:ident $name:literal $key:literal),*) => {$(
        struct $of;

        impl $of {
            #[token_limiter(name = $name, capacity = 5, rate = 1, key = $key)]
            async fn send(&self, user: u32, tenant: u32) -> Result<(), Rejection> {
                let _ = (self, user, tenant);
                Ok(())
            }
        }
    )*};
}
senders!(ToUsers "sites.users" "{user}", ToTenants "sites.tenants" "{tenant}");

/// The methods of one macro have one path and one line. They are separate decisions, so their keys
/// may have different groups; `verification_reports_unusable_annotations` expects no error.
#[tokio::test]
async fn methods_of_one_macro_are_separate() {
    with_limiter(Limiter::in_process().build(), async {
        assert!(ToUsers.send(1, 2).await.is_ok() && ToTenants.send(1, 2).await.is_ok());
    })
    .await;
    let all = annotations();
    let find = |name: &str| *all.iter().find(|site| site.name() == name).unwrap();
    let [users, tenants] = ["sites.users", "sites.tenants"].map(find);
    assert_eq!(
        (users.function(), users.line()),
        (tenants.function(), tenants.line())
    );
}
