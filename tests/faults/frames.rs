//! The proxy's reader of frames: on literal bytes, and on what a client and real servers say to each other.

use evenkeel::registry::Dialect;
use zookeeper_client::Acls;
use zookeeper_client::Client;
use zookeeper_client::CreateMode;

use crate::stage::dialect;
use crate::stage::on_each;
use crate::stage::server;
use crate::support::Answer;
use crate::support::Frames;
use crate::support::LONG;
use crate::support::Matcher;
use crate::support::Op;
use crate::support::Piece;
use crate::support::Proxy;
use crate::support::Request;
use crate::support::Step;
use crate::support::Welcome;
use crate::support::run_async;
use crate::support::until;

fn text(words: &str) -> Vec<u8> {
    let length = u32::try_from(words.len()).unwrap();
    [&length.to_be_bytes()[..], words.as_bytes()].concat()
}

fn step(op: Op, path: &str) -> Step {
    let path = path.into();
    Step { op, path }
}

#[test]
fn a_request_is_read_from_its_bytes() {
    let body = [&[0, 0, 0, 7, 0, 0, 0, 4][..], &text("/a"), &[1]].concat();
    let wanted = Request {
        xid: 7,
        op: Op::GetData,
        steps: vec![step(Op::GetData, "/a")],
    };
    assert_eq!(Request::read(&body), Some(wanted));
    assert_eq!(Request::read(&body[..12]), None);
    let ping = [0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 11];
    let ping = Request::read(&ping).unwrap();
    assert_eq!((ping.xid, ping.op, ping.steps), (-2, Op::Ping, vec![]));
}

#[test]
fn a_transaction_is_read_part_by_part() {
    let header = |kind: i32, is_last: u8| {
        let error = if is_last == 1 { -1_i32 } else { 0 };
        [&kind.to_be_bytes()[..], &[is_last], &error.to_be_bytes()].concat()
    };
    let version = 1_i32.to_be_bytes();
    let access = [
        &[0, 0, 0, 1, 0, 0, 0, 31][..],
        &text("world"),
        &text("anyone"),
    ]
    .concat();
    let flags = [0, 0, 0, 1];
    let body = [
        &[0, 0, 0, 9, 0, 0, 0, 14][..],
        &[&header(13, 0)[..], &text("/r"), &version].concat(),
        &[
            &header(15, 0)[..],
            &text("/o"),
            &text("me"),
            &access,
            &flags,
        ]
        .concat(),
        &[&header(5, 0)[..], &text("/f"), &text("17"), &version].concat(),
        &[&header(2, 0)[..], &text("/d"), &version].concat(),
        &header(-1, 1)[..],
    ]
    .concat();
    let request = Request::read(&body).unwrap();
    let wanted = [
        step(Op::Check, "/r"),
        step(Op::Create2, "/o"),
        step(Op::SetData, "/f"),
        step(Op::Delete, "/d"),
    ];
    assert_eq!((request.op, &request.steps[..]), (Op::Multi, &wanted[..]));
    for end in 8..body.len() {
        assert_eq!(Request::read(&body[..end]), None, "{end} bytes");
    }
}

#[test]
fn answers_are_read_from_their_bytes() {
    let answer = [
        0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0x9b, 9,
    ];
    let wanted = Answer {
        xid: 7,
        zxid: 256,
        error: -101,
    };
    assert_eq!(Answer::read(&answer), Some(wanted));
    assert_eq!(Answer::read(&answer[..15]), None);
    let welcome = [
        0, 0, 0, 0, 0, 0, 0x27, 0x10, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0,
    ];
    let wanted = Welcome {
        timeout_ms: 10_000,
        session: 5,
    };
    assert_eq!(Welcome::read(&welcome), Some(wanted));
}

#[test]
fn a_stream_is_cut_into_frames_however_it_comes() {
    let stream = [&[0, 0, 0, 2, 7, 8][..], &[0, 0, 0, 0], &[0, 0, 0, 1, 9]].concat();
    let wanted = [
        Piece::Frame(vec![0, 0, 0, 2, 7, 8]),
        Piece::Frame(vec![0; 4]),
        Piece::Frame(vec![0, 0, 0, 1, 9]),
    ];
    for size in 1..=stream.len() {
        let (mut frames, mut found) = (Frames::default(), Vec::new());
        for part in stream.chunks(size) {
            frames.push(part);
            found.extend(std::iter::from_fn(|| frames.take()));
        }
        assert_eq!(found, wanted, "{size} bytes at a time");
    }
    let mut frames = Frames::default();
    frames.push(b"srvr");
    assert_eq!(frames.take(), Some(Piece::Foreign(b"srvr".to_vec())));
    frames.push(b"!");
    assert_eq!(frames.take(), Some(Piece::Foreign(b"!".to_vec())));
    let mut frames = Frames::default();
    frames.push(&[0, 0, 0, 2, 7]);
    assert_eq!(frames.take(), None);
    assert_eq!(frames.rest(), [0, 0, 0, 2, 7]);
}

#[test]
fn requests_are_told_apart_by_kind_and_path() {
    let request = Request {
        xid: 1,
        op: Op::Multi,
        steps: vec![
            step(Op::Check, "/x/owners/t/0"),
            step(Op::SetData, "/x/offsets/t/0"),
        ],
    };
    let of = |ops: &[Op]| Matcher::of(ops);
    for matcher in [
        of(&[]),
        of(&[Op::Multi]),
        of(&[Op::Create, Op::Multi]).at("*/owners/*/*"),
        of(&[Op::Multi]).at("/x/owners/t/0").at("*0"),
        of(&[]).with(&[Op::SetData], "/x/*/0"),
    ] {
        assert!(matcher.matches(&request), "{matcher:?}");
    }
    for matcher in [
        of(&[Op::SetData]),
        of(&[]).at("*/ids/*"),
        of(&[]).at("/x/owners/t"),
        of(&[]).at("*/owners/*/*/*"),
        of(&[]).with(&[Op::SetData], "*/owners/*"),
        of(&[]).at("*/owners/*").at("*/ids/*"),
    ] {
        assert!(!matcher.matches(&request), "{matcher:?}");
    }
}

/// One session asks for this and that, and is closed.
fn deeds(place: String, is_old: bool) -> i64 {
    run_async(async move {
        let mut connector = Client::connector();
        if is_old {
            connector = connector.with_server_version(3, 4, 14);
        }
        let client = connector.connect(&place).await.unwrap();
        let lasting = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create("/framed", b"one", &lasting).await.unwrap();
        assert!(client.create("/framed", b"", &lasting).await.is_err());
        client.get_data("/framed").await.unwrap();
        client.check_stat("/none").await.unwrap();
        client.set_data("/framed", b"two", None).await.unwrap();
        client.get_children("/framed").await.unwrap();
        client.list_children("/framed").await.unwrap();
        let mut writer = client.new_multi_writer();
        writer.add_check_version("/framed", 1).unwrap();
        if !is_old {
            writer.add_create("/framed/m", b"many", &lasting).unwrap();
            writer.add_delete("/framed/m", None).unwrap();
        }
        writer.add_set_data("/framed", b"three", Some(1)).unwrap();
        writer.commit().await.unwrap();
        let mut refused = client.new_multi_writer();
        refused.add_set_data("/framed", b"never", Some(0)).unwrap();
        assert!(refused.commit().await.is_err());
        client.delete("/framed", None).await.unwrap();
        client.session_id().0
    })
}

fn what_a_client_says_is_read(version: &'static str) {
    let is_old = dialect(version) == Dialect::V3_4;
    let proxy = Proxy::start(server(version).port());
    let session = deeds(proxy.connect_string(), is_old);
    let of_it = || {
        let mut exchanges = proxy.exchanges();
        exchanges.retain(|exchange| exchange.request.op != Op::Ping);
        exchanges
    };
    until("the end of the session", LONG, || {
        let last = of_it().pop();
        last.is_some_and(|last| last.request.op == Op::CloseSession && last.error.is_some())
    });
    let create = if is_old { Op::Create } else { Op::Create2 };
    let parts = [
        (Op::Check, "/framed"),
        (Op::Create2, "/framed/m"),
        (Op::Delete, "/framed/m"),
        (Op::SetData, "/framed"),
    ];
    let parts: &[(Op, &str)] = if is_old {
        &[parts[0], parts[3]]
    } else {
        &parts
    };
    let wanted = [
        (Op::Connect, &[][..], 0),
        (create, &[(create, "/framed")], 0),
        (create, &[(create, "/framed")], -110),
        (Op::GetData, &[(Op::GetData, "/framed")], 0),
        (Op::Exists, &[(Op::Exists, "/none")], -101),
        (Op::SetData, &[(Op::SetData, "/framed")], 0),
        (Op::GetChildren2, &[(Op::GetChildren2, "/framed")], 0),
        (Op::GetChildren, &[(Op::GetChildren, "/framed")], 0),
        (Op::Multi, parts, 0),
        (Op::Multi, &[(Op::SetData, "/framed")], -103),
        (Op::Delete, &[(Op::Delete, "/framed")], 0),
        (Op::CloseSession, &[], 0),
    ];
    let wanted = wanted.map(|(op, steps, error)| {
        let steps = steps.iter().map(|(op, path)| step(*op, path)).collect();
        (op, steps, Some(error))
    });
    let found: Vec<(Op, Vec<Step>, Option<i32>)> = of_it()
        .into_iter()
        .map(|exchange| (exchange.request.op, exchange.request.steps, exchange.error))
        .collect();
    assert_eq!(found, wanted);
    assert_eq!(proxy.sessions(), [session]);
    assert!(
        of_it()[1..]
            .iter()
            .all(|exchange| exchange.session == session)
    );
    assert!(
        of_it()[..11]
            .iter()
            .all(|exchange| exchange.answered.is_some())
    );
}

#[test]
fn what_a_client_says_to_a_real_server_is_read() {
    on_each(what_a_client_says_is_read);
}
