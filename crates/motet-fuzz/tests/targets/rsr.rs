//! What the receiver of a remote service request reads of its sender: the head, startpoints as bytes and text, and the data.

use motet_rsr::wire::{DATA_TAG, Head, MAX_HEAD, REPLY_TAG, ReplyPlace, ReplyStatus};
use motet_rsr::{Buffer, Format, Handler, Reader, Startpoint};

/// One message as a request, as a startpoint, and as data of either byte order.
pub fn request(input: &[u8]) {
    if let Ok((head, data)) = Head::parse(input) {
        assert!(input.ends_with(data), "data are the end of the message");
        let mut memory = [0; MAX_HEAD];
        let written = head.write(&mut memory);
        assert_eq!(Head::parse(written).expect("what was understood").0, head);
        let _ = head.status();
        match head.reply_to {
            Some(ReplyPlace::Startpoint(bytes)) => _ = Startpoint::from_bytes(bytes),
            Some(ReplyPlace::Back(tag)) => assert!(tag & REPLY_TAG != 0, "a tag that is not one of a reply"),
            None => {}
        }
    }
    if let Ok(start) = Startpoint::from_bytes(input) {
        assert_eq!(start.to_bytes(), input, "a startpoint has one form");
        assert_eq!(start.to_text().parse(), Ok(start.clone()));
        assert!(start.protocols().iter().all(|drivers| !drivers.is_empty()));
    }
    if let Some(start) = std::str::from_utf8(input).ok().and_then(|text| text.parse::<Startpoint>().ok()) {
        assert_eq!(start.to_text(), String::from_utf8_lossy(input).trim_ascii());
    }
    let Some((kinds, data)) = input.split_at_checked(8) else { return };
    for big_endian in [false, true] {
        let mut reader = Reader::new(data, Format { big_endian, long: if kinds[0] & 1 == 0 { 8 } else { 4 } });
        for kind in kinds {
            let before = reader.remaining();
            let got = match kind % 8 {
                0 => reader.get::<u16>().is_ok(),
                1 => reader.get::<f64>().is_ok(),
                2 => reader.get_array::<u32>().is_ok_and(|array| array.len() * 4 <= data.len()),
                3 => reader.get_str().is_ok(),
                4 => reader.get_block().is_ok(),
                5 => reader.get_startpoint().is_ok(),
                6 => reader.get_long().is_ok(),
                _ => reader.get_bool().is_ok(),
            };
            assert!(got == (reader.remaining() < before), "what fails takes nothing");
        }
    }
}

/// Well-formed messages.
pub fn request_seeds() -> Vec<Vec<u8>> {
    let mut start = b"MS\x01\x03\x02\x00tcp".to_vec();
    for (node, address) in [(1, "shm://a,tcp://10.0.0.1:700/5e"), (2, "tcp://[::1]:9/00")] {
        start.extend([node; 16]);
        start.extend([7, 0, 0, 0, 0, 0, 0, 0, address.len() as u8, 0]);
        start.extend(address.bytes());
    }
    let text = Startpoint::from_bytes(&start).map(|start| start.to_text()).unwrap_or_default();
    let mut seeds = vec![start.clone(), text.into_bytes()];
    for handler in [Handler::Number(3), Handler::Name("solve")] {
        for apart in [None, Some((1 << 20, DATA_TAG | 9))] {
            for reply_to in [None, Some(ReplyPlace::Startpoint(&start)), Some(ReplyPlace::Back(REPLY_TAG | 5))] {
                let head = Head { handler, apart, reply_to, is_reply: false, ..Head::reply(ReplyStatus::Done) };
                seeds.push([head.write(&mut [0; MAX_HEAD]), b"data"].concat());
            }
        }
    }
    let mut buffer = Buffer::new();
    buffer.put(7u16).put(1.5f64).put_array(&[1u32, 2, 3]).put_str("text").put_block(b"block");
    if let Ok(start) = Startpoint::from_bytes(&start) {
        buffer.put_startpoint(&start);
    }
    buffer.put_long(-3).put_bool(true);
    seeds.push([&[0, 1, 2, 3, 4, 5, 6, 7][..], &buffer.to_vec()].concat());
    seeds
}
