//! The headers of a message: one buffer onto which every layer pushes its header.
//!
//! Pushing copies nothing that is there already and adds no packet (header combining). The buffer grows towards its front, so the
//! header pushed last, the outermost, is first, and the layers of the receiver pop the headers in the order in which they handle the
//! message.

/// Size limit of the headers of one message.
pub const MAX_HEADERS_BYTES: usize = 256;

/// The headers of a message to send.
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
    /// Pushes a header in front of the others. Returns false, and changes nothing, when it does not fit.
    #[must_use]
    #[inline(always)] // the length of a header is mostly constant: the copy is one or two stores
    pub fn push(&mut self, header: &[u8]) -> bool {
        let Some(start) = self.start.checked_sub(header.len()) else { return false };
        self.bytes[start..self.start].copy_from_slice(header);
        self.start = start;
        true
    }

    /// All headers, outermost first.
    #[inline(always)]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Removes all headers.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.start = MAX_HEADERS_BYTES;
    }
}

/// Takes `N` bytes from the front of received headers. Returns `None`, and takes nothing, when there are fewer.
pub fn pop<const N: usize>(headers: &mut &[u8]) -> Option<[u8; N]> {
    let (header, rest) = headers.split_first_chunk()?;
    *headers = rest;
    Some(*header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_pop_in_reverse_order() {
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
