//! Who may use the API: on the Unix socket processes of the session's user, on TCP who knows the session's key.
//!
//! The key is 256 random bits in a file that only the user can read. It is compared in constant time; the answer to a wrong one
//! comes later with each further one. Browsers have cookies instead, see [`crate::logins`].

use motet_session::paths::SessionPaths;
use motet_session::private_file::write_private;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use subtle::ConstantTimeEq;

/// The delay after the first wrong key; it doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// The session's key, 64 hexadecimal digits.
pub struct SessionKey {
    text: String,
    attempts: Attempts,
}

/// The secret is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthError;

/// Attempts to get in, by key, token or cookie. Wrong ones wait, longer with each further one.
#[derive(Debug, Default)]
pub struct Attempts {
    wrong_in_a_row: Mutex<u32>,
}

impl Attempts {
    /// Passes a right attempt on; a wrong one, which is `None`, waits.
    pub async fn judge<T>(&self, attempt: Option<T>) -> Result<T, AuthError> {
        let delay = {
            let mut wrong = self.wrong_in_a_row.lock().unwrap_or_else(PoisonError::into_inner);
            *wrong = if attempt.is_some() { 0 } else { wrong.saturating_add(1) };
            FIRST_DELAY.saturating_mul(1u32.checked_shl(wrong.saturating_sub(1)).unwrap_or(u32::MAX)).min(MAX_DELAY)
        };
        if attempt.is_none() {
            tokio::time::sleep(delay).await;
        }
        attempt.ok_or(AuthError)
    }
}

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

impl SessionKey {
    /// Reads the session's key, or makes one.
    pub fn open(paths: &SessionPaths) -> io::Result<Self> {
        let path = paths.key();
        let text = match File::open(&path) {
            Ok(file) => {
                if file.metadata()?.permissions().mode() & 0o077 != 0 {
                    return Err(io::Error::other(format!("{}: others may read it: chmod 600 it", path.display())));
                }
                let mut text = String::new();
                file.take(1024).read_to_string(&mut text)?;
                text.trim().to_owned()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = random_hex::<32>()?;
                write_private(&path, text.as_bytes())?;
                text
            }
            Err(error) => return Err(error),
        };
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(io::Error::other(format!("{}: is no key: remove it", path.display())));
        }
        Ok(Self { text, attempts: Attempts::default() })
    }

    /// The key, for a host that joins.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Checks the value of an `Authorization` header. A wrong one waits.
    pub async fn check(&self, authorization: Option<&[u8]>) -> bool {
        let given = authorization.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        let is_right = bool::from(self.text.as_bytes().ct_eq(given));
        self.attempts.judge(is_right.then_some(())).await.is_ok()
    }

    /// The attempts so far.
    pub fn attempts(&self) -> &Attempts {
        &self.attempts
    }
}

/// Random bytes, as hexadecimal digits.
pub fn random_hex<const N: usize>() -> io::Result<String> {
    let mut bytes = [0; N];
    let length = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if length != N {
        return Err(io::Error::other("the system has no random numbers"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> (tempfile::TempDir, SessionPaths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = SessionPaths::within(&dir.path().join("sessions"), "s").unwrap();
        paths.create().unwrap();
        (dir, paths)
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_keys_wait_longer_each_time() {
        let (_dir, paths) = paths();
        let key = SessionKey::open(&paths).unwrap();
        let mut delays = Vec::new();
        for _ in 0..8 {
            let began = tokio::time::Instant::now();
            assert!(!key.check(Some(b"Bearer 00")).await);
            delays.push(began.elapsed());
        }
        assert!(delays.windows(2).all(|pair| pair[1] >= pair[0]) && delays[7] >= MAX_DELAY, "{delays:?}");
        let right = format!("Bearer {}", key.text);
        assert!(key.check(Some(right.as_bytes())).await);
        assert!(!key.check(None).await && !key.check(Some(key.text.as_bytes())).await);
    }

    #[test]
    fn key_is_private_and_stays_the_same() {
        let (_dir, paths) = paths();
        let key = SessionKey::open(&paths).unwrap();
        assert_eq!(std::fs::metadata(paths.key()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(SessionKey::open(&paths).unwrap().text, key.text);
        assert!(!format!("{key:?}").contains(&key.text));
        std::fs::set_permissions(paths.key(), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(SessionKey::open(&paths).unwrap_err().to_string().contains("chmod 600"));
    }
}
