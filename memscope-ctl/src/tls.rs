//! TLS with both certificates: the daemon's is verified, and ours says who asks.

use crate::failure::Failure;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What connections over TLS are made with.
#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    /// Name that every certificate must have, instead of the host's.
    name: Option<String>,
}

impl Tls {
    /// Reads the files of the certificate, of its key, and of the authority that daemons' certificates must be from.
    pub(crate) fn load(
        certificate: &Path,
        key: &Path,
        authority: &Path,
        name: Option<&str>,
    ) -> Result<Tls, Failure> {
        let unusable = |what: &str, path: &Path, source: Box<dyn Error + Send + Sync>| {
            let what = format!("the {what} in {} cannot be used", path.display());
            Failure::Tls { what, source }
        };
        let all = |what: &str, path: &Path| {
            let read = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<CertificateDer<'static>>, _>>);
            let read = read.map_err(|source| unusable(what, path, source.into()))?;
            match read.is_empty() {
                true => Err(unusable(what, path, "no certificate is in it".into())),
                false => Ok(read),
            }
        };
        let mut roots = RootCertStore::empty();
        for root in all("authority", authority)? {
            let added = roots.add(root);
            added.map_err(|source| unusable("authority", authority, source.into()))?;
        }
        let own = all("certificate", certificate)?;
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|source| unusable("key", key, source.into()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|source| unusable("authority", authority, source.into()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(own, secret)
            .map_err(|source| unusable("certificate", certificate, source.into()))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Tls {
            connector: TlsConnector::from(Arc::new(config)),
            name: name.map(str::to_owned),
        })
    }

    /// Begins TLS on a connection to `host`; the daemon's certificate must have the name `--tls-name`, else
    /// `verified_as`, else that of the host.
    pub(crate) async fn begin(
        &self,
        stream: TcpStream,
        host: &str,
        verified_as: Option<&str>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = self.name.as_deref().or(verified_as).unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        self.connector.connect(name, stream).await
    }
}
