use super::*;
use crate::store::DocumentState;

fn id(name: &str) -> DocumentId {
    (DocumentKind::Policy, name.to_owned())
}

/// Returns a document with the contents of its revisions from the published one on.
fn document(name: &str, published: i64, contents: &[Option<&str>]) -> (DocumentId, KnownDocument) {
    let first = published.max(1);
    let contents: BTreeMap<i64, Option<String>> = (first..)
        .zip(contents.iter().map(|of| of.map(str::to_owned)))
        .collect();
    let revision = contents.keys().next_back().copied().unwrap_or(0);
    let document = StoredDocument {
        namespace: "prod".to_owned(),
        kind: DocumentKind::Policy,
        name: name.to_owned(),
        revision,
        published,
        state: DocumentState::Pending,
        is_deleted: false,
        managed_by: "ui".to_owned(),
        apps: None,
        body: String::new(),
        note: None,
        created_by: String::new(),
        created_at: 0,
        updated_by: String::new(),
        updated_at: 0,
    };
    (id(name), KnownDocument { document, contents })
}

fn known<const N: usize>(confirmed: i64, documents: [(DocumentId, KnownDocument); N]) -> KnownState {
    KnownState {
        newest: ChangeMark::default(),
        confirmed,
        documents: documents.into(),
    }
}

fn observed<const N: usize>(revision: i64, contents: [(&str, &str); N]) -> ObservedRegistry {
    ObservedRegistry {
        revision,
        contents: contents.map(|(name, text)| (id(name), text.to_owned())).into(),
        follows_lost_change: false,
    }
}

fn import<const N: usize>(names: [&str; N]) -> Step {
    Step::Import {
        documents: names.map(id).into(),
        restored: false,
    }
}

#[test]
fn empty_registry_receives_all_documents() {
    let first = known(0, [document("a", 0, &[Some("1")])]);
    assert_eq!(next_step(&first, None), Step::PublishAll { went_back: false });
    let later = known(7, [document("a", 1, &[Some("1")])]);
    assert_eq!(next_step(&later, None), Step::PublishAll { went_back: true });
    assert_eq!(next_step(&known(0, []), None), Step::Nothing);
}

#[test]
fn registry_that_went_back_receives_all_documents() {
    let state = known(7, [document("a", 1, &[Some("1")])]);
    let step = next_step(&state, Some(&observed(6, [("a", "0")])));
    assert_eq!(step, Step::PublishAll { went_back: true });
}

#[test]
fn confirmed_registry_receives_pending_documents() {
    let pending = known(7, [document("a", 1, &[Some("1"), Some("2")])]);
    assert_eq!(
        next_step(&pending, Some(&observed(7, [("a", "1")]))),
        Step::PublishPending
    );
    let published = known(7, [document("a", 1, &[Some("1")])]);
    assert_eq!(
        next_step(&published, Some(&observed(7, [("a", "1")]))),
        Step::Nothing
    );
}

#[test]
fn unknown_text_is_imported() {
    let state = known(
        7,
        [
            document("a", 1, &[Some("1")]),
            document("b", 1, &[Some("1"), Some("2")]),
            document("c", 0, &[Some("1")]),
            document("d", 1, &[Some("1")]),
        ],
    );
    let found = observed(9, [("a", "x"), ("b", "y"), ("d", "1"), ("e", "z")]);
    assert_eq!(next_step(&state, Some(&found)), import(["a", "b", "e"]));
}

#[test]
fn removed_policy_is_imported_as_a_deletion() {
    let state = known(7, [document("a", 1, &[Some("1")]), document("b", 2, &[None])]);
    assert_eq!(next_step(&state, Some(&observed(9, []))), import(["a"]));
    assert_eq!(
        next_step(&state, Some(&observed(9, [("a", "1")]))),
        Step::Confirm(Vec::new())
    );
}

#[test]
fn own_publication_is_confirmed_after_a_crash() {
    let state = known(
        7,
        [
            document("a", 1, &[Some("1"), Some("2"), Some("3")]),
            document("b", 1, &[Some("1")]),
            document("c", 1, &[Some("1"), None]),
        ],
    );
    let step = next_step(&state, Some(&observed(9, [("a", "2"), ("b", "1")])));
    assert_eq!(step, Step::Confirm(vec![(id("a"), 2), (id("c"), 2)]));
}

#[test]
fn empty_database_imports_the_registry() {
    let found = observed(9, [("a", "1"), ("b", "1")]);
    assert_eq!(next_step(&known(0, []), Some(&found)), import(["a", "b"]));
    assert_eq!(next_step(&known(9, []), Some(&observed(9, []))), Step::Nothing);
    // An empty registry was imported, and Redis was restored from an older copy.
    let older = observed(7, [("a", "1")]);
    assert_eq!(next_step(&known(9, []), Some(&older)), import(["a"]));
    let step = next_step(&known(9, []), Some(&observed(7, [])));
    assert_eq!(step, Step::PublishAll { went_back: true });
}

#[test]
fn restored_copy_of_the_database_is_detected() {
    let state = known(7, [document("a", 1, &[Some("1")])]);
    let found = |follows_lost_change| ObservedRegistry {
        follows_lost_change,
        ..observed(9, [("a", "2")])
    };
    let restored = Step::Import {
        documents: [id("a")].into(),
        restored: true,
    };
    assert_eq!(next_step(&state, Some(&found(true))), restored);
    assert_eq!(next_step(&known(0, []), Some(&found(true))), restored);
    assert_eq!(next_step(&state, Some(&found(false))), import(["a"]));
}
