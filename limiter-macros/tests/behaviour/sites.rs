//! The list of annotated functions.

use limiter_core::{ConfigError, Limiter, sites, verify_sites, with_limiter};

#[test]
fn every_annotation_of_this_program_can_be_used_but_one() {
    let Err(ConfigError::Sites { mistakes }) = verify_sites() else {
        panic!("limits of different groups are a mistake")
    };
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    assert!(
        mistakes[0].starts_with("behaviour::several::other_groups (")
            && mistakes[0].contains(r#"have the keys "{a}" and "{b}""#),
        "{mistakes:?}"
    );
}

#[tokio::test]
async fn different_groups_are_no_mistake_where_no_cluster_will_be() {
    let standalone = Limiter::in_process().standalone_only().build();
    assert_eq!(with_limiter(standalone, async { verify_sites() }).await, Ok(()));
}

#[test]
fn every_annotation_is_listed() {
    let all = sites();
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
