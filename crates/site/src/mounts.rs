//! Whether a user could keep the kernel waiting for a file.
//!
//! While the kernel places a probe it reads the file, and holds a lock without which no program on the machine can start
//! another one. The server of a FUSE file system is a program like any other, which may stop to answer. Who may be that
//! server, or may choose what an overlay lies on, therefore decides whether a probe may stand in the file.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use memscope_memory::file::OpenFile;

/// `f_type` of the file systems that users can have, from include/uapi/linux/magic.h. All others that a user can mount
/// keep their contents in the kernel's memory.
const FUSE: u64 = 0x6573_5546;
const OVERLAY: u64 = 0x794c_7630;
/// `NS_GET_USERNS` of include/uapi/linux/nsfs.h.
const GET_USERNS: libc::Ioctl = 0xb701;
/// `PROC_USER_INIT_INO` of include/linux/proc_ns.h: the number of the first user namespace.
const FIRST_USER_NAMESPACE: u64 = 4_026_531_837;

/// Who can keep the kernel waiting for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Nobody but the machine's administrator.
    ForNobody,
    /// A user serves the file system.
    ForServer,
    /// A user mounted the overlay, perhaps over such a file system.
    ForOverlay,
}

/// Says for whom the kernel may have to wait when it reads this file, which a process has mapped or named. What cannot be found
/// out counts as the worse.
pub fn waits(pid: u32, file: &OpenFile) -> Waits {
    let worse = match file.facts().file_system {
        FUSE => Waits::ForServer,
        OVERLAY => Waits::ForOverlay,
        _ => return Waits::ForNobody,
    };
    if is_administrators(pid, file).unwrap_or(false) {
        Waits::ForNobody
    } else {
        worse
    }
}

/// Whether the file lies on a mount that only the administrator can have made.
fn is_administrators(pid: u32, file: &OpenFile) -> io::Result<bool> {
    let own = std::fs::read("/proc/self/mountinfo")?;
    let number = mount_number(file)?;
    if let Some(mount) = find(&own, |mount| mount.number == number) {
        return Ok(mount.is_roots());
    }
    let theirs = crate::process::read(pid, "mountinfo").map_err(io::Error::other)?;
    let Some(mount) = find(&theirs, |mount| mount.number == number) else {
        return Ok(false);
    };
    // What is mounted here as well was mounted by the administrator, and so was all in a mount namespace that belongs to
    // the first user namespace.
    let here = find(&own, |other| other.device == mount.device).is_some();
    Ok(mount.is_roots() && (here || belongs_to_first_user_namespace(pid)?))
}

/// Number of the mount that the file was opened through.
fn mount_number(file: &OpenFile) -> io::Result<u64> {
    let path = file.own_path();
    let fd = path.file_name().unwrap_or_default().to_string_lossy();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    number
        .and_then(|number| number.trim().parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn belongs_to_first_user_namespace(pid: u32) -> io::Result<bool> {
    let mounts = std::fs::File::open(format!("/proc/{pid}/ns/mnt"))?;
    // SAFETY: this request takes no argument and returns a new descriptor or -1.
    let fd = unsafe { libc::ioctl(mounts.as_raw_fd(), GET_USERNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else has it.
    let users = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(users.metadata()?.ino() == FIRST_USER_NAMESPACE)
}

/// A line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    number: u64,
    /// Major and minor number of the file system, as text.
    device: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    /// Whether the file system is not served by a user. FUSE names its server's user among its options; virtiofs is FUSE as
    /// well, but is served by the host of a virtual machine.
    fn is_roots(&self) -> bool {
        let is_fuse =
            self.kind == "fuse" || self.kind.starts_with("fuse.") || self.kind == "fuseblk";
        !is_fuse || self.options.split(',').any(|option| option == "user_id=0")
    }
}

fn find<'a>(mountinfo: &'a [u8], wanted: impl Fn(&Mount<'a>) -> bool) -> Option<Mount<'a>> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let mut mounts = lines.filter_map(|line| parse(std::str::from_utf8(line).ok()?));
    mounts.find(|mount| wanted(mount))
}

/// Parses a line as proc_pid_mountinfo(5) describes it. Spaces in names are escaped there.
fn parse(line: &str) -> Option<Mount<'_>> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ');
    let number = mount.next()?.parse().ok()?;
    let device = mount.nth(1)?;
    let mut file_system = file_system.split(' ');
    Some(Mount {
        number,
        device,
        kind: file_system.next()?,
        options: file_system.nth(1)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_serves_a_file_system() {
        let lines = b"28 1 0:25 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
            70 28 0:51 / /home/a/mnt rw,nosuid - fuse.sshfs a@b:/ rw,user_id=1000,group_id=1000\n\
            71 28 0:52 / /srv/with\\040space rw - fuse.x y rw,user_id=0,group_id=0,allow_other\n\
            72 28 0:53 / /host rw - virtiofs host rw\n\
            73 28 0:54 / /a rw shared:3 master:1 - overlay overlay rw,lowerdir=/x\n\
            nonsense\n74\n";
        let by_number = |number| find(lines, |mount| mount.number == number).unwrap();
        assert_eq!(by_number(70).device, "0:51");
        let roots: Vec<bool> = [28, 70, 71, 72, 73]
            .map(|n| by_number(n).is_roots())
            .to_vec();
        assert_eq!(roots, [true, false, true, true, true]);
        assert!(find(lines, |mount| mount.number == 74).is_none());
    }

    #[test]
    fn our_own_files_wait_for_nobody() {
        let own = std::env::current_exe().unwrap();
        let file = OpenFile::given(std::fs::File::open(own).unwrap()).unwrap();
        let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap();
        let number = mount_number(&file).unwrap();
        assert!(find(&mountinfo, |mount| mount.number == number).is_some());
        let pid = std::process::id();
        assert!(is_administrators(pid, &file).unwrap());
        assert_eq!(waits(pid, &file), Waits::ForNobody);
    }
}
