//! TLS 1.3 on connections from other hosts.
//!
//! The first gatekeeper of a session makes an authority, signs its own certificate with it, and forgets the authority's key. Hosts that join
//! get the authority's certificate together with the session's key, and accept nothing else.

use motet_session::hosts::SERVER_NAME;
use motet_session::paths::SessionPaths;
use motet_session::private_file::write_private;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The longest file of certificates, bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// The certificates of a primary gatekeeper.
#[derive(Clone)]
pub struct Identity {
    /// The certificate of the authority, PEM.
    pub authority: String,
    /// Accepts connections.
    pub acceptor: TlsAcceptor,
}

/// The certificates as they lie in a file: PEM.
#[derive(serde::Serialize, serde::Deserialize)]
struct Kept {
    authority: String,
    certificate: String,
    key: String,
}

impl Identity {
    /// Reads the session's certificates, or makes them.
    pub fn open(paths: &SessionPaths) -> io::Result<Self> {
        let path = paths.certificates();
        let kept: Kept = match File::open(&path) {
            Ok(file) => {
                let mut text = Vec::new();
                file.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
                serde_json::from_slice(&text)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let kept = make(paths.name()).map_err(io::Error::other)?;
                write_private(&path, &serde_json::to_vec(&kept)?)?;
                kept
            }
            Err(error) => return Err(error),
        };
        let chain = CertificateDer::from_pem_slice(kept.certificate.as_bytes()).map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_slice(kept.key.as_bytes()).map_err(io::Error::other)?;
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth() // clients show the session's key
            .with_single_cert(vec![chain], key)
            .map_err(io::Error::other)?;
        Ok(Self { authority: kept.authority, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}

/// An authority, and a certificate of it for the primary gatekeeper.
fn make(session: &str) -> Result<Kept, rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name.push(DnType::CommonName, format!("Motet session {session}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![SERVER_NAME.to_owned()])?.signed_by(&key, &authority)?;
    Ok(Kept { authority: authority.pem(), certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Connects to the gatekeeper that this authority has signed.
pub fn connector(authority: &str) -> io::Result<(TlsConnector, ServerName<'static>)> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(authority.as_bytes()).map_err(io::Error::other)?;
    roots.add(authority).map_err(io::Error::other)?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn session() -> (tempfile::TempDir, SessionPaths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = SessionPaths::within(&dir.path().join("sessions"), "s").unwrap();
        paths.create().unwrap();
        (dir, paths)
    }

    async fn exchange(server: &Identity, authority: &str) -> io::Result<Vec<u8>> {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (connector, name) = connector(authority)?;
        let acceptor = server.acceptor.clone();
        let serving = tokio::spawn(async move {
            let mut stream = acceptor.accept(far).await?;
            stream.write_all(b"hello").await?;
            stream.shutdown().await
        });
        let mut stream = connector.connect(name, near).await?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await?;
        serving.await.unwrap()?;
        Ok(text)
    }

    #[tokio::test]
    async fn only_the_sessions_authority_is_trusted() {
        let ((_one, own), (_two, other)) = (session(), session());
        let (server, impostor) = (Identity::open(&own).unwrap(), Identity::open(&other).unwrap());
        assert_eq!(exchange(&server, &server.authority).await.unwrap(), b"hello");
        assert!(exchange(&impostor, &server.authority).await.is_err());
        assert!(exchange(&server, "no certificate").await.is_err());
    }

    #[test]
    fn certificates_are_private_and_stay_the_same() {
        let (_dir, paths) = session();
        let first = Identity::open(&paths).unwrap();
        assert_eq!(std::fs::metadata(paths.certificates()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Identity::open(&paths).unwrap().authority, first.authority);
        std::fs::write(paths.certificates(), b"{").unwrap();
        assert!(Identity::open(&paths).is_err());
    }
}
