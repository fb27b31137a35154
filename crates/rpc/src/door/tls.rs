//! Certificates, keys and revocation lists, loaded from files and loaded again when the files change.
//!
//! Owns: the TLS configuration of the ports. New connections get the newest one that could be loaded; connections that
//! are open keep theirs. Refuses: resuming a session, because what is resumed is not checked again, neither for its time
//! nor against the revocation list.

use super::certificate;
use super::files::TlsFiles;
use crate::audit::Tell;
use crate::roles::Roles;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Largest size in bytes of a file with certificates or a key.
const LARGEST_FILE: u64 = 1 << 20;
/// Largest size in bytes of a file with revocation lists, which have an entry for each revoked certificate.
const LARGEST_CRL: u64 = 64 << 20;
/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why the files cannot be used. No message has anything of a key in it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read — is the path right, and may memscoped read it?")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is larger than any that makes sense.
    #[error("{path} is larger than {most} bytes — is it the right file?")]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// The most that is read.
        most: u64,
    },
    /// A file is no PEM file, or has a broken section.
    #[error(
        "{path} is no PEM file with what is expected in it ({what}) — make it with openssl, without -outform DER"
    )]
    Pem {
        /// Path of the file.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
        /// What is wrong.
        source: Option<rustls::pki_types::pem::Error>,
    },
    /// A certificate among the authorities cannot be one.
    #[error(
        "{path} has a certificate in it that cannot be an authority's — put in the CA's certificates only"
    )]
    Authority {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// Authorities and revocation lists cannot be used.
    #[error(
        "{paths} cannot be used to check clients — are they a CA's certificate and its revocation list?"
    )]
    Verifier {
        /// Paths of the files.
        paths: String,
        /// What is wrong.
        source: VerifierBuilderError,
    },
    /// Certificate and key cannot be used together.
    #[error(
        "{certificate} and {key} cannot be used together — is it the key of the first certificate in the file?"
    )]
    Pair {
        /// Path of the certificate.
        certificate: PathBuf,
        /// Path of the key.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// The TLS configuration of ports. Clones share it.
#[derive(Clone)]
pub struct Tls {
    current: watch::Receiver<Arc<ServerConfig>>,
    pub(super) default_roles: Arc<Roles>,
    _reloading: Arc<Reloading>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Ends the task that looks at the files, when nobody uses them any more.
struct Reloading(AbortHandle);

impl Drop for Reloading {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Tls {
    /// Loads the files, and from then on loads them again when they change. Certificates without a role have
    /// `default_roles`. What is wrong with new files is told by `tell`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the files cannot be used as they are now.
    pub fn load(files: TlsFiles, default_roles: Roles, tell: Tell) -> Result<Tls, TlsError> {
        Tls::load_and_look(files, default_roles, tell, LOOK_EVERY)
    }

    /// Says whether the files can be used as they are now, and nothing more: nobody looks at them afterwards, so
    /// that no tokio runtime is needed.
    ///
    /// # Errors
    /// If the files cannot be used as they are now.
    pub fn check(files: &TlsFiles, tell: &Tell) -> Result<(), TlsError> {
        load(files, tell).map(drop)
    }

    /// The same as [`Tls::load`] with another time between two looks at the files.
    ///
    /// # Errors
    /// If the files cannot be used as they are now.
    pub fn load_and_look(
        files: TlsFiles,
        default_roles: Roles,
        tell: Tell,
        every: Duration,
    ) -> Result<Tls, TlsError> {
        // Looked at before they are read: a change in between is found at the next look.
        let seen = fingerprint(&files);
        let config = load(&files, &tell)?;
        let (sender, current) = watch::channel(config);
        let task = tokio::spawn(look(files, seen, sender, tell, every));
        Ok(Tls {
            current,
            default_roles: Arc::new(default_roles),
            _reloading: Arc::new(Reloading(task.abort_handle())),
        })
    }

    /// The configuration for a new connection.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.borrow())
    }
}

/// What tells one state of a file from another: device, inode, size, and times of the last changes.
type Fingerprint = Vec<Option<(u64, u64, u64, [i64; 4])>>;

fn fingerprint(files: &TlsFiles) -> Fingerprint {
    let of = |path: &Path| {
        let meta = std::fs::metadata(path).ok()?;
        let times = [
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ];
        Some((meta.dev(), meta.ino(), meta.size(), times))
    };
    let paths = [&files.certificate, &files.key, &files.client_ca];
    let all = paths.into_iter().chain(&files.client_crl);
    all.map(|path| of(path)).collect()
}

/// Loads the files again whenever they have changed. They are read when two looks find them alike, because a
/// certificate and its key are two files, and are not replaced at the same moment.
async fn look(
    files: TlsFiles,
    mut loaded: Fingerprint,
    current: watch::Sender<Arc<ServerConfig>>,
    tell: Tell,
    every: Duration,
) {
    let files = Arc::new(files);
    let mut before = loaded.clone();
    loop {
        tokio::time::sleep(every).await;
        let looked = Arc::clone(&files);
        let Ok(now) = tokio::task::spawn_blocking(move || fingerprint(&looked)).await else {
            continue;
        };
        let is_settled = std::mem::replace(&mut before, now.clone()) == now;
        if now == loaded || !is_settled {
            continue;
        }
        let (read, said) = (Arc::clone(&files), Arc::clone(&tell));
        let Ok(new) = tokio::task::spawn_blocking(move || load(&read, &said)).await else {
            continue;
        };
        loaded = now;
        match new {
            Ok(config) => {
                tracing::info!("certificates were loaded again, since their files have changed");
                current.send_replace(config);
            }
            Err(error) => tell(format!(
                "the new files with certificates are not used, and those from before stay in force: {}",
                with_causes(&error)
            )),
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut bounded = file.take(most + 1);
    bounded.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(TlsError::TooLarge {
            path: path.to_owned(),
            most,
        });
    }
    Ok(bytes)
}

fn pem_error(
    path: &Path,
    what: &'static str,
) -> impl Fn(rustls::pki_types::pem::Error) -> TlsError {
    let path = path.to_owned();
    move |source| TlsError::Pem {
        path: path.clone(),
        what,
        source: Some(source),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "certificates";
    let bytes = read(path, LARGEST_FILE)?;
    let all = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(pem_error(path, what))?;
    match all.is_empty() {
        true => Err(TlsError::Pem {
            path: path.to_owned(),
            what,
            source: None,
        }),
        false => Ok(all),
    }
}

fn load(files: &TlsFiles, tell: &Tell) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key, LARGEST_FILE)?)
        .map_err(pem_error(&files.key, "a private key"))?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.client_ca)? {
        roots.add(authority).map_err(|source| TlsError::Authority {
            path: files.client_ca.clone(),
            source,
        })?;
    }
    let mut paths = files.client_ca.display().to_string();
    let mut lists = Vec::new();
    if let Some(path) = &files.client_crl {
        paths.push_str(&format!(" and {}", path.display()));
        let what = "certificate revocation lists";
        let bytes = read(path, LARGEST_CRL)?;
        let all = CertificateRevocationListDer::pem_slice_iter(&bytes).collect::<Result<_, _>>();
        lists = all.map_err(pem_error(path, what))?;
        if lists.is_empty() {
            // An empty file would let in everybody whom the list is there to keep out.
            return Err(TlsError::Pem {
                path: path.clone(),
                what,
                source: None,
            });
        }
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
        .with_crls(lists)
        .build()
        .map_err(|source| TlsError::Verifier { paths, source })?;
    let expires = chain.first().and_then(|own| certificate::not_after(own));
    let pair = |source| TlsError::Pair {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        source,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(pair)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(pair)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if expires.is_some_and(|at| at < now_unix()) {
        tell(format!(
            "the certificate in {} has expired, so that clients will not trust it — replace the file; it is loaded by itself",
            files.certificate.display()
        ));
    }
    Ok(Arc::new(config))
}

/// Seconds since 1970.
pub(super) fn now_unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    #[test]
    fn files_are_checked_without_a_runtime() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        let mut files = TlsFiles {
            certificate: write("own.pem", certificate.clone()),
            key: write("own.key", key.serialize_pem()),
            client_ca: write("ca.pem", certificate),
            client_crl: None,
        };
        let tell: Tell = Arc::new(|_| {});
        Tls::check(&files, &tell).unwrap();
        files.key = write("other.key", KeyPair::generate().unwrap().serialize_pem());
        let wrong = Tls::check(&files, &tell).unwrap_err();
        assert!(matches!(wrong, TlsError::Pair { .. }), "{wrong}");
    }
}
