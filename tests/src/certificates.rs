//! Certificates, keys and revocation lists for tests of the TCP door, made when a test needs them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// An authority that signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// When a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// From long ago until long after the test.
    Now,
    /// Until long ago.
    Past,
    /// From long after the test.
    Future,
}

/// A certificate and its key, in PEM form.
pub struct Issued {
    /// The certificate alone.
    pub certificate: String,
    /// The private key that belongs to it.
    pub key: String,
    /// Its serial number.
    pub serial: u64,
}

/// Number of the next certificate.
static SERIAL: AtomicU64 = AtomicU64::new(0x1001);

fn name(common: &str, units: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    for (number, unit) in units.iter().enumerate() {
        // A name has one value of each type here; the same number written as another type is a second one.
        let kind = match number {
            0 => DnType::OrganizationalUnitName,
            1 => DnType::CustomDnType(vec![2, 5, 4, 11]),
            _ => panic!("at most two units"),
        };
        name.push(kind, *unit);
    }
    name
}

impl Authority {
    /// Makes an authority.
    pub fn new(common: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(common, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Authority {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    /// Its certificate, in PEM form.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for a server at `localhost` and the loopback addresses.
    pub fn server(&self) -> Issued {
        let hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let params = CertificateParams::new(hosts).unwrap();
        self.issue(params, name("memscoped", &[]), Time::Now)
    }

    /// A client's certificate with this common name and these organizational units.
    pub fn client(&self, common: &str, units: &[&str], time: Time) -> Issued {
        self.issue(CertificateParams::default(), name(common, units), time)
    }

    fn issue(&self, mut params: CertificateParams, name: DistinguishedName, time: Time) -> Issued {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name = name;
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let (from, until) = match time {
            Time::Now => (2020, 2100),
            Time::Past => (2020, 2021),
            Time::Future => (2099, 2100),
        };
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        Issued {
            certificate: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
            serial,
        }
    }

    /// The list of certificates that it has revoked, in PEM form.
    pub fn revoked(&self, serials: &[u64]) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// Puts a file in the place of another one, as a whole.
pub fn replace(path: &Path, content: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// The files of a server.
pub struct ServerFiles {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The private key that belongs to it.
    pub key: PathBuf,
    /// The authority of clients.
    pub client_ca: PathBuf,
    /// The revocation list.
    pub client_crl: PathBuf,
}

impl ServerFiles {
    /// Writes them into a folder: a certificate by `own`, and `clients` as the authority of clients, with nothing revoked.
    pub fn write(folder: &Path, own: &Authority, clients: &Authority) -> ServerFiles {
        let files = ServerFiles {
            certificate: folder.join("server.pem"),
            key: folder.join("server.key"),
            client_ca: folder.join("clients.pem"),
            client_crl: folder.join("clients.crl"),
        };
        let server = own.server();
        replace(&files.certificate, &server.certificate);
        replace(&files.key, &server.key);
        replace(&files.client_ca, &clients.certificate());
        replace(&files.client_crl, &clients.revoked(&[]));
        files
    }

    /// Options of a memscoped that listens on a free port with these files.
    pub fn listening(&self) -> [&str; 8] {
        [
            "--listen",
            "127.0.0.1:0",
            "--tls-cert",
            self.certificate.to_str().unwrap(),
            "--tls-key",
            self.key.to_str().unwrap(),
            "--tls-client-ca",
            self.client_ca.to_str().unwrap(),
        ]
    }
}
