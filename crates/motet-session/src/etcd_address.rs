//! Where an etcd is, and how a session gets in: what `motet up --directory` takes, and what a later gatekeeper of the session finds in its options.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The most servers of one etcd.
const MAX_SERVERS: usize = 16;
/// The longest URL, bytes.
const MAX_URL_BYTES: usize = 4096;
/// The longest file with a login or with certificates, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The prefix of keys, if the URL names none.
const DEFAULT_PREFIX: &str = "motet";
/// The URL's beginning, without and with TLS.
const SCHEMES: [(&str, bool); 2] = [("etcd://", false), ("etcds://", true)];

/// An etcd, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdAddress {
    /// `etcd://HOST:PORT[,HOST:PORT...][/PREFIX]`, or `etcds://` for TLS.
    pub url: String,
    /// A file with the certificates of the authorities that may have signed the servers' (PEM). Needed for TLS.
    #[serde(default)]
    pub authorities: Option<PathBuf>,
    /// A file with a line `USER:PASSWORD`, which only its owner can read.
    #[serde(default)]
    pub login: Option<PathBuf>,
}

/// The parts of an address.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts {
    /// `HOST:PORT` of each server, with the scheme that the client library wants.
    pub servers: Vec<String>,
    /// Whether the connections use TLS.
    pub tls: bool,
    /// The prefix of keys, without slashes at its ends.
    pub prefix: String,
}

impl EtcdAddress {
    /// The parts of the URL. The error says what is wrong with it.
    pub fn parts(&self) -> Result<Parts, String> {
        let shown: String = self.url.chars().take(100).collect();
        let refuse = |why: &str| Err(format!("{shown:?} {why}: use etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"));
        let scheme = SCHEMES.iter().find_map(|(scheme, tls)| self.url.strip_prefix(scheme).map(|rest| (rest, *tls)));
        let Some((rest, tls)) = scheme.filter(|_| self.url.len() <= MAX_URL_BYTES) else {
            return refuse("is no URL of an etcd");
        };
        let (servers, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let servers: Vec<_> = servers.split(',').collect();
        if servers.len() > MAX_SERVERS {
            return refuse("has too many servers");
        }
        if !servers.iter().all(|server| is_server(server)) {
            return refuse("has a server without a host or port");
        }
        let prefix = prefix.trim_matches('/');
        if !prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte)) {
            return refuse("has a prefix with other characters than letters, digits and . _ - /");
        }
        let scheme = if tls { "https" } else { "http" };
        let servers = servers.into_iter().map(|server| format!("{scheme}://{server}")).collect();
        let prefix = if prefix.is_empty() { DEFAULT_PREFIX } else { prefix };
        if tls && self.authorities.is_none() {
            return Err(format!("{shown} needs --directory-ca FILE: who may have signed the servers' certificates"));
        }
        Ok(Parts { servers, tls, prefix: prefix.to_owned() })
    }

    /// The certificates of the authorities. The error says what is wrong with the file.
    pub fn read_authorities(&self) -> Result<Vec<u8>, String> {
        self.authorities.as_deref().map_or_else(|| Ok(Vec::new()), |path| Ok(read(path)?.0))
    }

    /// The user's name and password, if a file has them. The error says what is wrong with it.
    pub fn read_login(&self) -> Result<Option<(String, String)>, String> {
        let Some(path) = &self.login else { return Ok(None) };
        let (text, mode) = read(path)?;
        let refuse = |why: &str| format!("{}: {why}", path.display());
        if mode & 0o077 != 0 {
            return Err(refuse("others may read it: chmod 600 it"));
        }
        let text = String::from_utf8(text).map_err(|_| refuse("is no text"))?;
        let login = text.trim_end_matches(['\n', '\r']).split_once(':').filter(|(user, _)| !user.is_empty());
        let (user, password) = login.ok_or_else(|| refuse("has no line USER:PASSWORD"))?;
        Ok(Some((user.to_owned(), password.to_owned())))
    }
}

/// Whether this is `HOST:PORT`, where a host of IPv6 is in brackets.
fn is_server(server: &str) -> bool {
    let Some((host, port)) = server.rsplit_once(':') else { return false };
    let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)),
    };
    is_host && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// A file and its mode.
fn read(path: &Path) -> Result<(Vec<u8>, u32), String> {
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode();
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok((bytes, mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn address(url: &str) -> EtcdAddress {
        EtcdAddress { url: url.to_owned(), authorities: None, login: None }
    }

    #[test]
    fn urls_are_taken_apart() {
        let parts = address("etcd://a:2379,[::1]:2380/x/y/").parts().unwrap();
        assert_eq!(parts.servers, ["http://a:2379", "http://[::1]:2380"]);
        assert_eq!((parts.tls, &parts.prefix[..]), (false, "x/y"));
        assert_eq!(address("etcd://a:1").parts().unwrap().prefix, DEFAULT_PREFIX);
        let tls = EtcdAddress { authorities: Some("ca.pem".into()), ..address("etcds://a:2379") };
        assert_eq!(tls.parts().unwrap().servers, ["https://a:2379"]);
    }

    #[test]
    fn other_urls_are_refused() {
        for url in
            ["", "a:1", "http://a:1", "etcd://", "etcd://a", "etcd://a:0", "etcd://a:70000", "etcd://a:1,", "etcd://:1"]
        {
            assert!(address(url).parts().unwrap_err().contains("etcd://HOST:PORT"), "{url}");
        }
        for url in ["etcd://user:pw@a:1", "etcd://a:1/ä", "etcd://[a]:1", "etcd://a:+1", "etcd://a b:1"] {
            assert!(address(url).parts().is_err(), "{url}");
        }
        assert!(address(&format!("etcd://{}", vec!["a:1"; 17].join(","))).parts().is_err());
        assert!(address("etcds://a:1").parts().unwrap_err().contains("--directory-ca"));
    }

    #[test]
    fn login_is_read_from_a_private_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login");
        std::fs::write(&path, "me:a:b\n").unwrap();
        let address = EtcdAddress { login: Some(path.clone()), ..address("etcd://a:1") };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(address.read_login().unwrap_err().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(address.read_login().unwrap(), Some(("me".to_owned(), "a:b".to_owned())));
        std::fs::write(&path, "me").unwrap();
        assert!(address.read_login().unwrap_err().contains("USER:PASSWORD"));
    }
}
