//! The Unix socket: it is never taken from another daemon, nobody can connect before its permissions are set, and its
//! files are removed at the end.

use rustix::fs::{FlockOperation, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Largest number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Where to listen and who may connect.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Path of the socket.
    pub path: PathBuf,
    /// Group whose members may connect, if the machine has it. `None`: only the daemon's own user
    /// and root.
    pub group: Option<String>,
}

impl ListenOptions {
    /// The daemon's usual socket: members of the group `memscope` may connect, where that group exists.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        ListenOptions {
            path: path.into(),
            group: Some("memscope".into()),
        }
    }

    /// A socket to which only the daemon's own user and root can connect.
    #[must_use]
    pub fn private(path: impl Into<PathBuf>) -> Self {
        ListenOptions {
            path: path.into(),
            group: None,
        }
    }

    /// Whether a daemon could listen there if no other one did. Nothing is made or removed.
    ///
    /// # Errors
    /// If the path cannot be that of a socket, or something else is there.
    pub fn check(&self) -> Result<(), ListenError> {
        address_of(&self.path)?;
        let there = fs::symlink_metadata(&self.path);
        match there.is_ok_and(|there| !there.file_type().is_socket()) {
            true => Err(ListenError::NotASocket {
                path: self.path.clone(),
            }),
            false => Ok(()),
        }
    }
}

fn address_of(path: &Path) -> Result<SocketAddrUnix, ListenError> {
    SocketAddrUnix::new(path).map_err(|source| ListenError::BadPath {
        path: path.into(),
        source: source.into(),
    })
}

/// Who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The daemon's own user and root: mode 0600.
    Owner,
    /// Also the members of this group: mode 0660.
    Group(String),
}

/// Why the daemon could not listen at the socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon listens there.
    #[error(
        "another daemon listens at {path} — stop it, or choose another socket with --socket PATH"
    )]
    InUse {
        /// Path of the socket.
        path: PathBuf,
    },
    /// Something that is no socket exists at the path.
    #[error(
        "{path} exists and is no socket — remove it, or choose another path with --socket PATH"
    )]
    NotASocket {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path cannot be the address of a socket.
    #[error(
        "{path} cannot be the path of a socket (at most 107 bytes) — choose a shorter one with \
         --socket PATH"
    )]
    BadPath {
        /// Path of the socket.
        path: PathBuf,
        /// Why the path cannot be used.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{step} failed for {path} — may this user write there?")]
    Io {
        /// What was being done, in words for the message (`binding the socket`).
        step: &'static str,
        /// File or folder that it was done to.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// A socket that listens. Dropping it removes its files.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: UnixListener,
    claim: Claim,
    reach: Reach,
}

impl Listener {
    /// Creates the socket and listens. Must be called inside a tokio runtime.
    ///
    /// A socket file at which nobody listens is removed. A lock file beside it decides between two daemons that start
    /// at the same time.
    pub fn bind(options: &ListenOptions) -> Result<Listener, ListenError> {
        let path = &options.path;
        let address = address_of(path)?;
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            fs::create_dir_all(folder).map_err(io_error("creating the folder", folder))?;
        }
        let mut claim = Claim::lock(path)?;
        remove_stale(path, &address)?;

        let socket = unix_socket(path)?;
        rustix::net::bind(&socket, &address).map_err(io_error("binding the socket", path))?;
        claim.inode = fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()));
        // Nobody can connect before `listen`, so nobody gets in while the mode is still the one from the umask.
        let reach = restrict(path, options.group.as_deref())?;
        rustix::net::listen(&socket, BACKLOG).map_err(io_error("listening", path))?;
        let socket = std::os::unix::net::UnixListener::from(socket);
        let socket = UnixListener::from_std(socket).map_err(io_error("listening", path))?;
        Ok(Listener {
            socket,
            claim,
            reach,
        })
    }

    /// Who may connect.
    #[must_use]
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.claim.path
    }

    pub(crate) fn into_parts(self) -> (UnixListener, Claim) {
        (self.socket, self.claim)
    }
}

/// Exclusive right to the path: holds the lock, and removes socket file and lock file when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    lock_path: PathBuf,
    inode: Option<(u64, u64)>,
    _lock: File,
}

impl Claim {
    fn lock(path: &Path) -> Result<Claim, ListenError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock_path = PathBuf::from(name);
        loop {
            let file = rustix::fs::open(
                &lock_path,
                OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
                Mode::RUSR | Mode::WUSR,
            )
            .map_err(io_error("opening the lock", &lock_path))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(ListenError::InUse { path: path.into() });
                }
                Err(error) => return Err(io_error("locking", &lock_path)(error)),
            }
            let file = File::from(file);
            let held = file.metadata().map_err(io_error("locking", &lock_path))?;
            // The last owner of the lock file may have removed it between our open and our lock. Then we hold the lock
            // of a file that has no name any more, and try again.
            let named = fs::symlink_metadata(&lock_path).ok();
            if named.is_some_and(|m| (m.dev(), m.ino()) == (held.dev(), held.ino())) {
                return Ok(Claim {
                    path: path.into(),
                    lock_path,
                    inode: None,
                    _lock: file,
                });
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let ours = self.inode.is_some()
            && fs::symlink_metadata(&self.path)
                .ok()
                .map(|m| (m.dev(), m.ino()))
                == self.inode;
        // Errors are ignored: nothing can be done about a file that cannot be removed.
        if ours {
            let _ = fs::remove_file(&self.path);
        }
        let _ = fs::remove_file(&self.lock_path);
    }
}

fn unix_socket(path: &Path) -> Result<OwnedFd, ListenError> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(io_error("making a socket", path))
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("looking at the old socket", path)(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: path.into() });
        }
        Ok(_) => {}
    }
    let probe = unix_socket(path)?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(io_error("removing the old socket", path))
        }
        Err(Errno::NOENT) => Ok(()),
        // EAGAIN: the queue of waiting connections is full. So somebody listens there, though they accept nothing now.
        Ok(()) | Err(Errno::AGAIN) => Err(ListenError::InUse { path: path.into() }),
        Err(error) => Err(io_error("asking at the old socket", path)(error)),
    }
}

fn restrict(path: &Path, group: Option<&str>) -> Result<Reach, ListenError> {
    let set = |mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(io_error("setting the mode", path))
    };
    set(0o600)?;
    let Some((group, gid)) = group.and_then(|name| Some((name, group_id(name)?))) else {
        return Ok(Reach::Owner);
    };
    match rustix::fs::chown(path, None, Some(Gid::from_raw(gid))) {
        Ok(()) => {
            set(0o660)?;
            Ok(Reach::Group(group.into()))
        }
        // A daemon that is neither root nor a member of the group may not set it: the socket stays private.
        Err(error) => {
            tracing::warn!(%error, group, "the socket stays private: its group cannot be set");
            Ok(Reach::Owner)
        }
    }
}

/// The id of a group of this machine, from /etc/group: `systemd-sysusers` and packages put system groups there.
fn group_id(name: &str) -> Option<u32> {
    find_group(&fs::read_to_string("/etc/group").ok()?, name)
}

fn find_group(table: &str, name: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name))
            .then(|| fields.nth(1)?.parse().ok())
            .flatten()
    })
}

fn io_error<E: Into<io::Error>>(
    step: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> ListenError + use<E> {
    let path = path.to_owned();
    move |source| ListenError::Io {
        step,
        path,
        source: source.into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_group() {
        let table = "root:x:0:\nmemscope2:x:12:\nmemscope:x:998:ada,bob\nbroken\n";
        assert_eq!(find_group(table, "memscope"), Some(998));
        assert_eq!(find_group(table, "mem"), None);
        assert_eq!(find_group(table, "broken"), None);
    }

    #[tokio::test]
    async fn takes_over_a_stale_socket_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/s.sock");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());

        let listener = Listener::bind(&ListenOptions::private(&path)).unwrap();
        assert_eq!(listener.reach(), &Reach::Owner);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let second = Listener::bind(&ListenOptions::private(&path)).unwrap_err();
        assert!(matches!(second, ListenError::InUse { .. }), "{second}");
        drop(listener);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_foreign_listener_and_a_plain_file_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let _foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = Listener::bind(&ListenOptions::private(&path)).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        assert!(path.exists());

        let plain = folder.path().join("notes");
        fs::write(&plain, "mine").unwrap();
        let error = Listener::bind(&ListenOptions::private(&plain)).unwrap_err();
        assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
        assert_eq!(fs::read_to_string(&plain).unwrap(), "mine");
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_said() {
        let path = format!("/tmp/{}", "x".repeat(200));
        let error = Listener::bind(&ListenOptions::private(path)).unwrap_err();
        assert!(matches!(error, ListenError::BadPath { .. }), "{error}");
    }
}
