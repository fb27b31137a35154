//! Who makes a request.

use crate::Refusal;
use crate::roles::Roles;
use memscope_ledger::Who;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use tonic::Status;
use tonic::transport::server::UdsConnectInfo;

/// Who is at the other end of a connection. It is written down with rules and triggers: a local user in the form that
/// it had before there were certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Caller {
    /// A process of this machine, at the Unix socket.
    Local(LocalUser),
    /// The holder of a certificate, at a TCP port.
    Certified(Arc<Certified>),
}

/// The process at the other end of the Unix socket, as the kernel identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalUser {
    /// Effective user id when it connected.
    pub uid: u32,
    /// Effective group id when it connected.
    pub gid: u32,
    /// Process id, where the kernel gives it.
    pub pid: Option<u32>,
}

/// The holder of a certificate that a trusted authority has signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certified {
    /// The name that the certificate gives: a URI, else a DNS name, else the common name.
    pub certificate: String,
    /// Serial number of the certificate, in hexadecimal digits.
    pub serial: String,
    /// What the holder may do.
    pub roles: Roles,
}

/// Whom a rule or a trigger belongs to, and for whom limits count: all connections of one user, or of one
/// certificate's name, are one account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Account {
    /// A user of this machine.
    Local(u32),
    /// All holders of certificates with this name.
    Certificate(Arc<str>),
    /// Those whom the kernel does not name.
    Unknown,
}

impl Account {
    /// The user id in messages on the wire. Accounts that are no users of this machine have the largest number, which
    /// is no user's; whose they are [`Account::certificate`] tells.
    #[must_use]
    pub fn wire_uid(&self) -> u32 {
        match self {
            Account::Local(uid) => *uid,
            Account::Certificate(_) | Account::Unknown => u32::MAX,
        }
    }

    /// The name in the certificate, in messages on the wire; `None` for users of this machine.
    #[must_use]
    pub fn certificate(&self) -> Option<&str> {
        match self {
            Account::Certificate(name) => Some(name),
            Account::Local(_) | Account::Unknown => None,
        }
    }

    /// Whether it is the account of this machine's root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        *self == Account::Local(0)
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Account::Local(0) => f.write_str("root"),
            Account::Local(uid) => write!(f, "user {uid}"),
            Account::Certificate(name) => write!(f, "certificate {name:?}"),
            Account::Unknown => f.write_str("a user whom the kernel does not name"),
        }
    }
}

impl Caller {
    /// A local user.
    #[must_use]
    pub const fn local(uid: u32, gid: u32, pid: Option<u32>) -> Caller {
        Caller::Local(LocalUser { uid, gid, pid })
    }

    /// Root of this machine, whoever acts for it.
    #[must_use]
    pub fn root() -> Caller {
        Caller::local(0, 0, None)
    }

    /// Whether the caller may do everything: root, or a certificate with the role `admin`.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        match self {
            Caller::Local(user) => user.uid == 0,
            Caller::Certified(certified) => certified.roles.admin,
        }
    }

    /// Whether this caller may see all processes.
    #[must_use]
    pub fn sees_all(&self) -> bool {
        match self {
            Caller::Local(user) => user.uid == 0,
            Caller::Certified(certified) => certified.roles.see_all(),
        }
    }

    /// Whether this caller may see (and, if their roles allow it, trace) a process with these real, effective and
    /// saved user ids. One id that differs is enough to refuse: such a process has more rights than the caller, or
    /// may take them back. A certificate that is for some namespaces sees nothing by user ids.
    #[must_use]
    pub fn may_see(&self, uids: &[u32; 3]) -> bool {
        let is_own = |user: &LocalUser| uids.iter().all(|uid| *uid == user.uid);
        self.sees_all() || matches!(self, Caller::Local(user) if is_own(user))
    }

    /// Whether this caller may see a process with these user ids and this Kubernetes namespace, as far as either is
    /// known.
    #[must_use]
    pub fn may_see_in(&self, uids: Option<&[u32; 3]>, namespace: Option<&str>) -> bool {
        match self {
            Caller::Local(_) => match uids {
                Some(uids) => self.may_see(uids),
                None => self.sees_all(),
            },
            Caller::Certified(certified) => certified.roles.see_namespace(namespace),
        }
    }

    /// The user id, of a local user.
    #[must_use]
    pub fn uid(&self) -> Option<u32> {
        match self {
            Caller::Local(user) => Some(user.uid),
            Caller::Certified(_) => None,
        }
    }

    /// To whom belongs what this caller makes.
    #[must_use]
    pub fn account(&self) -> Account {
        match self {
            Caller::Local(user) => Account::Local(user.uid),
            Caller::Certified(certified) => {
                Account::Certificate(certified.certificate.as_str().into())
            }
        }
    }

    /// Whether both are the same user, or holders of certificates with the same name.
    #[must_use]
    pub fn is_same(&self, other: &Caller) -> bool {
        match (self, other) {
            (Caller::Local(one), Caller::Local(other)) => one.uid == other.uid,
            (Caller::Certified(one), Caller::Certified(other)) => {
                one.certificate == other.certificate
            }
            _ => false,
        }
    }
}

/// The Kubernetes namespace of a process, where the machine knows it. What a process says of itself does not count.
pub(crate) fn namespace_of(who: &Who) -> Option<&str> {
    who.namespace.as_deref()
}

/// Function that finds the caller from what the transport knows of the connection; `None`: the caller is not known.
pub type Identify = Arc<dyn Fn(Option<&UdsConnectInfo>) -> Option<Caller> + Send + Sync>;

/// The function for real servers: it takes the credentials that the kernel stores with the connection (`SO_PEERCRED`).
#[must_use]
pub fn peer_credentials() -> Identify {
    Arc::new(|info| {
        let credentials = info?.peer_cred?;
        Some(Caller::Local(LocalUser {
            uid: credentials.uid(),
            gid: credentials.gid(),
            pid: credentials.pid().and_then(|pid| u32::try_from(pid).ok()),
        }))
    })
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// `None`: the kernel does not say.
    pub(crate) caller: Option<Caller>,
    /// Why every request of this connection is refused, if so.
    pub(crate) refused: Option<Arc<Refusal>>,
    /// The other end's address; `None` at the Unix socket.
    pub(crate) address: Option<SocketAddr>,
}

impl Peer {
    pub(crate) fn account(&self) -> Account {
        match (&self.caller, self.address) {
            (Some(caller), _) => caller.account(),
            // A certificate that cannot be used takes no local user's room.
            (None, Some(_)) => Account::Certificate("".into()),
            (None, None) => Account::Unknown,
        }
    }
}

/// In the extensions of a request: the caller's roles do not give what it needs. Whoever asks for the caller gets this
/// refusal, so that nothing is done before.
#[derive(Clone, Debug)]
pub(crate) struct Denied(pub(crate) Arc<Refusal>);

pub(crate) fn identified(extensions: &tonic::Extensions) -> Result<Caller, Status> {
    if let Some(Denied(refusal)) = extensions.get::<Denied>() {
        return Err(refusal.duplicate().into());
    }
    let peer = extensions.get::<Peer>();
    peer.and_then(|peer| peer.caller.clone()).ok_or_else(|| {
        Status::unauthenticated(
            "the kernel does not say who is connected — connect to the Unix socket directly",
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn certified(name: &str, role: &str) -> Caller {
        Caller::Certified(Arc::new(Certified {
            certificate: name.to_owned(),
            serial: "01".to_owned(),
            roles: role.parse().unwrap(),
        }))
    }

    #[test]
    fn all_three_uids_must_be_the_callers() {
        let caller = |uid| Caller::local(uid, uid, None);
        assert!(caller(1000).may_see(&[1000; 3]));
        for foreign in [[0, 1000, 1000], [1000, 0, 1000], [1000, 1000, 0]] {
            assert!(!caller(1000).may_see(&foreign));
            assert!(caller(0).may_see(&foreign));
        }
    }

    #[test]
    fn a_certificate_is_no_user() {
        let of_namespace = certified("ml", "see=ml");
        assert!(!of_namespace.may_see(&[u32::MAX; 3]) && !of_namespace.may_see(&[0; 3]));
        assert!(of_namespace.may_see_in(Some(&[0; 3]), Some("ml")));
        assert!(!of_namespace.may_see_in(Some(&[0; 3]), Some("web")));
        assert!(!of_namespace.may_see_in(None, None));
        assert!(certified("ops", "see").may_see(&[7; 3]));
        assert!(!certified("ops", "control").is_admin());
        assert!(certified("ops", "admin").is_admin());
        assert!(!certified("a", "see").is_same(&certified("b", "see")));
        assert!(certified("a", "see").is_same(&certified("a", "control")));
        assert!(!certified("a", "admin").is_same(&Caller::root()));
        assert_ne!(certified("a", "admin").account(), Account::Local(0));
        // A local user is not asked for a namespace.
        assert!(Caller::local(5, 5, None).may_see_in(Some(&[5; 3]), None));
        assert!(!Caller::local(5, 5, None).may_see_in(None, Some("ml")));
    }

    /// What daemons wrote down before there were certificates is still read, and a local user is written as before.
    #[test]
    fn written_as_before() {
        let old = r#"{"uid":1000,"gid":100,"pid":7}"#;
        let caller: Caller = serde_json::from_str(old).unwrap();
        assert_eq!(caller, Caller::local(1000, 100, Some(7)));
        assert_eq!(serde_json::to_string(&caller).unwrap(), old);
        let new = certified("spiffe://x/ops", "control");
        let text = serde_json::to_string(&new).unwrap();
        assert_eq!(serde_json::from_str::<Caller>(&text).unwrap(), new);
        assert!(!text.contains("uid"), "{text}");
    }
}
