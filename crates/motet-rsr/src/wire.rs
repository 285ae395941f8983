//! The head of a request, as bytes. Parsed as an attack: every length is bounded before it is used.
//!
//! | byte | what |
//! | --- | --- |
//! | 0 | version, 2 |
//! | 1 | the format of the data ([`crate::Format`]) |
//! | 2 | flags |
//! | 3 | length of the handler's name, if it has one |
//! | 4 | number of the handler; of a reply: its status |
//!
//! All numbers of the head are little-endian. Then follow, each if its flag is set: the name; the length and the tag of the data that come in a
//! message of their own (8 and 8 bytes); the startpoint for the reply with its length (2 bytes), or the tag of a reply that is to come back by the
//! channel of the request (8). Then follow the data, unless they come in a message of their own. The message's tag says which endpoint it is for.

use crate::format::{Format, Malformed};

/// Longest name of a handler, bytes.
pub const MAX_NAME: usize = 64;
/// Longest startpoint for a reply, bytes.
pub const MAX_REPLY_TO: usize = 1100;
/// Longest head, bytes.
pub const MAX_HEAD: usize = HEAD + MAX_NAME + 16 + 2 + MAX_REPLY_TO;
/// Longest head without a startpoint for a reply, bytes.
pub const SMALL_HEAD: usize = HEAD + MAX_NAME + 16 + 8;
/// Bit of a message's tag: it holds the data of a request.
pub const DATA_TAG: u64 = 1 << 62;
/// Bit of a message's tag: it is the reply to a call.
pub const REPLY_TAG: u64 = 1 << 63;
/// The bits of a tag that name an endpoint.
pub const ENDPOINT_BITS: u64 = DATA_TAG - 1;

const HEAD: usize = 8;
const VERSION: u8 = 2;
const NAMED: u8 = 1;
const APART: u8 = 2;
const CALL: u8 = 4;
const REPLY: u8 = 8;
const BACK: u8 = 16;

/// The handler that a request names: a number or a name in the table of its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Handler<'a> {
    /// By number.
    Number(u32),
    /// By name, of 1 to 64 bytes.
    Name(&'a str),
}

impl From<u32> for Handler<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl<'a> From<&'a str> for Handler<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

/// How a call has ended at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyStatus {
    /// A handler has answered.
    Done,
    /// There is no such endpoint.
    NoEndpoint,
    /// The endpoint has no such handler.
    NoHandler,
    /// The handler has ended without an answer, or panicked.
    NotAnswered,
    /// The request is longer than the receiver takes.
    TooLong,
}

impl ReplyStatus {
    const ALL: [Self; 5] = [Self::Done, Self::NoEndpoint, Self::NoHandler, Self::NotAnswered, Self::TooLong];
}

/// Where the reply to a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyPlace<'a> {
    /// To a startpoint, as bytes.
    Startpoint(&'a [u8]),
    /// Back by the channel of the request, with this tag. For a receiver that knows its sender's startpoint from an earlier call.
    Back(u64),
}

/// The head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The format of the data.
    pub format: Format,
    /// The function; of a reply its status.
    pub handler: Handler<'a>,
    /// The data come in a message of their own: their length and its tag.
    pub apart: Option<(u64, u64)>,
    /// Where the reply goes.
    pub reply_to: Option<ReplyPlace<'a>>,
    /// It is a reply.
    pub is_reply: bool,
}

impl<'a> Head<'a> {
    /// The head of a reply.
    pub fn reply(status: ReplyStatus) -> Self {
        let handler = Handler::Number(status as u32);
        Self { format: Format::HERE, handler, apart: None, reply_to: None, is_reply: true }
    }

    /// How a call has ended, if this is a reply.
    pub fn status(&self) -> Option<ReplyStatus> {
        match self.handler {
            Handler::Number(number) if self.is_reply => ReplyStatus::ALL.get(number as usize).copied(),
            _ => None,
        }
    }

    /// Its bytes, if it is as short as heads are.
    #[inline]
    pub fn word(&self) -> Option<[u8; HEAD]> {
        let (Handler::Number(number), None, None) = (self.handler, self.apart, self.reply_to) else { return None };
        let flags = if self.is_reply { REPLY } else { 0 };
        let [a, b, c, d] = number.to_le_bytes();
        Some([VERSION, self.format.tag(), flags, 0, a, b, c, d])
    }

    /// Writes it to `into`, and returns its bytes. `into` has [`SMALL_HEAD`] bytes if there is no startpoint for a reply, otherwise [`MAX_HEAD`].
    #[inline]
    pub fn write<'b>(&self, into: &'b mut [u8]) -> &'b [u8] {
        if let Some(word) = self.word() {
            into[..HEAD].copy_from_slice(&word);
            return &into[..HEAD];
        }
        let (number, name) = match self.handler {
            Handler::Number(number) => (number, ""),
            Handler::Name(name) => (0, name),
        };
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(matches!(self.handler, Handler::Name(_)), NAMED)
            | flag(self.apart.is_some(), APART)
            | flag(matches!(self.reply_to, Some(ReplyPlace::Startpoint(_))), CALL)
            | flag(matches!(self.reply_to, Some(ReplyPlace::Back(_))), BACK)
            | flag(self.is_reply, REPLY);
        into[..4].copy_from_slice(&[VERSION, self.format.tag(), flags, name.len() as u8]);
        into[4..HEAD].copy_from_slice(&number.to_le_bytes());
        let mut at = HEAD;
        let mut put = |bytes: &[u8]| {
            into[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(name.as_bytes());
        if let Some((length, tag)) = self.apart {
            put(&length.to_le_bytes());
            put(&tag.to_le_bytes());
        }
        match self.reply_to {
            Some(ReplyPlace::Startpoint(start)) => {
                put(&(start.len() as u16).to_le_bytes());
                put(start);
            }
            Some(ReplyPlace::Back(tag)) => put(&tag.to_le_bytes()),
            None => {}
        }
        &into[..at]
    }

    /// Reads the head of a message, and returns it with what follows.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (head, mut rest) = bytes.split_first_chunk::<HEAD>().ok_or(Malformed("a head that is too short"))?;
        let [version, format, flags, name, number @ ..] = *head;
        if version != VERSION || flags & !(NAMED | APART | CALL | REPLY | BACK) != 0 {
            return Err(Malformed("a head of another version"));
        }
        let mut take = |length: usize| {
            let (taken, after) = rest.split_at_checked(length).ok_or(Malformed("a head that is cut short"))?;
            rest = after;
            Ok::<_, Malformed>(taken)
        };
        let handler = match (flags & NAMED != 0, usize::from(name)) {
            (false, 0) => Handler::Number(u32::from_le_bytes(number)),
            (true, 1..=MAX_NAME) => {
                let name = std::str::from_utf8(take(name.into())?);
                Handler::Name(name.map_err(|_| Malformed("a handler's name that is not UTF-8"))?)
            }
            _ => return Err(Malformed("a handler's name of a wrong length")),
        };
        let word =
            |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).map_err(|_| Malformed("a head that is cut short"));
        let apart = match flags & APART != 0 {
            true => Some((word(take(8)?)?, word(take(8)?)?)),
            false => None,
        };
        if apart.is_some_and(|(_, tag)| tag & (REPLY_TAG | DATA_TAG) != DATA_TAG) {
            return Err(Malformed("a tag that is not one of data"));
        }
        let reply_to = match (flags & CALL != 0, flags & BACK != 0) {
            (true, false) => {
                let length = take(2)?;
                let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
                if length > MAX_REPLY_TO {
                    return Err(Malformed("a startpoint for the reply that is too long"));
                }
                Some(ReplyPlace::Startpoint(take(length)?))
            }
            (false, true) => Some(ReplyPlace::Back(word(take(8)?)?)),
            (false, false) => None,
            (true, true) => return Err(Malformed("two places for one reply")),
        };
        if matches!(reply_to, Some(ReplyPlace::Back(tag)) if tag & (REPLY_TAG | DATA_TAG) != REPLY_TAG) {
            return Err(Malformed("a tag that is not one of a reply"));
        }
        Ok((Self { format: Format::of_tag(format)?, handler, apart, reply_to, is_reply: flags & REPLY != 0 }, rest))
    }
}

/// Whether it can be the name of a handler.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        for handler in [Handler::Number(7), Handler::Name("solve")] {
            for apart in [None, Some((1 << 40, DATA_TAG | 5))] {
                for reply_to in
                    [None, Some(ReplyPlace::Startpoint(b"somewhere")), Some(ReplyPlace::Back(REPLY_TAG | 7))]
                {
                    let head = Head { format: Format::HERE, handler, apart, reply_to, is_reply: false };
                    let mut memory = [0; MAX_HEAD];
                    let bytes = [head.write(&mut memory), b"data"].concat();
                    assert_eq!(Head::parse(&bytes).unwrap(), (head, &b"data"[..]));
                    for cut in 0..bytes.len() - 4 {
                        assert!(Head::parse(&bytes[..cut]).is_err(), "{cut}");
                    }
                }
            }
        }
        let status = Head::reply(ReplyStatus::NoHandler).status();
        assert_eq!(status, Some(ReplyStatus::NoHandler));
    }

    #[test]
    fn wrong_heads_are_refused() {
        let good = *Head::reply(ReplyStatus::Done).write(&mut [0; MAX_HEAD]).first_chunk::<8>().unwrap();
        for (at, value) in [(0, 1), (1, 4), (2, 32), (2, 16), (3, 1)] {
            let mut wrong = good;
            wrong[at] = value;
            assert!(Head::parse(&wrong).is_err(), "{at}");
        }
        let mut wrong = good;
        wrong[4] = 9;
        assert_eq!(Head::parse(&wrong).unwrap().0.status(), None);
        for tag in [7, DATA_TAG | 7, REPLY_TAG | DATA_TAG | 7] {
            let head = Head { reply_to: Some(ReplyPlace::Back(tag)), ..Head::reply(ReplyStatus::Done) };
            assert!(Head::parse(head.write(&mut [0; MAX_HEAD])).is_err(), "{tag:x}");
        }
        let back = Head { reply_to: Some(ReplyPlace::Back(REPLY_TAG | 7)), ..Head::reply(ReplyStatus::Done) };
        let mut both = [back.write(&mut [0; MAX_HEAD]), &[0; 8]].concat();
        both[2] |= CALL;
        assert!(Head::parse(&both).is_err());
    }

    /// A cell of the engine holds 40 bytes besides its own head, so a call and a request without data take one cache line each.
    #[test]
    fn heads_of_short_calls_fit_a_cell() {
        let handler = Handler::Number(u32::MAX);
        let call = Head {
            handler,
            is_reply: false,
            reply_to: Some(ReplyPlace::Back(REPLY_TAG | ENDPOINT_BITS)),
            ..Head::reply(ReplyStatus::Done)
        };
        assert_eq!(call.write(&mut [0; SMALL_HEAD]).len(), 16);
        assert_eq!(Head { reply_to: None, ..call }.write(&mut [0; SMALL_HEAD]).len(), 8);
    }
}
