//! The handshake: the client asks for options until it has an export, or gives up.

use crate::blocks::Blocks;
use crate::wire::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, ClientFlags, ExportFlags, ExportLimits, MAX_PAYLOAD_BYTES,
    OPTION_HEADER_BYTES, OptionHeader, OptionKind, OptionReply, Problem, append_export, append_greeting,
    append_option_reply, parse_client_flags, parse_info_request, parse_meta_request,
};
use std::fmt;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::Arc;

/// Options that a client may ask for on one connection.
const MAX_OPTIONS: usize = 256;
/// The smallest and the best size of requests, bytes. There is no need for alignment.
const SMALLEST_BYTES: u32 = 1;
const PREFERRED_BYTES: u32 = 4096;

/// A disk, and the name by which clients ask for it. They get it by the empty name, too.
#[derive(Clone)]
pub struct Export {
    /// The name.
    pub name: String,
    /// The disk.
    pub blocks: Arc<dyn Blocks>,
}

impl fmt::Debug for Export {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Export").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a handshake has agreed on.
#[derive(Debug, Clone, Copy)]
pub struct Agreed {
    /// What requests are checked against.
    pub limits: ExportLimits,
    /// Replies are structured.
    pub structured: bool,
}

/// What the client has asked for until now.
#[derive(Debug, Default)]
struct Wishes {
    structured: bool,
    /// The metadata context was selected, for the export that has this name or the empty one.
    status_of: Option<Vec<u8>>,
}

/// Makes the handshake. `None`: the client has ended it. InvalidData: it has broken the protocol, and the connection must be closed.
pub fn negotiate(stream: &mut (impl Read + Write), export: &Export) -> Result<Option<Agreed>> {
    let mut reply = Vec::new();
    append_greeting(&mut reply);
    stream.write_all(&reply)?;
    let mut flags = [0; 4];
    stream.read_exact(&mut flags)?;
    let client = parse_client_flags(flags).ok_or_else(broken)?;
    let mut wishes = Wishes::default();
    let mut data = Vec::new();
    for _ in 0..MAX_OPTIONS {
        let mut header = [0; OPTION_HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let option = OptionHeader::parse(&header).ok_or_else(broken)?;
        data.resize(option.length, 0);
        stream.read_exact(&mut data)?;
        reply.clear();
        if option.kind == OptionKind::ExportName {
            let agreed = export.agree(&data, &wishes)?.ok_or_else(broken)?;
            let zeroes = !client.contains(ClientFlags::NO_ZEROES);
            append_export(agreed.limits.size, agreed.limits.flags, zeroes, &mut reply);
            stream.write_all(&reply)?;
            return Ok(Some(agreed));
        }
        if !client.contains(ClientFlags::FIXED_NEWSTYLE) {
            return Err(broken());
        }
        let answered = answer(export, &option, &data, &mut wishes, &mut reply);
        let last = match &answered {
            Ok(_) => OptionReply::Ack,
            Err(problem) => OptionReply::Refused(*problem),
        };
        append_option_reply(option.number, &last, &mut reply);
        stream.write_all(&reply)?;
        match answered {
            Ok(Some(agreed)) => return Ok(Some(agreed)),
            Ok(None) if option.kind == OptionKind::Abort => return Ok(None),
            _ => {}
        }
    }
    Err(broken())
}

/// Answers an option but for the last reply; returns what was agreed if the handshake ends.
fn answer(
    export: &Export,
    option: &OptionHeader,
    data: &[u8],
    wishes: &mut Wishes,
    reply: &mut Vec<u8>,
) -> std::result::Result<Option<Agreed>, Problem> {
    let mut say = |part: &OptionReply<'_>| append_option_reply(option.number, part, reply);
    match option.kind {
        OptionKind::ExportName | OptionKind::Unknown => Err(Problem::Unsupported),
        OptionKind::Abort => Ok(None),
        OptionKind::List | OptionKind::StructuredReply if !data.is_empty() => Err(Problem::Invalid),
        OptionKind::List => {
            say(&OptionReply::Server(export.name.as_bytes()));
            Ok(None)
        }
        OptionKind::StructuredReply => {
            wishes.structured = true;
            Ok(None)
        }
        OptionKind::Info | OptionKind::Go => {
            let request = parse_info_request(data)?;
            let agreed = export.agree(request.name, wishes).map_err(|_| Problem::Platform)?.ok_or(Problem::Unknown)?;
            say(&OptionReply::Export(agreed.limits.size, agreed.limits.flags));
            if request.wants_name {
                say(&OptionReply::Name(export.name.as_bytes()));
            }
            if request.wants_block_size {
                say(&OptionReply::BlockSize(SMALLEST_BYTES, PREFERRED_BYTES, MAX_PAYLOAD_BYTES));
            }
            Ok((option.kind == OptionKind::Go).then_some(agreed))
        }
        OptionKind::ListMetaContext | OptionKind::SetMetaContext => {
            let selects = option.kind == OptionKind::SetMetaContext;
            if selects {
                wishes.status_of = None;
            }
            let (name, queries) = parse_meta_request(data)?;
            if selects && !wishes.structured {
                return Err(Problem::Invalid);
            }
            if !export.has_name(name) {
                return Err(Problem::Unknown);
            }
            // A list has wildcards: no query at all, and the namespace alone.
            let found = queries.iter().any(|query| *query == ALLOCATION_CONTEXT.as_bytes())
                || !selects && (queries.is_empty() || queries.contains(&&b"base:"[..]));
            if found {
                let id = if selects { ALLOCATION_CONTEXT_ID } else { 0 };
                say(&OptionReply::MetaContext(id, ALLOCATION_CONTEXT));
            }
            if found && selects {
                wishes.status_of = Some(name.to_vec());
            }
            Ok(None)
        }
    }
}

impl Export {
    fn has_name(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// What a client gets that asks for the export `name`. `None`: there is no such export.
    fn agree(&self, name: &[u8], wishes: &Wishes) -> Result<Option<Agreed>> {
        if !self.has_name(name) {
            return Ok(None);
        }
        let mut flags = ExportFlags::HAS_FLAGS | ExportFlags::FLUSH | ExportFlags::MULTI_CONN | ExportFlags::CACHE;
        let changes = ExportFlags::FUA | ExportFlags::TRIM | ExportFlags::WRITE_ZEROES | ExportFlags::FAST_ZERO;
        flags |= if self.blocks.is_read_only() { ExportFlags::READ_ONLY } else { changes };
        flags.set(ExportFlags::DF, wishes.structured);
        let has_status = wishes.structured && wishes.status_of.as_deref() == Some(name);
        let limits = ExportLimits { size: self.blocks.size()?, flags, has_status };
        Ok(Some(Agreed { limits, structured: wishes.structured }))
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::InvalidData, "the client has broken the protocol")
}
