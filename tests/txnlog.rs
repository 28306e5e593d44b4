//! The reader of ZooKeeper's transaction log, on logs that real servers wrote.
// Waiting for other processes needs real clocks.
#![allow(clippy::disallowed_methods)]

mod support;

use support::{Change, LONG, Tree, Txn, TxnLog, ZooKeeper, ZooKeeperOptions, run_async};
use zookeeper_client::{Acls, Client, CreateMode};

/// A session makes nodes one by one and together, writes, deletes, and ends.
fn deeds(server: &ZooKeeper, is_old: bool) -> i64 {
    let address = server.connect_string();
    run_async(async move {
        let mut connector = Client::connector();
        if is_old {
            connector = connector.with_server_version(3, 4, 14);
        }
        let client = connector.connect(&address).await.unwrap();
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        client.create("/a", b"one", &persistent).await.unwrap();
        client.create("/a/e", b"", &ephemeral).await.unwrap();
        client.set_data("/a", b"two", None).await.unwrap();
        assert!(client.create("/a", b"", &persistent).await.is_err());
        let mut writer = client.new_multi_writer();
        if !is_old {
            writer.add_create("/a/m", b"many", &ephemeral).unwrap();
        }
        writer.add_set_data("/a/e", b"there", None).unwrap();
        writer.commit().await.unwrap();
        let mut refused = client.new_multi_writer();
        refused.add_set_data("/a", b"never", None).unwrap();
        refused.add_set_data("/nowhere", b"", None).unwrap();
        assert!(refused.commit().await.is_err());
        client.delete("/a/e", None).await.unwrap();
        client.session_id().0
    })
}

fn created(path: &str, data: &[u8], is_ephemeral: bool) -> Change {
    Change::Created {
        path: path.into(),
        data: data.to_vec(),
        is_ephemeral,
    }
}

fn set(path: &str, data: &[u8], version: i32) -> Change {
    Change::Set {
        path: path.into(),
        data: data.to_vec(),
        version,
    }
}

fn all_that_happened_is_read(version: &str, is_old: bool) {
    let server = ZooKeeper::start(version);
    let mut log = TxnLog::of(&server);
    let session = deeds(&server, is_old);
    let txns = log.await_txn("the end of the session", LONG, |txn| {
        txn.session == session && txn.changes == [Change::Closed]
    });
    let of_it: Vec<&Txn> = txns.iter().filter(|txn| txn.session == session).collect();
    let changes: Vec<Vec<Change>> = of_it.iter().map(|txn| txn.changes.clone()).collect();
    assert!(matches!(changes[0][..], [Change::Opened { timeout_ms }] if timeout_ms > 0));
    let many = [created("/a/m", b"many", true), set("/a/e", b"there", 1)];
    let wanted = [
        vec![created("/a", b"one", false)],
        vec![created("/a/e", b"", true)],
        vec![set("/a", b"two", 1)],
        vec![],
        many[usize::from(is_old)..].to_vec(),
        vec![],
        vec![Change::Deleted {
            path: "/a/e".into(),
        }],
        vec![Change::Closed],
    ];
    assert_eq!(changes[1..], wanted);
    assert!(of_it.is_sorted_by(|one, other| one.zxid < other.zxid && one.time_ms <= other.time_ms));
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let age = i64::try_from(now.as_millis()).unwrap() - of_it[0].time_ms;
    assert!((0..90_000).contains(&age), "{age} ms ago");
    assert!(log.more().is_empty());
}

#[test]
fn all_that_happened_is_read_from_the_log_of_3_9() {
    all_that_happened_is_read("3.9.5", false);
}

#[test]
fn all_that_happened_is_read_from_the_log_of_3_4() {
    all_that_happened_is_read("3.4.14", true);
}

#[test]
fn reading_goes_on_from_file_to_file() {
    // A new file is begun after so many changes, at the latest.
    let options = ZooKeeperOptions {
        flags: vec!["-Dzookeeper.snapCount=20".into()],
        ..ZooKeeperOptions::default()
    };
    let server = ZooKeeper::start_with("3.9.5", options);
    let (mut log, tree) = (TxnLog::of(&server), Tree::connect(&server));
    let mut read = Vec::new();
    for number in 0..200 {
        tree.make(&format!("/n{number}"), "");
        read.extend(log.more());
    }
    let is_last = |txn: &Txn| txn.changes == [created("/n199", b"", false)];
    if !read.iter().any(is_last) {
        read.extend(log.await_txn("the last node", LONG, is_last));
    }
    let made: Vec<Change> = read.into_iter().flat_map(|txn| txn.changes).collect();
    let made: Vec<&Change> = made
        .iter()
        .filter(|change| matches!(change, Change::Created { .. }))
        .collect();
    let wanted: Vec<Change> = (0..200)
        .map(|number| created(&format!("/n{number}"), b"", false))
        .collect();
    assert_eq!(made, wanted.iter().collect::<Vec<_>>());
    let logs = std::fs::read_dir(server.log_folder()).unwrap();
    let logs = logs.filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_str().unwrap().starts_with("log.")
    });
    assert!(logs.count() > 2);
}

#[test]
fn an_entry_of_many_pages_is_read_whole_once_it_is_there() {
    let (server, data) = (ZooKeeper::start("3.9.5"), "x".repeat(300_000));
    let (mut log, tree) = (TxnLog::of(&server), Tree::connect(&server));
    tree.make("/large", &data);
    tree.make("/small", "");
    let txns = log.await_txn("the last node", LONG, |txn| {
        txn.changes == [created("/small", b"", false)]
    });
    let large = created("/large", data.as_bytes(), false);
    assert!(txns.iter().any(|txn| txn.changes == [large.clone()]));
}
