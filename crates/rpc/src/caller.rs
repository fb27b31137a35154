//! Who makes a request.

use crate::Refusal;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tonic::Status;
use tonic::transport::server::UdsConnectInfo;

/// The process at the other end of the socket, as the kernel identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Effective user id when it connected.
    pub uid: u32,
    /// Effective group id when it connected.
    pub gid: u32,
    /// Process id, where the kernel gives it.
    pub pid: Option<u32>,
}

impl Caller {
    /// Whether the caller is root, who may see everything.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether this caller may see (and trace) a process with these real, effective and saved
    /// user ids. One id that differs is enough to refuse: such a process has more rights than the
    /// caller, or may take them back.
    #[must_use]
    pub fn may_see(&self, uids: &[u32; 3]) -> bool {
        self.is_root() || uids.iter().all(|uid| *uid == self.uid)
    }
}

/// Function that finds the caller from what the transport knows of the connection; `None`: the caller is not known.
pub type Identify = Arc<dyn Fn(Option<&UdsConnectInfo>) -> Option<Caller> + Send + Sync>;

/// The function for real servers: it takes the credentials that the kernel stores with the connection (`SO_PEERCRED`).
#[must_use]
pub fn peer_credentials() -> Identify {
    Arc::new(|info| {
        let credentials = info?.peer_cred?;
        Some(Caller {
            uid: credentials.uid(),
            gid: credentials.gid(),
            pid: credentials.pid().and_then(|pid| u32::try_from(pid).ok()),
        })
    })
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// `None`: the kernel does not say.
    pub(crate) caller: Option<Caller>,
    /// Why every request of this connection is refused, if so.
    pub(crate) refused: Option<Arc<Refusal>>,
}

pub(crate) fn identified(extensions: &tonic::Extensions) -> Result<Caller, Status> {
    let peer = extensions.get::<Peer>();
    peer.and_then(|peer| peer.caller).ok_or_else(|| {
        Status::unauthenticated(
            "the kernel does not say who is connected — connect to the Unix socket directly",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_uids_must_be_the_callers() {
        let caller = |uid| Caller {
            uid,
            gid: uid,
            pid: None,
        };
        assert!(caller(1000).may_see(&[1000; 3]));
        for foreign in [[0, 1000, 1000], [1000, 0, 1000], [1000, 1000, 0]] {
            assert!(!caller(1000).may_see(&foreign));
            assert!(caller(0).may_see(&foreign));
        }
    }
}
