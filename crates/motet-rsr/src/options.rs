//! How a process sends and receives requests.

/// The threads that receive requests and run handlers that are not threaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reception {
    /// The program's own, when it calls [`crate::Rsr::poll`] or waits for the reply of a call. No thread is made; threaded handlers run there, too.
    Caller,
    /// One thread for all channels.
    #[default]
    OneThread,
    /// A thread for each channel, so the requests of one peer do not wait for a handler that runs for another.
    ThreadPerChannel,
}

/// Options of [`crate::Rsr::attach`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Who receives.
    pub reception: Reception,
    /// Data of up to so many bytes travel in one packet with the head of their request; 0: always in two. At most [`MAX_ONE_PACKET`]; must not be
    /// larger than what receivers accept, which is [`MAX_ONE_PACKET`] for each.
    pub one_packet: usize,
    /// The longest request that is received, bytes.
    pub max_request: usize,
    /// Memory for requests beyond [`MAX_ONE_PACKET`] that have not been handled, bytes. One link gets a quarter, and requests of more than a 16th leave a
    /// quarter to shorter ones.
    pub memory: usize,
    /// Most threads for threaded handlers.
    pub workers: usize,
    /// Requests that wait for such a thread. When there are so many, reception pauses, and senders wait.
    pub queue: usize,
    /// The longest time that a handler's reply is kept for a peer that does not receive, ns. A peer is disconnected whose data arrive for longer than this
    /// and a second for each MiB, while other data wait for memory or requests behind them fill its line. Time in which this process does not receive does
    /// not count.
    pub reply_limit_ns: u64,
}

/// The most data in one packet, bytes. Longer messages are announced by the engine, and fetched by their receiver.
pub const MAX_ONE_PACKET: usize = 32 << 10;

impl Default for Options {
    fn default() -> Self {
        Self {
            reception: Reception::default(),
            one_packet: MAX_ONE_PACKET,
            max_request: 256 << 20,
            memory: 1 << 30,
            workers: 8,
            queue: 64,
            reply_limit_ns: 10_000_000_000,
        }
    }
}

/// What a process has done since it attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests that were handled, or given to a thread.
    pub handled: u64,
    /// Requests for endpoints that are not there, dropped.
    pub no_endpoint: u64,
    /// Requests for handlers that are not there, dropped.
    pub no_handler: u64,
    /// Messages that are no requests, dropped.
    pub malformed: u64,
    /// Requests that are too long, dropped.
    pub too_long: u64,
    /// Requests whose data did not come, because their sender died or did not send them.
    pub incomplete: u64,
    /// Replies that came after the deadline of their call, dropped.
    pub late_replies: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Requests whose data had to be converted.
    pub foreign: u64,
}
