//! Whether a request of a browser is meant for this server and comes from its page.
//!
//! A page of a stranger can have its own name resolve to this host's address ("DNS rebinding"); the `Host` header then holds that name. Only an address
//! and `localhost` cannot be a stranger's. The port may be another one than the gatekeeper's, because users forward ports through SSH.

use axum::http::{HeaderMap, header};
use std::net::IpAddr;

/// Whether the request names an address, or `localhost`, as its host.
pub fn is_own_host(headers: &HeaderMap) -> bool {
    host(headers).is_some_and(|host| {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => {
                if port.parse::<u16>().is_err() {
                    return false;
                }
                name
            }
            _ => host,
        };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
    })
}

/// Whether the request comes from a page of this server.
pub fn is_same(headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    let from = origin.and_then(|origin| origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")));
    from.is_some() && from == host(headers)
}

/// The only `Host` header.
fn host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn names_that_a_stranger_could_have_are_refused() {
        let is_own = |host: &'static str| is_own_host(&headers(&[("host", host)]));
        for host in ["127.0.0.1:1", "127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:7", "[::1]", "192.0.2.1:65535"] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "127.0.0.1.evil.example:1",
            "localhost.evil.example",
            "127.0.0.1:x",
            "127.1:1",
            "a:b:c",
        ] {
            assert!(!is_own(host), "{host}");
        }
        assert!(!is_own_host(&headers(&[])));
        assert!(!is_own_host(&headers(&[("host", "127.0.0.1"), ("host", "evil.example")])));
    }

    #[test]
    fn origin_is_the_whole_origin() {
        let same = |origin: &'static str| is_same(&headers(&[("host", "127.0.0.1:80"), ("origin", origin)]));
        assert!(same("http://127.0.0.1:80") && same("https://127.0.0.1:80"));
        assert!(
            !["", "null", "127.0.0.1:80", "http://127.0.0.1", "http://127.0.0.1:80/", "ftp://127.0.0.1:80"]
                .into_iter()
                .any(same)
        );
        assert!(!is_same(&headers(&[("host", "127.0.0.1:80")])) && !is_same(&headers(&[])));
    }
}
