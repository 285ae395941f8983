//! Browsers: one logs in with a token that is good once, and then sends a cookie and the secret of its page.
//!
//! The cookie is `HttpOnly` and `SameSite=Strict`. But browsers do not separate cookies by port, so that a server of another user on the same host could
//! receive it: the page therefore sends a second secret, which only pages of the same origin can read. Both live as long as the gatekeeper.

use crate::auth::random_hex;
use crate::origin;
use axum::http::{HeaderMap, Method, header};
use motet_session::login::PAGE_HEADER;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use subtle::ConstantTimeEq;

/// Tokens that are good at a time; a further one makes the oldest void.
const MAX_TOKENS: usize = 16;
/// Browsers that are logged in at a time; a further one ends the oldest login.
const MAX_BROWSERS: usize = 64;
/// Digits of the session's identity in the name of the cookie.
const NAME_DIGITS: usize = 8;

/// Tokens and logins. A clone is another handle.
#[derive(Clone)]
pub struct Logins {
    /// The name of the cookie, which differs from session to session.
    cookie_name: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    tokens: VecDeque<String>,
    browsers: VecDeque<Browser>,
}

/// The secrets of a browser that has logged in.
struct Browser {
    cookie: String,
    page: String,
}

/// What a browser gets.
pub struct Login {
    /// The value of the `Set-Cookie` header.
    pub set_cookie: String,
    /// The secret of the page.
    pub page: String,
}

impl std::fmt::Debug for Logins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Logins(..)")
    }
}

impl Logins {
    /// No logins. `session_id`: the session's identity.
    pub fn new(session_id: &str) -> Self {
        let digits: String = session_id.chars().take(NAME_DIGITS).collect();
        Self { cookie_name: format!("motet-{digits}"), state: Arc::default() }
    }

    /// A token for one login.
    pub fn token(&self) -> io::Result<String> {
        let token = random_hex::<32>()?;
        let mut state = self.lock();
        state.tokens.push_back(token.clone());
        if state.tokens.len() > MAX_TOKENS {
            state.tokens.pop_front();
        }
        Ok(token)
    }

    /// Logs a browser in, and makes the token void. `None`: it is no token, or is void.
    pub fn log_in(&self, token: &str) -> io::Result<Option<Login>> {
        let browser = Browser { cookie: random_hex::<32>()?, page: random_hex::<32>()? };
        let mut state = self.lock();
        // All are compared, so that the time says nothing.
        let found = state.tokens.iter().enumerate().fold(None, |found, (at, known)| {
            if bool::from(known.as_bytes().ct_eq(token.as_bytes())) { Some(at) } else { found }
        });
        let Some(at) = found else { return Ok(None) };
        state.tokens.remove(at);
        let set_cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/v1", self.cookie_name, browser.cookie);
        let page = browser.page.clone();
        state.browsers.push_back(browser);
        if state.browsers.len() > MAX_BROWSERS {
            state.browsers.pop_front();
        }
        Ok(Some(Login { set_cookie, page }))
    }

    /// Whether a request comes from a page that has logged in. One that changes anything needs an origin that is this server.
    pub fn admits(&self, method: &Method, headers: &HeaderMap) -> bool {
        let Some(cookie) = self.cookie(headers) else { return false };
        let page = headers.get(PAGE_HEADER).map_or(&b""[..], |value| value.as_bytes());
        let is_known = self.lock().browsers.iter().fold(false, |known, browser| {
            known | bool::from(browser.cookie.as_bytes().ct_eq(cookie) & browser.page.as_bytes().ct_eq(page))
        });
        is_known && origin::is_own_host(headers) && (method.is_safe() || origin::is_same(headers))
    }

    /// The cookie of this session in a request.
    fn cookie<'a>(&self, headers: &'a HeaderMap) -> Option<&'a [u8]> {
        let values = headers.get_all(header::COOKIE).iter().map(|value| value.as_bytes());
        let mut pairs = values.flat_map(|value| value.split(|byte| *byte == b';')).map(<[u8]>::trim_ascii);
        pairs.find_map(|pair| pair.strip_prefix(self.cookie_name.as_bytes())?.strip_prefix(b"="))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// A browser's cookie and page.
    fn browser(logins: &Logins) -> (String, String) {
        let login = logins.log_in(&logins.token().unwrap()).unwrap().unwrap();
        (login.set_cookie.split(';').next().unwrap().to_owned(), login.page)
    }

    #[test]
    fn token_is_good_once() {
        let logins = Logins::new("0123456789");
        let token = logins.token().unwrap();
        assert_eq!(token.len(), 64);
        assert!(logins.log_in("").unwrap().is_none() && logins.log_in(&token[..63]).unwrap().is_none());
        let login = logins.log_in(&token).unwrap().unwrap();
        assert!(
            login.set_cookie.starts_with("motet-01234567=") && login.set_cookie.contains("; HttpOnly; SameSite=Strict")
        );
        assert!(logins.log_in(&token).unwrap().is_none());
    }

    #[test]
    fn tokens_and_browsers_are_bounded() {
        let logins = Logins::new("s");
        let first = logins.token().unwrap();
        (0..MAX_TOKENS).for_each(|_| drop(logins.token().unwrap()));
        assert!(logins.log_in(&first).unwrap().is_none());
        let admits = |(cookie, page): &(String, String)| {
            let headers = headers(&[("host", "127.0.0.1:1"), ("cookie", cookie), (PAGE_HEADER, page)]);
            logins.admits(&Method::GET, &headers)
        };
        let oldest = browser(&logins);
        assert!(admits(&oldest));
        let later: Vec<_> = (0..MAX_BROWSERS).map(|_| browser(&logins)).collect();
        assert!(!admits(&oldest) && later.iter().all(admits));
    }

    #[test]
    fn requests_need_all_secrets_and_their_own_host() {
        let logins = Logins::new("s");
        let (cookie, page) = browser(&logins);
        let (_, other_page) = browser(&logins);
        let all = |host: &str, origin: &str, cookie: &str, page: &str| {
            headers(&[("host", host), ("origin", origin), ("cookie", cookie), (PAGE_HEADER, page)])
        };
        let admits = |method: Method, headers: HeaderMap| logins.admits(&method, &headers);
        let own = "127.0.0.1:9";
        assert!(admits(Method::GET, all(own, "", &cookie, &page)));
        assert!(admits(Method::POST, all(own, "http://127.0.0.1:9", &format!("a=b; {cookie}"), &page)));
        for headers in [
            all("evil.example:9", "http://evil.example:9", &cookie, &page),
            all(own, "http://127.0.0.1:8", &cookie, &page),
            all(own, "null", &cookie, &page),
            all(own, "http://127.0.0.1:9", &cookie, ""),
            all(own, "http://127.0.0.1:9", &cookie, &other_page),
            all(own, "http://127.0.0.1:9", "motet-s=", &page),
            all(own, "http://127.0.0.1:9", "", &page),
        ] {
            assert!(!admits(Method::POST, headers.clone()), "{headers:?}");
        }
    }
}
