//! What a server of exported files reads of its clients, and a client of its server.

use motet_files::identity::Identity;
use motet_files::protocol::{
    Answer, Attributes, Cached, Change, Entry, Layout, LockKind, LockRange, LockWait, MAX_STRIPES, Notice, OpenFlags,
    Operation, RenameFlags, Reply, Request, Resumed, SessionKey, SetTime, Target, Time, VERSION, append, entries,
    parse_answer, parse_notice, parse_request,
};

/// One message, read as a request with data, as an answer, as a notice, as a layout, and as a listing.
pub fn file_message(input: &[u8]) {
    if let Some((request, data)) = parse_request(input) {
        assert!(input.ends_with(data), "data are the end of the message");
        let mut written = Vec::new();
        append(&request, &mut written);
        assert!(written.len() <= input.len(), "integers have one shortest form");
        let again = parse_request(&written).expect("what was understood");
        assert_eq!((again.0.operation, again.0.identity, again.1.len()), (request.operation, request.identity, 0));
    }
    if let Some(answer) = parse_answer(input) {
        let mut written = Vec::new();
        append(&answer, &mut written);
        assert_eq!(parse_answer(&written), Some(answer));
    }
    if let Some((number, notice)) = parse_notice(input) {
        let mut written = Vec::new();
        append(&number, &mut written);
        append(&notice, &mut written);
        assert_eq!(parse_notice(&written), Some((number, notice)));
    }
    if let Some(layout) = Layout::parse(input) {
        assert!(layout.unit >= Layout::MIN_UNIT_BYTES && (1..MAX_STRIPES).contains(&layout.others.len()));
        assert!(layout.others.iter().all(|export| !export.contains(['/', '\0'])), "names become parts of paths");
    }
    let listed: usize = entries(input).map(|entry| entry.name.len()).sum();
    assert!(listed <= input.len(), "names are part of the listing");
}

/// Well-formed messages.
pub fn file_message_seeds() -> Vec<Vec<u8>> {
    let range = LockRange { kind: LockKind::Exclusive, start: 0, end: u64::MAX, process: 7 };
    let change = Change {
        mode: Some(0o644),
        size: Some(1 << 40),
        modified: Some(SetTime::At(Time { seconds: -1, nanoseconds: 5 })),
        ..Change::default()
    };
    let operations = [
        Operation::Attach { version: VERSION, resume: Some(SessionKey([3; 16])) },
        Operation::AttachMember { version: VERSION, resume: None, ticket: [4; 16] },
        Operation::Open { path: b"folder/file", flags: OpenFlags::READ | OpenFlags::CREATE, mode: 0o600 },
        Operation::Subscribe { session: SessionKey([8; 16]) },
        Operation::Reserve { file: 3, length: 1 << 20 },
        Operation::Read { file: 3, offset: 1 << 33, length: 4096 },
        Operation::Write { file: 3, offset: 9 },
        Operation::SetAttributes(Target::Path(b"x"), change),
        Operation::Readdir { file: 1, cookie: 77, length: 1000, attributes: true },
        Operation::Mknod { path: b"device", mode: 0o20_600, device: 0x103 },
        Operation::Rename { from: b"a", to: b"b/c", flags: RenameFlags::EXCHANGE },
        Operation::SetXattr { target: Target::File(1), name: b"user.k", create: true, replace: false },
        Operation::Lock { file: 1, owner: u64::MAX, range, wait: LockWait::OfProcess },
        Operation::StopWaiting { file: 1, owner: u64::MAX, range },
        Operation::Append { file: 4 },
        Operation::Ping,
    ];
    let requests = operations.into_iter().enumerate().map(|(at, operation)| {
        let user = Identity { user: 1000, group: 100, groups: (0..at as u32 * 4).collect() };
        let identity = (at > 0).then_some(user);
        let mut bytes = Vec::new();
        append(&Request { slot: 5, sequence: 1 << 20, data: 4, identity, operation }, &mut bytes);
        bytes.extend_from_slice(b"data");
        bytes
    });
    let results = [
        Ok(Reply::Done),
        Ok(Reply::Attached {
            key: SessionKey([1; 16]),
            read_only: true,
            resumed: Resumed::Answers,
            identities: true,
            boot: [9; 16],
        }),
        Ok(Reply::Opened { file: 9, attributes: Attributes::default(), cached: Some(Cached::Refused(22)) }),
        Ok(Reply::Lock(range)),
        Err(2),
    ];
    let answers = results.into_iter().map(|result| {
        let mut bytes = Vec::new();
        append(&Answer { sequence: 3, result }, &mut bytes);
        bytes
    });
    let mut listing = Vec::new();
    for name in [&b"."[..], b"file", &[0xff; 255]] {
        let attributes = (name.len() > 1).then(Attributes::default);
        append(&Entry { cookie: 1 << 50, inode: 12, kind: 0o100_000, name, attributes }, &mut listing);
    }
    let mut notice = Vec::new();
    append(&7_u32, &mut notice);
    append(&Notice::Name { path: b"directory/file" }, &mut notice);
    let mut layout = Vec::new();
    let others = vec!["parts".to_owned(), "host:parts".to_owned()];
    append(&Layout { id: [5; 16], unit: 65_536, others }, &mut layout);
    requests.chain(answers).chain([listing, notice, layout]).collect()
}
