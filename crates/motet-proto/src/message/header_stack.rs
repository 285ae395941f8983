//! The headers of a message: one buffer onto which every layer pushes.
//!
//! A layer that adds a header copies nothing that is there already and adds no packet (header combining): the buffer grows
//! towards its front, so the header pushed last, the outermost, comes first, and the receiver's layers pop them in the
//! order in which they meet the message.

/// Most bytes of headers of one message.
pub const MAX_HEADERS_BYTES: usize = 256;

/// Headers to send.
#[derive(Debug, Clone)]
pub struct Stack {
    bytes: [u8; MAX_HEADERS_BYTES],
    start: usize,
}

impl Default for Stack {
    fn default() -> Self {
        Self { bytes: [0; MAX_HEADERS_BYTES], start: MAX_HEADERS_BYTES }
    }
}

impl Stack {
    /// Puts a header before those that are there. False, and nothing is changed, when it does not fit.
    #[must_use]
    #[inline(always)] // a layer knows how long its header is: the copy is a store or two then
    pub fn push(&mut self, header: &[u8]) -> bool {
        let Some(start) = self.start.checked_sub(header.len()) else { return false };
        self.bytes[start..self.start].copy_from_slice(header);
        self.start = start;
        true
    }

    /// All headers, the outermost first.
    #[inline(always)]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Empties it for the next message.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.start = MAX_HEADERS_BYTES;
    }
}

/// The receiver's side: takes `N` bytes from the front of the headers; `None`, and nothing is taken, when there are fewer.
pub fn pop<const N: usize>(headers: &mut &[u8]) -> Option<[u8; N]> {
    let (header, rest) = headers.split_first_chunk()?;
    *headers = rest;
    Some(*header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pushed_comes_first() {
        let mut stack = Stack::default();
        assert!(stack.push(b"inner") && stack.push(b"outer!"));
        let mut headers = stack.as_bytes();
        assert_eq!(pop::<6>(&mut headers), Some(*b"outer!"));
        assert_eq!(pop::<6>(&mut headers), None);
        assert_eq!(pop::<5>(&mut headers), Some(*b"inner"));
        assert!(!stack.push(&[0; MAX_HEADERS_BYTES]) && stack.push(&[0; MAX_HEADERS_BYTES - 11]));
        stack.clear();
        assert!(stack.as_bytes().is_empty());
    }
}
