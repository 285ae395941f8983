//! Start points and end points on a circuit, for the program.

use crate::arrivals::{self, MAX_ACTIVE_BYTES};
use crate::circuit::Circuit;
use crate::end_points::{EndPoint, StartPoint, header_of};
use crate::error::Error;
use motet::node::{Mode, Outgoing};

impl Circuit {
    /// Makes an end point of this member: `function` runs for each message that a member sends to it ([`Circuit::send_to`]), with the rank of its sender,
    /// its tag and its bytes. It runs in the thread that makes progress, as a handler of the node does: it must not wait. `number`: one that the
    /// program has chosen, below 2^63, so that members know it without asking; `None`: a new one, which is never used again.
    ///
    /// Any number of end points share the channels and links of the circuit. The end point works until it is dropped, or the circuit has ended here.
    pub fn end_point(
        &self,
        number: Option<u64>,
        function: impl Fn(usize, u32, &[u8]) + Send + Sync + 'static,
    ) -> Result<EndPoint, Error> {
        EndPoint::new(self.end_points(), self.node(), (self.rank(), number), Box::new(function))
    }

    /// Sends a message of at most [`MAX_ACTIVE_BYTES`] to an end point, and waits until `bytes` is free. The first one to a member waits until that member
    /// has made an end point on this circuit. The messages of one thread to one member run in order, whatever their end points are; one that is longer
    /// than a packet may be overtaken.
    ///
    /// If there is no such end point, or it was closed, the message is dropped there and counted ([`Circuit::dropped`]); this call succeeds all the same.
    pub fn send_to(&self, to: StartPoint, tag: u32, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > MAX_ACTIVE_BYTES {
            return Err(Error::Invalid(format!("a message to an end point has at most {MAX_ACTIVE_BYTES} bytes")));
        }
        let (channels, header) = (self.end_points().channels(), header_of(to));
        self.send_on(channels, to.rank as usize, |channel, limit| {
            let tag = arrivals::tag_of(self.rank(), tag);
            let message = Outgoing { channel, tag, headers: &header, mode: Mode::Automatic };
            self.node().send_with(&message, &[bytes], limit)
        })
    }

    /// The messages of other members that this one has dropped, because it had no end point with their number.
    pub fn dropped(&self) -> u64 {
        self.end_points().target.dropped()
    }
}
