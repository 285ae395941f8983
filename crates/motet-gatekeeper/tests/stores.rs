//! What every store promises to the directory.
#![forbid(unsafe_code)]

mod support;

use motet_gatekeeper::directory::{Directory, SESSION_ID};
use motet_gatekeeper::store::{Embedded, Etcd, Expected, Store, StoreError};
use support::etcd::EtcdServer;

/// The stores, and what they lie in.
async fn stores() -> Vec<(&'static str, Store, (Option<tempfile::TempDir>, Option<EtcdServer>))> {
    let dir = tempfile::tempdir().unwrap();
    let (journaled, damage) = Embedded::open(&dir.path().join("journal")).unwrap();
    assert_eq!(damage, None);
    let mut stores = vec![
        ("in memory", Store::Embedded(Embedded::in_memory()), (None, None)),
        ("with a journal", Store::Embedded(journaled), (Some(dir), None)),
    ];
    if let Some(server) = EtcdServer::start() {
        let etcd = Etcd::open(&server.address("stores"), "one").await.unwrap();
        stores.push(("etcd", Store::Etcd(etcd), (None, Some(server))));
    }
    stores
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[tokio::test]
async fn writes_happen_only_as_expected() {
    for (name, store, _dir) in stores().await {
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
    for (name, store, _dir) in stores().await {
        for key in ["group/a", "group/b", "groups", "host/a"] {
            store.write(key, text(key), Expected::Any).await.unwrap();
        }
        let (found, _) = store.list("group/").await.unwrap();
        assert_eq!(found.iter().map(|change| &change.key[..]).collect::<Vec<_>>(), ["group/a", "group/b"], "{name}");
    }
}

#[tokio::test]
async fn watchers_see_every_change_in_order() {
    for (name, store, _dir) in stores().await {
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

#[tokio::test]
async fn etcd_tells_a_watcher_that_changes_were_compacted() {
    let Some(server) = EtcdServer::start() else { return };
    let store = Store::Etcd(Etcd::open(&server.address("x"), "one").await.unwrap());
    let mut watch = store.watch("", 1);
    for number in 0..10 {
        store.write("k", text(&number.to_string()), Expected::Any).await.unwrap();
    }
    let (entries, now) = store.list("").await.unwrap();
    server.ctl(&["compact", &now.to_string()]).unwrap();
    assert!(matches!(watch.next().await, Err(StoreError::Compacted)));
    assert_eq!(entries[0].value, text("9"));
}

#[tokio::test]
async fn watcher_sees_every_change_although_etcd_is_killed() {
    let Some(mut server) = EtcdServer::start() else { return };
    let store = Store::Etcd(Etcd::open(&server.address("x"), "one").await.unwrap());
    let mut watch = store.watch("", store.list("").await.unwrap().1);
    for number in 0..4 {
        store.write("k", text(&number.to_string()), Expected::Any).await.unwrap();
        let seen = watch.next().await.unwrap();
        assert_eq!(seen.iter().map(|change| change.value.clone()).collect::<Vec<_>>(), [text(&number.to_string())]);
        server.kill();
        let error = store.get("k").await.unwrap_err();
        assert!(matches!(&error, StoreError::Unavailable(why) if why.contains("etcd://127.")), "{error}");
        server.start_again();
    }
}

#[tokio::test]
async fn sessions_in_one_etcd_do_not_see_each_other() {
    let Some(server) = EtcdServer::start() else { return };
    let open = async |prefix, session| Store::Etcd(Etcd::open(&server.address(prefix), session).await.unwrap());
    let stores = [open("x", "one").await, open("x", "one2").await, open("y", "one").await];
    for (number, store) in stores.iter().enumerate() {
        store.write(SESSION_ID, text(&number.to_string()), Expected::Absent).await.unwrap();
    }
    let clear = async |number: usize, id, is_primary| {
        Directory::new(stores[number].clone()).clear(id, is_primary).await.unwrap();
        stores[number].list("").await.unwrap().0.len()
    };
    assert_eq!(clear(0, "7", true).await, 1, "it is a later session's");
    assert_eq!(clear(0, "0", false).await, 1, "the primary gatekeeper removes it");
    assert_eq!(clear(0, "0", true).await, 0);
    stores[0].write("left", text("-"), Expected::Any).await.unwrap();
    assert_eq!(clear(0, "0", false).await, 0);
    for (number, id) in [(1, "1"), (2, "2")] {
        assert_eq!(stores[number].get(SESSION_ID).await.unwrap().unwrap().1, id);
        assert_eq!(clear(number, id, true).await, 0);
    }
    assert_eq!(server.ctl(&["get", "", "--prefix", "--keys-only"]).unwrap(), "");
}
