//! Messages whose body is a range of a file. A transport that takes files sends them from there, without a copy in this process; for others they are read
//! into memory first.

use super::operations::{CompletionOptions, Operation, OperationKind};
use super::send::Outgoing;
use super::{Channel, Error, Node, OperationId};
use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::{FileRange, Mode, Packets, Send};
use motet_sys::file_cache;
use motet_sys::user_memory::OperationMemory;

/// Whether the kernel has all of a range in memory, so that who sends it does not wait for a device.
pub fn is_cached(file: &FileRange) -> bool {
    file_cache::is_cached(file.file(), file.offset(), file.len())
}

impl Node {
    /// Whether files are sent from where they are on the link of this channel.
    pub fn sends_files(&self, channel: Channel) -> bool {
        let Ok(mut node) = self.lock() else { return false };
        node.link(channel.link).is_ok_and(|(link_state, messages)| {
            link_state.with(channel.link, messages, |_, packets, _| packets.takes_files())
        })
    }

    /// Begins to send a message whose body is a range of a file, whatever its mode is; it completes when a receive has it. The file is read while the
    /// message is sent, by a thread that makes progress: see [`is_cached`]. Bytes that the file has no more by then are zeros. If it cannot be read, the
    /// link goes down, so the caller makes sure of that.
    ///
    /// [`Error::WouldBlock`]: there is no room, and nothing is done. [`Error::Closed`]: the file cannot be read.
    pub fn start_send_file(
        &self,
        message: &Outgoing<'_>,
        file: FileRange,
        options: CompletionOptions,
    ) -> Result<Option<OperationId>, Error> {
        let &Outgoing { channel, tag, headers, .. } = message;
        if file.is_empty() || !self.sends_files(channel) {
            let bytes = file_cache::read(file.file(), file.offset(), file.len()).map_err(|_| Error::Closed)?;
            let sent = self.start_send(message, OperationMemory::Owned(bytes), Vec::new(), options);
            return sent.map_err(|(error, ..)| error);
        }
        let length = file.len();
        let memory = OperationMemory::Owned(Vec::new());
        let mut operation = Operation::new(memory, OperationKind::Send(None), Some(channel), options);
        operation.set_file(file);
        let mut node = self.lock()?;
        let name = node.messages.operations.begin(operation)?;
        let place = RemoteAddress::default();
        let send = Send {
            channel: channel.id,
            tag,
            headers,
            body: &[],
            mode: Mode::Synchronous,
            operation: u64::from(name.0),
            place,
        };
        let sent = match node.link(channel.link) {
            Ok((link_state, messages)) => {
                Ok(link_state.with(channel.link, messages, |proto, packets, _| proto.send_rts(packets, &send, length)))
            }
            Err(error) => Err(error),
        };
        let number = match sent {
            Ok(Ok(number)) => number,
            failed => {
                node.messages.operations.withdraw(name);
                return Err(match failed {
                    Ok(Err(rejection)) => node.send_error(channel, rejection),
                    Ok(Ok(_)) => Error::Unknown,
                    Err(error) => error,
                });
            }
        };
        if let Some(operation) = node.messages.operations.get(u64::from(name.0)) {
            operation.kind = OperationKind::Send(Some(number));
        }
        node.flush_link(channel.link);
        Ok(Some(name))
    }
}
