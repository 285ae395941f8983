//! What every store promises to the directory.
#![forbid(unsafe_code)]

use motet_gatekeeper::store::{Embedded, Expected, Store, StoreError};

fn stores() -> Vec<(&'static str, Store, Option<tempfile::TempDir>)> {
    let dir = tempfile::tempdir().unwrap();
    let (journaled, damage) = Embedded::open(&dir.path().join("journal")).unwrap();
    assert_eq!(damage, None);
    vec![
        ("in memory", Store::Embedded(Embedded::in_memory()), None),
        ("with a journal", Store::Embedded(journaled), Some(dir)),
    ]
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[tokio::test]
async fn writes_happen_only_as_expected() {
    for (name, store, _dir) in stores() {
        assert!(
            matches!(store.write("a", text("1"), Expected::Revision(7)).await, Err(StoreError::Conflict)),
            "{name}"
        );
        let first = store.write("a", text("1"), Expected::Absent).await.unwrap();
        assert!(matches!(store.write("a", text("2"), Expected::Absent).await, Err(StoreError::Conflict)), "{name}");
        let second = store.write("a", text("2"), Expected::Revision(first)).await.unwrap();
        assert!(second > first, "{name}");
        assert!(
            matches!(store.write("a", text("3"), Expected::Revision(first)).await, Err(StoreError::Conflict)),
            "{name}"
        );
        assert_eq!(store.get("a").await.unwrap(), Some((second, "2".to_owned())), "{name}");
        store.write("a", None, Expected::Any).await.unwrap();
        assert_eq!(store.get("a").await.unwrap(), None, "{name}");
    }
}

#[tokio::test]
async fn lists_hold_the_keys_with_the_prefix() {
    for (name, store, _dir) in stores() {
        for key in ["group/a", "group/b", "groups", "host/a"] {
            store.write(key, text(key), Expected::Any).await.unwrap();
        }
        let (found, _) = store.list("group/").await.unwrap();
        assert_eq!(found.iter().map(|change| &change.key[..]).collect::<Vec<_>>(), ["group/a", "group/b"], "{name}");
    }
}

#[tokio::test]
async fn watchers_see_every_change_in_order() {
    for (name, store, _dir) in stores() {
        store.write("k/old", text("0"), Expected::Any).await.unwrap();
        let (_, revision) = store.list("k/").await.unwrap();
        let mut watch = store.watch("k/", revision);
        let writer = store.clone();
        let writing = tokio::spawn(async move {
            for number in 0..1000 {
                writer.write("k/x", text(&number.to_string()), Expected::Any).await.unwrap();
                writer.write("other", text("-"), Expected::Any).await.unwrap();
            }
            writer.write("k/x", None, Expected::Any).await.unwrap();
        });
        let mut seen = Vec::new();
        while seen.last() != Some(&None) {
            seen.extend(watch.next().await.unwrap().into_iter().map(|change| change.value));
        }
        writing.await.unwrap();
        let expected: Vec<_> = (0..1000).map(|number| text(&number.to_string())).chain([None]).collect();
        assert_eq!(seen, expected, "{name}");
    }
}

#[tokio::test]
async fn watcher_that_falls_behind_is_told() {
    let store = Store::Embedded(Embedded::in_memory());
    let mut watch = store.watch("", 0);
    for number in 0..20_000 {
        store.write("k", text(&number.to_string()), Expected::Any).await.unwrap();
    }
    assert!(matches!(watch.next().await, Err(StoreError::Compacted)));
}

#[tokio::test]
async fn journaled_store_is_the_same_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let store = Embedded::open(&path).unwrap().0;
    for number in 0..10_000 {
        store.write(&format!("k/{}", number % 7), text(&number.to_string()), Expected::Any).unwrap();
    }
    store.write("k/3", None, Expected::Any).unwrap();
    let (before, revision) = store.list("");
    drop(store);
    let again = Embedded::open(&path).unwrap().0;
    assert_eq!(again.list("").0, before);
    assert!(again.write("k/3", text("x"), Expected::Absent).unwrap() > revision - 1);
    assert!(std::fs::metadata(&path).unwrap().len() < 4096, "a restart writes the journal anew");
}

#[tokio::test]
async fn long_values_do_not_pile_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let store = Store::Embedded(Embedded::open(&path).unwrap().0);
    let mut watch = store.watch("", 0);
    for _ in 0..1000 {
        store.write("k", text(&"x".repeat(100_000)), Expected::Any).await.unwrap();
    }
    assert!(std::fs::metadata(&path).unwrap().len() < 2 << 20, "the journal is written anew");
    assert!(matches!(watch.next().await, Err(StoreError::Compacted)), "watchers do not keep 100 MB alive");
}
