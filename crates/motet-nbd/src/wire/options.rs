//! The handshake: greeting, options of the client, replies to them.

use super::{ExportFlags, take_string, take_u16, take_u32, take_u64};
use bitflags::bitflags;

const GREETING_MAGIC: &[u8; 8] = b"NBDMAGIC";
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The server speaks fixed newstyle, and leaves the zeroes out if the client agrees.
const SERVER_FLAGS: u16 = 0b11;
/// Zeroes behind an export, unless the client does without them.
const EXPORT_PADDING: usize = 124;
/// Longest string of the protocol, bytes.
const MAX_STRING_BYTES: usize = 4096;
/// Queries for metadata contexts in one option.
const MAX_QUERIES: u32 = 64;
/// Information requests in one option.
const MAX_INFORMATION: u16 = 64;

/// Bytes of the header of an option.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Longest data of an option, bytes. A client that sends more is disconnected.
pub const MAX_OPTION_BYTES: usize = 64 << 10;

bitflags! {
    /// What the client answers to the greeting.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// It understands replies to options.
        const FIXED_NEWSTYLE = 1;
        /// It does without the zeroes behind an export.
        const NO_ZEROES = 1 << 1;
    }
}

/// An option that a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// The export, without a reply to a failure.
    ExportName,
    /// The end.
    Abort,
    /// The names of all exports.
    List,
    /// What an export is.
    Info,
    /// As `Info`, and the handshake ends.
    Go,
    /// Structured replies.
    StructuredReply,
    /// `NBD_OPT_LIST_META_CONTEXT`: the client asks for the names of the metadata contexts.
    ListMetaContext,
    /// `NBD_OPT_SET_META_CONTEXT`: the client chooses metadata contexts.
    SetMetaContext,
    /// Something else, encryption for example.
    Unknown,
}

/// The header of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// The number of the option, which replies repeat.
    pub number: u32,
    /// What it is.
    pub kind: OptionKind,
    /// Bytes of its data, at most [`MAX_OPTION_BYTES`].
    pub length: usize,
}

impl OptionHeader {
    /// Reads a header. `None`: no client sends that.
    pub fn parse(header: &[u8; OPTION_HEADER_BYTES]) -> Option<Self> {
        let bytes = &mut &header[..];
        if take_u64(bytes)? != OPTION_MAGIC {
            return None;
        }
        let number = take_u32(bytes)?;
        let length = usize::try_from(take_u32(bytes)?).ok().filter(|length| *length <= MAX_OPTION_BYTES)?;
        let kind = match number {
            1 => OptionKind::ExportName,
            2 => OptionKind::Abort,
            3 => OptionKind::List,
            6 => OptionKind::Info,
            7 => OptionKind::Go,
            8 => OptionKind::StructuredReply,
            9 => OptionKind::ListMetaContext,
            10 => OptionKind::SetMetaContext,
            _ => OptionKind::Unknown,
        };
        Some(Self { number, kind, length })
    }
}

/// Why an option is refused. The values are those of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Problem {
    /// The option is not known.
    Unsupported = 1 << 31 | 1,
    /// Its data are wrong.
    Invalid = 1 << 31 | 3,
    /// There is no such export.
    Unknown = 1 << 31 | 6,
    /// It asks for too much.
    TooBig = 1 << 31 | 9,
    /// The export cannot be used at present.
    Platform = 1 << 31 | 4,
}

/// A reply to an option.
#[derive(Debug, Clone, Copy)]
pub enum OptionReply<'a> {
    /// The end of a successful option.
    Ack,
    /// The name of an export.
    Server(&'a [u8]),
    /// Size and abilities of an export.
    Export(u64, ExportFlags),
    /// The canonical name of an export.
    Name(&'a [u8]),
    /// The sizes of requests: smallest, preferred, largest, bytes.
    BlockSize(u32, u32, u32),
    /// A metadata context: its number and name.
    MetaContext(u32, &'a str),
    /// The option is refused.
    Refused(Problem),
}

/// What the server says first.
pub fn append_greeting(to: &mut Vec<u8>) {
    to.extend_from_slice(GREETING_MAGIC);
    to.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    to.extend_from_slice(&SERVER_FLAGS.to_be_bytes());
}

/// The client's answer to the greeting. `None`: it sets flags that do not exist.
pub fn parse_client_flags(bytes: [u8; 4]) -> Option<ClientFlags> {
    ClientFlags::from_bits(u32::from_be_bytes(bytes))
}

/// The answer to [`OptionKind::ExportName`].
pub fn append_export(size: u64, flags: ExportFlags, zeroes: bool, to: &mut Vec<u8>) {
    to.extend_from_slice(&size.to_be_bytes());
    to.extend_from_slice(&flags.bits().to_be_bytes());
    if zeroes {
        to.resize(to.len() + EXPORT_PADDING, 0);
    }
}

/// A reply to the option with this number.
pub fn append_option_reply(option: u32, reply: &OptionReply<'_>, to: &mut Vec<u8>) {
    const ACK: u32 = 1;
    const SERVER: u32 = 2;
    const INFO: u32 = 3;
    const META_CONTEXT: u32 = 4;
    let mut data = Vec::new();
    let kind = match *reply {
        OptionReply::Ack => ACK,
        OptionReply::Server(name) => {
            data.extend_from_slice(&u32::try_from(name.len()).unwrap_or(0).to_be_bytes());
            data.extend_from_slice(name);
            SERVER
        }
        OptionReply::Export(size, flags) => {
            data.extend_from_slice(&InfoRequest::EXPORT.to_be_bytes());
            data.extend_from_slice(&size.to_be_bytes());
            data.extend_from_slice(&flags.bits().to_be_bytes());
            INFO
        }
        OptionReply::Name(name) => {
            data.extend_from_slice(&InfoRequest::NAME.to_be_bytes());
            data.extend_from_slice(name);
            INFO
        }
        OptionReply::BlockSize(smallest, preferred, largest) => {
            data.extend_from_slice(&InfoRequest::BLOCK_SIZE.to_be_bytes());
            for size in [smallest, preferred, largest] {
                data.extend_from_slice(&size.to_be_bytes());
            }
            INFO
        }
        OptionReply::MetaContext(id, name) => {
            data.extend_from_slice(&id.to_be_bytes());
            data.extend_from_slice(name.as_bytes());
            META_CONTEXT
        }
        OptionReply::Refused(problem) => problem as u32,
    };
    to.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    to.extend_from_slice(&option.to_be_bytes());
    to.extend_from_slice(&kind.to_be_bytes());
    to.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
    to.extend_from_slice(&data);
}

/// The data of [`OptionKind::Info`] and [`OptionKind::Go`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export.
    pub name: &'a [u8],
    /// The client wants its canonical name.
    pub wants_name: bool,
    /// The client wants, and will respect, the sizes of requests.
    pub wants_block_size: bool,
}

impl InfoRequest<'_> {
    const EXPORT: u16 = 0;
    const NAME: u16 = 1;
    const BLOCK_SIZE: u16 = 3;
}

/// Reads the data of [`OptionKind::Info`] and [`OptionKind::Go`].
pub fn parse_info_request(data: &[u8]) -> Result<InfoRequest<'_>, Problem> {
    let bytes = &mut &*data;
    let name = take_name(bytes)?;
    let count = take_u16(bytes).ok_or(Problem::Invalid)?;
    if count > MAX_INFORMATION {
        return Err(Problem::TooBig);
    }
    let mut request = InfoRequest { name, wants_name: false, wants_block_size: false };
    for _ in 0..count {
        match take_u16(bytes).ok_or(Problem::Invalid)? {
            InfoRequest::NAME => request.wants_name = true,
            InfoRequest::BLOCK_SIZE => request.wants_block_size = true,
            _ => {}
        }
    }
    if bytes.is_empty() { Ok(request) } else { Err(Problem::Invalid) }
}

/// Reads the data of the two options for metadata contexts: the export, and the queries.
pub fn parse_meta_request(data: &[u8]) -> Result<(&[u8], Vec<&[u8]>), Problem> {
    let bytes = &mut &*data;
    let name = take_name(bytes)?;
    let count = take_u32(bytes).ok_or(Problem::Invalid)?;
    if count > MAX_QUERIES {
        return Err(Problem::TooBig);
    }
    let queries = (0..count).map(|_| take_name(bytes)).collect::<Result<_, _>>()?;
    if bytes.is_empty() { Ok((name, queries)) } else { Err(Problem::Invalid) }
}

/// A string of the length that the protocol allows.
fn take_name<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Problem> {
    take_string(bytes).filter(|name| name.len() <= MAX_STRING_BYTES).ok_or(Problem::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(magic: u64, option: u32, length: u32) -> Option<OptionHeader> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&magic.to_be_bytes());
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        OptionHeader::parse(bytes.as_slice().try_into().expect("a header"))
    }

    #[test]
    fn headers_with_another_magic_or_too_much_data_are_refused() {
        let go = header(OPTION_MAGIC, 7, 9).expect("an option");
        assert_eq!(go, OptionHeader { number: 7, kind: OptionKind::Go, length: 9 });
        assert_eq!(header(OPTION_MAGIC, 999, 0).expect("an option").kind, OptionKind::Unknown);
        assert_eq!(header(OPTION_MAGIC + 1, 7, 9), None);
        assert_eq!(header(OPTION_MAGIC, 7, u32::MAX), None);
    }

    #[test]
    fn the_data_of_go_are_a_name_and_requests() {
        let data = [0, 0, 0, 1, b'x', 0, 3, 0, 3, 0, 1, 0, 77];
        let expected = InfoRequest { name: b"x", wants_name: true, wants_block_size: true };
        assert_eq!(parse_info_request(&data), Ok(expected));
        for end in 0..data.len() {
            assert_eq!(parse_info_request(&data[..end]), Err(Problem::Invalid), "the first {end} bytes");
        }
        assert_eq!(parse_info_request(&[&data[..], &[0]].concat()), Err(Problem::Invalid), "a byte too much");
        assert_eq!(parse_info_request(&[0xff, 0xff, 0xff, 0xff, 0, 0]), Err(Problem::Invalid), "a name of 4 GiB");
        assert_eq!(parse_info_request(&[0, 0, 0, 0, 0xff, 0xff]), Err(Problem::TooBig));
    }

    #[test]
    fn queries_for_contexts_are_bounded() {
        let data = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5][..], b"base:"].concat();
        assert_eq!(parse_meta_request(&data), Ok((&b""[..], vec![&b"base:"[..]])));
        assert_eq!(parse_meta_request(&data[..data.len() - 1]), Err(Problem::Invalid));
        assert_eq!(parse_meta_request(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), Err(Problem::TooBig));
    }

    #[test]
    fn client_flags_that_do_not_exist_are_refused() {
        assert_eq!(parse_client_flags([0, 0, 0, 3]), Some(ClientFlags::all()));
        assert_eq!(parse_client_flags([0, 0, 0, 4]), None);
    }
}
