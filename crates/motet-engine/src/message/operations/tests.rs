use super::*;

#[test]
fn gathered_body_any_range_is_returned() {
    let bytes: Vec<u8> = (0..30).collect();
    let mut operation = Operation::new(
        OperationMemory::Owned(bytes[..10].to_vec()),
        OperationKind::Send(None),
        None,
        CompletionOptions::default(),
    );
    let rest = [&bytes[10..11], &[], &bytes[11..30]];
    operation.exchange_rest(rest.map(|part| OperationMemory::Owned(part.to_vec())).into());
    for at in 0..30 {
        for length in 0..=30 - at {
            let mut seen = Vec::new();
            assert!(operation.body(at, length, &mut |parts| {
                seen = parts.concat();
                true
            }));
            assert_eq!(seen, bytes[at..at + length], "{at} {length}");
        }
    }
}

#[test]
fn loan_without_completion_is_kept_and_reused() {
    let pool = motet_sys::shm_pool::ShmPool::new(1 << 30);
    let mut operations = Operations::new();
    let take = |length| {
        let mut loan = pool.take(length).unwrap();
        loan.fill(length as u8);
        loan
    };
    let [first, second, long] = [5000, 9000, (64 << 20) + 1].map(|length| operations.keep_loan(take(length)).unwrap());
    assert_eq!((operations.count(), operations.loan(first).unwrap()[4999]), (3, 5000u16 as u8));
    // The name of a loan is no operation's name, and the name of an operation is no loan's.
    assert!(operations.get(first).is_none() && operations.loan(first & 0xffff_ffff).is_none());
    let done = Outcome { status: Status::Done, length: 5000 };
    operations.complete(first, done);
    operations.complete(first, done);
    assert_eq!((operations.count(), operations.spare_bytes(), operations.loan(first).is_none()), (2, 8192, true));
    let spare = operations.take_spare().unwrap().reuse(9000).unwrap_err();
    assert_eq!(spare.reuse(8192).unwrap().len(), 8192);
    operations.complete(second, done);
    operations.complete(long, done);
    assert_eq!(
        (operations.count(), operations.spare_bytes()),
        (0, 16 << 10),
        "a long loan is returned to the pool at once"
    );
    assert_eq!(pool.usage()[2], 16 << 10);
    drop(operations);
    assert_eq!(pool.usage()[2], 0);
}

#[test]
fn completions_are_reported_up_to_one_with_memory() {
    let mut operations = Operations::new();
    let cq = operations.add_cq().unwrap();
    let mut begin = |user_data, memory| {
        let options = CompletionOptions { cq: Some(cq), user_data, errors_only: false };
        operations.begin(Operation::new(memory, OperationKind::Receive(None), None, options)).unwrap()
    };
    let plain = || OperationMemory::User(motet_sys::user_memory::UserMemory::EMPTY);
    let begun = [begin(1, plain()), begin(2, plain()), begin(3, OperationMemory::Owned(vec![0; 4])), begin(4, plain())];
    assert!(operations.is_cq_empty(cq).unwrap());
    let channel = Channel { link: crate::message::LinkId(7), id: motet_proto::message::ChannelId::from_number(9) };
    let envelope = Envelope { source: 7, channel: channel.id, tag: 5, length: 3, headers: b"head" };
    for operation in begun {
        let capacity = if operation == begun[2] { 2 } else { 0 };
        operations.receive((operation.0.into(), capacity), channel, &envelope, b"abc");
        assert!(operations.has_ended(operation) && operations.get(operation.0.into()).is_none(), "the cq has it");
        assert!(operations.take(operation).is_none() && operations.withdraw(operation).is_none());
    }
    let mut reported = Vec::new();
    let mut report = |max| {
        let mut sink = SinkFn(|end: &CompletionRef<'_>| {
            assert_eq!((end.status, end.length, end.message_length, end.tag), (Status::Truncated, 0, 3, 5));
            assert_eq!((end.headers, end.channel), (&b"head"[..], Some(channel)));
            reported.push((end.operation, end.user_data));
        });
        operations.report_completions(cq, max, &mut sink).unwrap()
    };
    assert_eq!([report(1), report(9), report(9)], [(1, false), (1, true), (0, true)]);
    let kept = operations.next_completion(cq).unwrap().unwrap();
    assert_eq!((kept.operation, kept.memory.unwrap(), kept.headers), (begun[2], b"ab\0\0".to_vec(), b"head".to_vec()));
    assert_eq!(operations.cq(cq).unwrap().counts, [0, 4]);
    assert_eq!((reported, operations.count()), (vec![(begun[0], 1), (begun[1], 2)], 1));
    assert_eq!(
        (operations.remove_cq(cq), operations.count()),
        (Ok(()), 0),
        "completions that were not polled are dropped"
    );
    assert_eq!(operations.report_completions(cq, 1, &mut SinkFn(|_: &CompletionRef<'_>| ())), Err(Error::Unknown));
}

#[test]
fn reported_message_completes_as_a_queued_one() {
    let mut operations = Operations::new();
    let cq = operations.add_cq();
    let channel = Channel { link: crate::message::LinkId(7), id: motet_proto::message::ChannelId::from_number(9) };
    let headers: [&[u8]; 4] = [b"", b"head", b"8 bytes.", b"sixteen and more"];
    let seen = |end: &CompletionRef<'_>| {
        (end.user_data, end.status, end.length, end.tag, end.message_length, end.headers.to_vec(), end.channel)
    };
    let ends: Vec<_> = [0, 1]
        .map(|shortly| {
            let (mut begun, mut ends) = (Vec::new(), Vec::new());
            for pushed in headers {
                let options = CompletionOptions { cq, user_data: pushed.len() as u64, errors_only: false };
                let memory = OperationMemory::User(motet_sys::user_memory::UserMemory::EMPTY);
                let make = || Operation::new(memory, OperationKind::Receive(None), None, options);
                let (name, record) = operations.begin_with(options, make).unwrap();
                assert_eq!(record.memory.len(), 0);
                begun.push(name);
            }
            for (at, &name) in begun.iter().enumerate() {
                let (receive, body) =
                    (Receive { operation: name.0.into(), capacity: 0, buffer: Buffer::NONE }, &b"abc"[..at % 2 * 3]);
                let [tag, length] = [at as u64, body.len() as u64];
                if shortly == 1 {
                    let message = (&receive, channel, tag, headers[at]);
                    let mut report = || {
                        let mut reported = SinkFn(|end: &CompletionRef<'_>| ends.push(seen(end)));
                        operations
                            .report_message(message, body.len(), cq.unwrap(), &mut reported, |span| span.fill(0, body))
                    };
                    assert!(report() && !report(), "it has completed");
                } else {
                    let envelope = Envelope { source: 7, channel: channel.id, tag, length, headers: headers[at] };
                    operations.receive((receive.operation, receive.capacity), channel, &envelope, body);
                }
            }
            assert!(
                operations
                    .report_completions(cq.unwrap(), 10, &mut SinkFn(|end: &CompletionRef<'_>| ends.push(seen(end))))
                    .is_ok()
            );
            (ends, operations.cq(cq.unwrap()).map(|cq| cq.counts))
        })
        .into();
    assert_eq!((ends[0].0.len(), &ends[0].0), (4, &ends[1].0));
    assert_eq!((ends[0].1, ends[1].1), (Some([2, 2]), Some([4, 4])), "two of each are truncated");
}

#[test]
fn only_receives_of_the_queue_are_reported() {
    let mut operations = Operations::new();
    let cq = operations.add_cq();
    let channel = Channel { link: crate::message::LinkId(7), id: motet_proto::message::ChannelId::from_number(9) };
    let plain = || OperationMemory::User(motet_sys::user_memory::UserMemory::EMPTY);
    let reports = |operations: &mut Operations, receive| {
        let mut reported = SinkFn(|_: &CompletionRef<'_>| panic!("nothing is reported"));
        operations.report_message((&receive, channel, 1, b""), 0, cq.unwrap(), &mut reported, |_| 0)
    };
    let cases = [
        CompletionOptions::default(),
        CompletionOptions { cq, user_data: 0, errors_only: true },
        CompletionOptions { cq, ..CompletionOptions::default() },
    ];
    for (at, options) in cases.into_iter().enumerate() {
        let name = operations.begin(Operation::new(plain(), OperationKind::Receive(None), None, options)).unwrap();
        operations.get(name.0.into()).unwrap().detached = at == 2;
        let receive = Receive { operation: name.0.into(), capacity: 0, buffer: Buffer::NONE };
        assert!(!reports(&mut operations, receive));
        assert!(!operations.has_ended(name));
    }
    let blocking = operations.begin_unrecorded(operations.blocking, Buffer::NONE).unwrap();
    assert!(!reports(&mut operations, blocking) && operations.has_blocking_receive());
    let loan = Receive { operation: LOAN_FLAG, capacity: 0, buffer: Buffer::NONE };
    assert!(!reports(&mut operations, loan));
}

#[test]
fn completion_queue_ignores_detached_operations() {
    let mut operations = Operations::new();
    let cq = operations.add_cq().unwrap();
    let options = CompletionOptions { cq: Some(cq), ..CompletionOptions::default() };
    let operation = Operation::new(OperationMemory::Owned(Vec::new()), OperationKind::Receive(None), None, options);
    let name = operations.begin(operation).unwrap();
    operations.get(name.0.into()).unwrap().detached = true;
    operations.complete(name.0.into(), Outcome { status: Status::Done, length: 0 });
    assert_eq!((operations.next_completion(cq).unwrap().is_none(), operations.remove_cq(cq)), (true, Ok(())));
}

#[test]
fn completion_queue_counts_all_and_reports_as_asked() {
    let mut operations = Operations::new();
    let cq = operations.add_cq().unwrap();
    let mut begin = |errors_only| {
        let options = CompletionOptions { cq: Some(cq), user_data: 7, errors_only };
        let operation = Operation::new(OperationMemory::Owned(Vec::new()), OperationKind::Send(None), None, options);
        operations.begin(operation).unwrap()
    };
    let [loud, errors_only, fails] = [begin(false), begin(true), begin(true)];
    assert_eq!(operations.remove_cq(cq), Err(Error::WouldBlock), "operations are under way");
    for (operation, status) in [(loud, Status::Done), (errors_only, Status::Done), (fails, Status::LinkDown)] {
        operations.complete(u64::from(operation.0), Outcome { status, length: 1 });
        operations.complete(u64::from(operation.0), Outcome { status: Status::Exhausted, length: 2 });
    }
    let ended: Vec<_> =
        std::iter::from_fn(|| operations.next_completion(cq).unwrap()).map(|end| (end.operation, end.status)).collect();
    let known = operations.cq(cq).unwrap();
    assert_eq!((ended, known.counts), (vec![(loud, Status::Done), (fails, Status::LinkDown)], [2, 1]));
    assert_eq!((operations.remove_cq(cq), operations.count()), (Ok(()), 0));
    assert_ne!(operations.add_cq(), Some(cq), "its number is not used again so soon");
    assert_eq!(operations.remove_cq(cq), Err(Error::Unknown));
    let options = CompletionOptions { cq: Some(cq), ..CompletionOptions::default() };
    let late = Operation::new(OperationMemory::Owned(Vec::new()), OperationKind::Send(None), None, options);
    assert_eq!((operations.begin(late), operations.count()), (Err(Error::Unknown), 0));
}
