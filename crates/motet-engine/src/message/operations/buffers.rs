//! Receives that are posted without a record: what their completions need is kept in the posted receive itself.

use super::{CompletionOptions, CqId, LOAN_FLAG, Operation, OperationKind, Operations, UNRECORDED_FLAG};
use crate::message::Error;
use motet_proto::message::matching::Receive;
use motet_proto::message::slab::{MAX_RECORDS, SlabId};
use motet_sys::user_memory::{OperationMemory, UserMemory};

/// The memory and the user data of a receive that is posted without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Where the body goes.
    pub span: UserMemory,
    /// The program's user data, which the completion returns.
    pub user_data: u64,
}

impl Buffer {
    /// The buffer of a receive that has a record.
    pub const NONE: Self = Self { span: UserMemory::EMPTY, user_data: 0 };
}

impl Operations {
    /// Starts an unrecorded receive that completes in `cq`.
    ///
    /// Errors: [`Error::Full`] if there are too many operations; [`Error::Unknown`] if there is no such completion queue.
    #[inline(always)]
    pub fn begin_unrecorded(&mut self, cq: CqId, buffer: Buffer) -> Result<Receive<Buffer>, Error> {
        let known = self.completion_queues.get_by_id(SlabId(cq.0)).ok_or(Error::Unknown)?;
        if self.pool.count() + self.unrecorded >= MAX_RECORDS {
            return Err(Error::Full); // each unrecorded receive may need a record later
        }
        known.under_way += 1;
        self.unrecorded += 1;
        Ok(Receive { operation: UNRECORDED_FLAG | u64::from(cq.0), capacity: buffer.span.len() as u64, buffer })
    }

    /// The name of a receive that has been removed from the matching table. An unrecorded receive gets a record by this call.
    #[inline(always)]
    pub fn name_of(&mut self, receive: Receive<Buffer>) -> u64 {
        if receive.operation & UNRECORDED_FLAG == 0 { receive.operation } else { self.give_record(receive) }
    }

    #[inline(never)]
    fn give_record(&mut self, receive: Receive<Buffer>) -> u64 {
        let Buffer { span, user_data } = receive.buffer;
        let options = CompletionOptions { cq: Some(CqId(receive.operation as u32)), user_data, errors_only: false };
        let mut operation = Operation::new(OperationMemory::User(span), OperationKind::Receive(None), None, options);
        operation.nameless = true;
        self.unrecorded -= 1;
        // There is room: `begin_unrecorded` and `begin` count every unrecorded receive as a record.
        self.pool.insert(operation).map_or(LOAN_FLAG | u64::from(u32::MAX), |number| u64::from(number.0))
    }

    /// Whether a posted receive is an unrecorded one of `cq`.
    pub fn is_unrecorded(receive: &Receive<Buffer>, cq: CqId) -> bool {
        receive.operation == UNRECORDED_FLAG | u64::from(cq.0)
    }

    /// Operations under way that were posted as unrecorded receives of `cq`, and for which `which` is true.
    pub fn nameless_of(&self, cq: CqId, which: impl Fn(&Operation) -> bool) -> Vec<SlabId> {
        let ours = |index: &u32| {
            let known = self.pool.get(*index);
            known
                .is_some_and(|known| known.nameless && !known.is_queued && known.options.cq == Some(cq) && which(known))
        };
        self.pool.indices().filter(ours).map(|index| self.pool.number(index)).collect()
    }
}
