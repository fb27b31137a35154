//! Who a certificate says its holder is.
//!
//! Owns: the name, the roles, and what makes a certificate unusable although it is signed. Refuses: to check signatures
//! and times; that is done in the handshake, before anything is read here.

use crate::caller::{Caller, Certified};
use crate::refusal::Refusal;
use crate::roles::Roles;
use std::sync::Arc;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Most letters of a name.
const LONGEST_NAME: usize = 256;
/// Most roles of one certificate.
const MOST_ROLES: usize = 64;
/// What a subject's organizational unit (OU) begins with if it names a role.
const ROLE: &str = "memscope:";

/// What a certificate says.
#[derive(Debug)]
pub(super) struct Read {
    /// Its holder. `None`: it has no usable name.
    pub(super) caller: Option<Caller>,
    /// Why its holder may ask nothing, if so.
    pub(super) refused: Option<Refusal>,
    /// When it ends, in seconds since 1970.
    pub(super) not_after: i64,
}

/// Reads a certificate that the handshake has accepted. `default` is what its holder may do if it names no role.
pub(super) fn read(der: &[u8], default: &Roles) -> Read {
    let unusable = |why: &str| Read {
        caller: None,
        refused: Some(Refusal::NoRole {
            name: String::new(),
            why: why.to_owned(),
        }),
        not_after: i64::MAX,
    };
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return unusable("it cannot be read");
    };
    let not_after = certificate.validity().not_after.timestamp();
    let Some(name) = name(&certificate) else {
        return unusable(
            "it has no name (a SAN of type URI or DNS, or a common name) of 1 to 256 letters",
        );
    };
    let mut roles = Roles::default();
    let mut count = 0;
    let mut wrong = None;
    let mut unreadable = false;
    for unit in certificate.subject().iter_organizational_unit() {
        let Ok(text) = unit.as_str() else {
            unreadable = true;
            continue;
        };
        let Some(word) = text.strip_prefix(ROLE) else {
            continue;
        };
        count += 1;
        if let Err(error) = roles.add(word) {
            wrong.get_or_insert(error.to_string());
        }
    }
    if count == 0 {
        roles = default.clone();
    }
    let why = match wrong {
        _ if count > MOST_ROLES => Some(format!("it names more than {MOST_ROLES} roles")),
        // It may name a role, which perhaps gives less than the default and the other roles.
        _ if unreadable => Some(
            "its subject has an OU that cannot be read (write it as UTF8String or PrintableString)"
                .to_owned(),
        ),
        // Whoever wrote the word meant something by it, perhaps less than the other roles give.
        Some(wrong) => Some(format!("of its roles {wrong}")),
        None if roles.is_empty() => Some(format!("its subject has no OU that begins with {ROLE}")),
        None => None,
    };
    let refused = why.map(|why| Refusal::NoRole {
        name: name.clone(),
        why,
    });
    if refused.is_some() {
        roles = Roles::default();
    }
    let certified = Certified {
        serial: certificate.raw_serial_as_string().replace(':', ""),
        certificate: name,
        roles,
    };
    Read {
        caller: Some(Caller::Certified(Arc::new(certified))),
        refused,
        not_after,
    }
}

/// The name of a certificate's holder: the first URI of its alternative names, else the first DNS name, else the common
/// name.
fn name(certificate: &X509Certificate<'_>) -> Option<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|one| one.value.general_names.as_slice());
    let names = names.unwrap_or_default();
    let uri = names.iter().find_map(|one| match one {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let dns = names.iter().find_map(|one| match one {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    let common = certificate.subject().iter_common_name();
    let mut common = common.filter_map(|one| one.as_str().ok());
    let name = uri.or(dns).or_else(|| common.next())?;
    let length = name.chars().count();
    (1..=LONGEST_NAME)
        .contains(&length)
        .then(|| name.to_owned())
}

/// When a certificate ends, in seconds since 1970.
pub(super) fn not_after(der: &[u8]) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, SanType};

    /// No organizational unit.
    const NONE: Option<&str> = None;

    /// A certificate with these organizational units. rcgen keeps one value of each type, so several are made of
    /// several custom attributes.
    fn certificate(
        unit: Option<impl Into<DnValue>>,
        names: Vec<SanType>,
        common: Option<&str>,
    ) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        if let Some(unit) = unit {
            let kind = DnType::OrganizationalUnitName;
            params.distinguished_name.push(kind, unit);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn roles(read: &Read) -> String {
        match &read.caller {
            Some(Caller::Certified(certified)) => certified.roles.to_string(),
            other => panic!("{other:?}"),
        }
    }

    fn name_of(read: &Read) -> &str {
        match &read.caller {
            Some(Caller::Certified(certified)) => &certified.certificate,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_role_is_the_unit_of_the_subject_or_the_default() {
        let see: Roles = "see".parse().unwrap();
        for (unit, default, expected) in [
            (Some("memscope:control"), &see, "control"),
            (Some("memscope:see=ml"), &see, "see=ml"),
            (Some("other"), &see, "see"),
            (None, &see, "see"),
        ] {
            let told = read(&certificate(unit, vec![], Some("ada")), default);
            assert!(told.refused.is_none(), "{told:?}");
            assert_eq!(roles(&told), expected);
        }
        let told = read(&certificate(NONE, vec![], Some("ada")), &Roles::default());
        assert_eq!(
            told.refused.unwrap().to_string(),
            "certificate \"ada\" gives no right to ask: its subject has no OU that begins with memscope:"
        );
        // Nobody knows what a unit says that cannot be read: it may give less than the default.
        let coded = rcgen::string::BmpString::try_from("memscope:see=ml").unwrap();
        let told = read(
            &certificate(Some(DnValue::BmpString(coded)), vec![], Some("ada")),
            &see,
        );
        assert_eq!(
            told.refused.as_ref().unwrap().to_string(),
            "certificate \"ada\" gives no right to ask: its subject has an OU that cannot be read (write it as UTF8String or \
             PrintableString)"
        );
        assert_eq!(roles(&told), "none");
        // A role with an error in it is not replaced by what others get.
        let told = read(
            &certificate(Some("memscope:sea"), vec![], Some("ada")),
            &see,
        );
        assert!(told.refused.is_some());
        assert_eq!(roles(&told), "none");
    }

    #[test]
    fn the_name_is_the_uri_else_the_dns_name_else_the_common_name() {
        let see: Roles = "see".parse().unwrap();
        let uri = SanType::URI("spiffe://x/ops".try_into().unwrap());
        let dns = SanType::DnsName("ops.example".try_into().unwrap());
        let told = read(
            &certificate(NONE, vec![dns.clone(), uri], Some("ops")),
            &see,
        );
        assert_eq!(name_of(&told), "spiffe://x/ops");
        let told = read(&certificate(NONE, vec![dns], Some("ops")), &see);
        assert_eq!(name_of(&told), "ops.example");
        let told = read(&certificate(NONE, vec![], Some("ops")), &see);
        assert_eq!(name_of(&told), "ops");
        for common in [None, Some(""), Some("x".repeat(257).as_str())] {
            let told = read(&certificate(Some("memscope:admin"), vec![], common), &see);
            assert!(told.caller.is_none() && told.refused.is_some(), "{told:?}");
        }
    }

    proptest! {
        /// Damage makes it unusable, or leaves a certificate that says something; nothing panics.
        #[test]
        fn any_bytes_are_read(at in 0_usize..600, byte: u8, cut in 0_usize..600) {
            let mut der = certificate(Some("memscope:admin"), vec![], Some("ada"));
            let length = der.len();
            der[at % length] = byte;
            der.truncate(cut.max(1).min(length));
            let told = read(&der, &Roles::default());
            prop_assert!(told.caller.is_some() || told.refused.is_some());
        }
    }
}
