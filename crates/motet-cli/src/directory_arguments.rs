//! The options of `motet up` that name an etcd.

use clap::Args;
use motet_session::etcd_address::EtcdAddress;
use std::path::{Path, PathBuf};

use crate::exit_error::{Failure, Outcome, USAGE};

/// Where the directory of the session is.
#[derive(Debug, Args)]
pub struct DirectoryArguments {
    /// Keep the directory in this etcd: etcd://HOST:PORT,.../PREFIX, one address or more, with or without a prefix; etcds:// for TLS
    #[arg(long, value_name = "URL")]
    directory: Option<String>,

    /// The authorities that may have signed the certificates of an etcds:// server, PEM
    #[arg(long, value_name = "FILE", requires = "directory")]
    directory_ca: Option<PathBuf>,

    /// A file of mode 600 with a line USER:PASSWORD for the etcd
    #[arg(long, value_name = "FILE", requires = "directory")]
    directory_login: Option<PathBuf>,
}

impl DirectoryArguments {
    /// The etcd, if one is named.
    pub fn address(&self) -> Outcome<Option<EtcdAddress>> {
        let Some(url) = &self.directory else { return Ok(None) };
        // The gatekeeper's folder is another one.
        let full = |path: &Option<PathBuf>| path.as_deref().map(std::path::absolute).transpose();
        let full = |path| full(path).map_err(|error| Failure::new(USAGE, error.to_string()));
        let (authorities, login) = (full(&self.directory_ca)?, full(&self.directory_login)?);
        let address = EtcdAddress { url: url.clone(), authorities, login };
        address.parts().map_err(|why| Failure::new(USAGE, why))?;
        Ok(Some(address))
    }

    /// The words of the command line that pass these options on to the gatekeeper.
    pub fn to_words(&self) -> Outcome<Vec<String>> {
        let Some(address) = self.address()? else { return Ok(Vec::new()) };
        let mut words = vec!["--directory".to_owned(), address.url];
        for (option, path) in [("--directory-ca", address.authorities), ("--directory-login", address.login)] {
            if let Some(path) = path.as_deref().map(Path::to_str) {
                let path = path.ok_or_else(|| Failure::new(USAGE, format!("{option}: the path is no text")))?;
                words.extend([option.to_owned(), path.to_owned()]);
            }
        }
        Ok(words)
    }
}
