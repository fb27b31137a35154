//! Checks whether a daemon listens at the socket.

use crate::preflight::{Check, Status};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::Path;

/// State of the socket's path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketState {
    /// Some process listens.
    #[error("somebody listens")]
    Listening,
    /// There is no file at the path.
    #[error("nothing is there")]
    Absent,
    /// There is a socket that no process listens at any more.
    #[error("a daemon that is gone left it behind")]
    Stale,
    /// This user may not connect.
    #[error("this user may not connect to it")]
    Forbidden,
    /// The queue of waiting connections is full (`EAGAIN`), because the listener accepts none.
    #[error("somebody has it and does not answer")]
    Stuck,
    /// Connecting failed for another reason.
    #[error("it cannot be connected to: {0}")]
    Other(#[source] std::io::Error),
}

/// Connects without sending anything, and closes the connection.
#[must_use]
pub(crate) fn socket_state(path: &Path) -> SocketState {
    let attempt = || {
        let address = SocketAddrUnix::new(path)?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::connect(&socket, &address)
    };
    match attempt() {
        Ok(()) => SocketState::Listening,
        Err(Errno::NOENT | Errno::NOTDIR) => SocketState::Absent,
        Err(Errno::CONNREFUSED) => SocketState::Stale,
        Err(Errno::ACCESS | Errno::PERM) => SocketState::Forbidden,
        Err(Errno::AGAIN) => SocketState::Stuck,
        Err(error) => SocketState::Other(error.into()),
    }
}

pub(super) fn check(path: &Path) -> Check {
    let state = socket_state(path);
    let found = format!("{}: {state}", path.display());
    let start = "start it: sudo memscoped (or: sudo systemctl start memscoped)";
    match state {
        SocketState::Listening => {
            Check::new("daemon", Status::Ok, found, "memscope-ctl can ask it")
        }
        SocketState::Absent | SocketState::Stale => {
            Check::new("daemon", Status::Warn, found, "no daemon runs there").todo(start)
        }
        SocketState::Forbidden => Check::new(
            "daemon",
            Status::Warn,
            found,
            "a daemon may run there; only root and the group memscope may ask it",
        )
        .todo("ask as root, or join the group: sudo usermod -aG memscope $USER"),
        SocketState::Stuck => Check::new("daemon", Status::Fail, found, "questions would hang")
            .todo("look at its log, restart it"),
        SocketState::Other(_) => {
            Check::new("daemon", Status::Warn, found, "it cannot be asked").todo(start)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn tells_the_states_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        assert!(matches!(socket_state(&path), SocketState::Absent));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(socket_state(&path), SocketState::Listening));
        assert_eq!(check(&path).status, Status::Ok);
        drop(listener);
        assert!(matches!(socket_state(&path), SocketState::Stale));
        assert!(check(&path).todo.is_some());
        let long = format!("/tmp/{}", "x".repeat(300));
        assert!(matches!(
            socket_state(Path::new(&long)),
            SocketState::Other(_)
        ));
    }
}
