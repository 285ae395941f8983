//! The log of one module: the last bytes that it has written.

use motet_session::modules::MAX_LOG_BYTES;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So much of a log is kept, bytes.
pub const KEPT_BYTES: usize = 256 << 10;

/// A log. A clone is another handle.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<VecDeque<u8>>>);

impl Log {
    /// Appends what a program has written.
    pub fn write(&self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(KEPT_BYTES)..];
        let mut kept = self.lock();
        let excess = (kept.len() + bytes.len()).saturating_sub(KEPT_BYTES);
        kept.drain(..excess);
        kept.extend(bytes);
    }

    /// Appends a line of Motet.
    pub fn note(&self, line: &str) {
        self.write(format!("motet: {line}\n").as_bytes());
    }

    /// The last `bytes` bytes, or fewer: whole characters, and not more than an answer may have.
    pub fn tail(&self, bytes: usize) -> String {
        let kept = self.lock();
        let most = bytes.min(MAX_LOG_BYTES);
        let end: Vec<u8> = kept.range(kept.len().saturating_sub(most)..).copied().collect();
        let cut =
            if end.len() < kept.len() { end.iter().take_while(|byte| *byte & 0xc0 == 0x80).count().min(3) } else { 0 };
        let mut text = String::from_utf8_lossy(&end[cut..]).into_owned();
        // What is no UTF-8 has become longer.
        let from = (0..=3).map(|more| text.len().saturating_sub(most) + more).find(|at| text.is_char_boundary(*at));
        text.split_off(from.unwrap_or(text.len()))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_keeps_its_end() {
        let log = Log::default();
        log.note("begins");
        assert_eq!(log.tail(1000), "motet: begins\n");
        for number in 0..100_000 {
            log.write(format!("{number}\n").as_bytes());
        }
        assert!(log.lock().len() == KEPT_BYTES && log.tail(1000).ends_with("99999\n"));
        log.write(&vec![b'x'; 3 * KEPT_BYTES]);
        assert!(log.lock().len() == KEPT_BYTES);
        assert_eq!(log.tail(usize::MAX).len(), MAX_LOG_BYTES);
    }

    #[test]
    fn tail_is_text_of_whole_characters() {
        let log = Log::default();
        log.write("äöü".as_bytes());
        assert_eq!(
            ["", "ü", "ü", "öü", "öü", "äöü"],
            [1, 2, 3, 4, 5, 6].map(|n| log.tail(n)).each_ref().map(String::as_str)
        );
        log.write(&[0xff; 64]);
        assert!(log.tail(64).len() <= 64 && log.tail(64).contains('\u{fffd}'));
        assert_eq!(log.tail(0), "");
    }
}
