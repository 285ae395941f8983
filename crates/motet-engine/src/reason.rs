//! Reasons for the path of a stream or link: a code for records and counters, and a text for users.

use motet_wire::stream::record::State;

/// A reason code. Codes are never reused; the stats file counts the connections that stayed on TCP by code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u32);

macro_rules! reasons {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Reason {
            $(#[doc = $text] pub const $name: Self = Self($code);)*
        }
        /// The text of a code, for users.
        pub fn text(code: u32) -> &'static str {
            match code {
                $($code => $text,)*
                _ => "unknown reason (written by another version of Motet)",
            }
        }
        /// Every code.
        pub const ALL: &[Reason] = &[$(Reason($code)),*];
    };
}

reasons! {
    FASTEST = 0, "the fastest path there is";
    PENDING = 1, "the upgrade begins after the first few messages";
    OTHER_HOST = 2, "the peer is on another host or in another network namespace";
    PEER_WITHOUT_MOTET = 3, "the peer makes no offer: it does not run under Motet, keeps the connection on TCP, or has not used it yet";
    OTHER_USER = 4, "the peer runs as another user; memory is offered to the same user only";
    VERSION = 5, "the peer's Motet has another segment layout";
    FORBIDDEN = 6, "the driver is switched off by MOTET_DRIVERS";
    NO_MEMORY = 7, "no memory or descriptors for a segment";
    BAD_SEGMENT = 8, "the peer offered an invalid segment: not sealed, incomplete or inconsistent";
    BAD_OFFER = 9, "the peer's offer does not belong to this connection";
    NOT_PERMITTED = 10, "the kernel refuses what the driver needs; check for a sandbox";
    TABLE_FULL = 11, "the process has more streams than MOTET_STREAMS allows";
    NOT_TCP = 12, "not a connected TCP socket";
    BROKEN = 13, "the peer violated the protocol; the connection was reset";
    ORDER = 14, "bytes bypassed Motet, so their order is unknown; the connection was reset";
    SHARED = 15, "several processes use the socket";
    STDIO = 16, "stdio uses the descriptor";
    EXEC = 17, "another program inherited the descriptor (exec, spawn)";
    PASSED = 18, "the descriptor was passed to another process";
    UNSEEN_WAIT = 19, "the program learns readiness by a call that Motet does not see";
    NESTED = 20, "the descriptor is in a nested epoll set";
    PEER_GONE = 21, "the peer is gone";
    DISABLED = 22, "Motet is switched off";
    NAME_TAKEN = 23, "another process holds the name or address at which the two ends connect";
    CONFINED = 24, "the process has a seccomp filter";
    URGENT = 28, "urgent data (MSG_OOB) was sent or asked for";
    NOBODY = 25, "the process runs as user nobody (65534), which stands for every unknown user; no memory is shared with it";
    MEMORY_LIMIT = 26, "the streams' shared memory has reached MOTET_MEMORY in this process or in the peer";
    NO_MESSAGES = 29, "the driver carries no messages";
    NO_SUCH_NODE = 30, "no node has this name or address, or it does not answer";
    BAD_NAME = 31, "invalid node name or address; a name has 1 to 64 letters, digits and . _ - @";
    UNANSWERED = 32, "the peer neither took a message in time nor released it; the link was closed";
    LIMITED = 33, "a limit of the process leaves no room for shared memory (file size, address space or its memory control group)";
    TWO_ADDRESSES = 49, "the two ends use different addresses of this host; shared memory is offered between equal ones";
    GO = 52, "the process has a Go runtime, whose own system calls may move bytes of the connection";
    OWN_DESCRIPTORS = 53, "a thread of the process has a descriptor table of its own (unshare), so a number means several connections";
    KERNEL_TELLS = 34, "receives need data of the kernel (time stamps, SO_PEEK_OFF, TCP_INQ, filters) or are made inside the C library (AIO)";
    LEFT_UNREAD = 35, "the peer closed with bytes unread; the connection was reset, as over TCP";
    UNKNOWN_REGION_KEY = 40, "the peer used a region key that was never given out; the link was closed";
    BAD_SECRET = 41, "the secret of the node's address does not match; connections from other hosts need it";
    NO_RANDOM = 42, "the system gives no random numbers for keys; check for a sandbox";
    UNREADABLE = 43, "a file that was being sent cannot be read any more; the link was closed";
    TOO_HIGH = 27, "the descriptor's number is too high (65536 or more)";
}

/// Whether Motet counts the bytes over TCP of a stream in this state. A stream that stays on TCP counts only what it has passed before that was decided.
pub fn counts_tcp(state: State, reason: Reason) -> bool {
    // The calls of a process that is confined, or of one that has several descriptor tables, are the C library's own.
    let is_past_the_engine = [Reason::CONFINED, Reason::OWN_DESCRIPTORS].contains(&reason);
    matches!(state, State::Attached | State::Broken) && !is_past_the_engine
}

#[cfg(test)]
mod tests {
    #[test]
    fn codes_fit_the_counters_and_are_distinct() {
        let mut seen = std::collections::HashSet::new();
        for reason in super::ALL {
            assert!(reason.0 < 64, "StatsFileHead counts 64 codes");
            assert!(seen.insert(reason.0));
            assert!(!super::text(reason.0).is_empty());
        }
    }
}
