//! Why a stream takes the path it takes: numbers in the records, English for people.

/// A reason code. Codes are never reused; the node file counts plain connections by code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub u32);

macro_rules! reasons {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Reason {
            $(#[doc = $text] pub const $name: Self = Self($code);)*
        }
        /// The text of a code.
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
    PENDING = 1, "young: the upgrade begins after the first few messages";
    OTHER_HOST = 2, "the peer is on another host or in another network namespace";
    PEER_NOT_EQUIPPED = 3, "the peer does not run under Motet (or has not used the connection yet)";
    OTHER_USER = 4, "the peer runs as another user; memory is offered to the same user only";
    VERSION = 5, "the peer's Motet has another segment layout";
    FORBIDDEN = 6, "the driver is switched off by MOTET_DRIVERS";
    NO_MEMORY = 7, "no memory or descriptors for a segment";
    BAD_SEGMENT = 8, "the peer offered a segment that is not sealed, not whole, or not consistent";
    BAD_OFFER = 9, "the peer's offer does not belong to this connection";
    NOT_PERMITTED = 10, "the kernel refuses what the driver needs (a sandbox?)";
    TABLE_FULL = 11, "the process has more streams than MOTET_STREAMS allows";
    NOT_TCP = 12, "not a connected TCP socket";
    BROKEN = 13, "the peer broke the protocol: the connection was reset";
    ORDER = 14, "bytes were moved behind Motet's back: the connection was reset";
    SHARED = 15, "several processes use the socket";
    STDIO = 16, "the descriptor was handed to stdio";
    EXEC = 17, "another program got the descriptor (exec, spawn)";
    PASSED = 18, "the descriptor was passed to another process";
    UNSEEN_WAIT = 19, "readiness is learned where Motet cannot see it";
    NESTED = 20, "the descriptor is in a nested epoll set";
    PEER_GONE = 21, "the peer is gone";
    DISABLED = 22, "Motet is switched off";
    NAME_TAKEN = 23, "somebody else holds the name under which the two ends would meet";
    CONFINED = 24, "the process confines its system calls (seccomp)";
    URGENT = 28, "urgent data (MSG_OOB) was sent or asked for";
    NOBODY = 25, "the process runs as nobody (65534), who stands for every user that is unknown here: memory is not offered to it";
    MEMORY_LIMIT = 26, "the streams' shared memory has reached MOTET_MEMORY, in this process or in the peer's";
    NO_MESSAGES = 29, "the driver carries no messages";
    NO_SUCH_NODE = 30, "no node has this name or address (or it does not answer)";
    BAD_NAME = 31, "a node's name has 1 to 64 letters, digits and . _ - @, or its address is none";
    UNANSWERED = 32, "the peer did not take a message in time, nor let go of it when asked: the link was given up";
    LIMITED = 33, "a limit of the process leaves no room for shared memory (file size, address space or its memory control group)";
    KERNEL_TELLS = 34, "receives tell what only the kernel knows (time stamps, SO_PEEK_OFF, TCP_INQ, filters) or are made inside the C library (AIO)";
    LEFT_UNREAD = 35, "the peer ended without reading all that it had been sent: the connection was reset, as TCP does it";
    GUESSED = 40, "the peer used the key of a region that was never given out: the link was broken";
    STRANGER = 41, "the node wants the secret of its address from callers of other hosts, and the caller or the answer has another one";
    NO_RANDOM = 42, "the system gives no random numbers, of which keys are made (a sandbox?)";
    TOO_HIGH = 27, "the descriptor's number is too high (65536 or more)";
}

#[cfg(test)]
mod tests {
    #[test]
    fn codes_fit_the_counters_and_are_distinct() {
        let mut seen = std::collections::HashSet::new();
        for reason in super::ALL {
            assert!(reason.0 < 64, "NodeHead counts 64 codes");
            assert!(seen.insert(reason.0));
            assert!(!super::text(reason.0).is_empty());
        }
    }
}
