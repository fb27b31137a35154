//! A client of a TCP port, with a certificate.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use hyper_util::rt::TokioIo;
use memscope_proto::v1;
use memscope_service::memscope_client::MemscopeClient;
use memscope_tests::certificates::{Authority, Issued};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A client that trusts one authority and has a certificate, or none.
#[derive(Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub config: Arc<ClientConfig>,
    pub connected: Arc<AtomicUsize>,
}

impl Client {
    pub fn new(address: SocketAddr, trusted: &Authority, issued: Option<&Issued>) -> Client {
        let mut roots = RootCertStore::empty();
        let trusted = trusted.certificate();
        roots
            .add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match issued {
            None => config.with_no_client_auth(),
            Some(issued) => {
                let own = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![own], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Client {
            address,
            config: Arc::new(config),
            connected: Arc::default(),
        }
    }

    /// Makes a TLS connection. In TLS 1.3 it may succeed here although the server then refuses the certificate.
    pub async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        self.connected.fetch_add(1, Ordering::SeqCst);
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let name = ServerName::try_from("localhost").unwrap();
        connector.connect(name, stream).await
    }

    pub async fn channel(&self) -> Channel {
        self.channel_by(Endpoint::from_static("http://localhost"))
            .await
    }

    /// A channel whose server may send so many bytes of an answer before the client reads on.
    pub async fn channel_with_window(&self, bytes: u32) -> Channel {
        let endpoint = Endpoint::from_static("http://localhost");
        self.channel_by(endpoint.initial_stream_window_size(bytes))
            .await
    }

    async fn channel_by(&self, endpoint: Endpoint) -> Channel {
        let client = self.clone();
        endpoint
            .connect_with_connector(tower::service_fn(move |_: Uri| {
                let client = client.clone();
                async move { Ok::<_, std::io::Error>(TokioIo::new(client.connect().await?)) }
            }))
            .await
            .unwrap()
    }

    pub async fn memscope(&self) -> MemscopeClient<Channel> {
        MemscopeClient::new(self.channel().await)
    }

    /// What the server sends after the preface of HTTP/2: its first bytes, or why it sends none.
    pub async fn first_bytes(&self) -> Result<usize, String> {
        let within = tokio::time::timeout(PATIENCE, async {
            let mut stream = self.connect().await.map_err(|error| error.to_string())?;
            let sent = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            sent.await.map_err(|error| error.to_string())?;
            let mut bytes = [0; 64];
            match stream.read(&mut bytes).await {
                Ok(0) => Err("the connection was closed".to_owned()),
                Ok(count) => Ok(count),
                Err(error) => Err(error.to_string()),
            }
        });
        within.await.expect("an answer within the time")
    }

    /// Asks, over a connection of its own, and says what came of it.
    pub async fn list(&self) -> Result<usize, Status> {
        let mut memscope = self.memscope().await;
        let answer = memscope.list(v1::ListRequest::default()).await;
        Ok(answer?.into_inner().processes.len())
    }
}
