//! Whether a process has a device open.
//!
//! The drivers of both vendors take memory only for a process that has opened a file of theirs in `/dev`, and keep that file open. A
//! process that has none open has no device memory. Owns: the names of those files. Refuses: to conclude anything where the process
//! could not have opened such a file, since it then works with a device that is not known here.

use std::fs;
use std::path::Path;

/// Files of NVIDIA's driver, of Ascend's, and of the GPU in Windows' subsystem for Linux.
const OPENED: [&str; 5] = ["nvidia", "davinci", "devmm_svm", "hisi_hdc", "dxg"];

/// Whether a process has a device open: `Some(false)` if it surely has no device memory. `None` if there is no device in its `/dev`, or it
/// cannot be looked at. What it opens meanwhile counts as not open, so whoever needs to see all of its calls must see them before asking.
pub fn has_device_open(pid: u32) -> Option<bool> {
    has_open(Path::new(&format!("/proc/{pid}")))
}

fn has_open(process: &Path) -> Option<bool> {
    let is_device = |name: &str| {
        let number = ["nvidia", "davinci", "dxg"]
            .iter()
            .find_map(|start| name.strip_prefix(start));
        number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    fs::read_dir(process.join("root/dev"))
        .ok()?
        .flatten()
        .find(|entry| entry.file_name().to_str().is_some_and(is_device))?;
    is_any_open(process)
}

/// `None` if it cannot be read, or the process ends meanwhile.
fn is_any_open(process: &Path) -> Option<bool> {
    let mut any = false;
    let mut files = 0;
    for entry in fs::read_dir(process.join("fd")).ok()? {
        files += 1;
        // A file that is closed meanwhile is not there any more.
        let Ok(path) = fs::read_link(entry.ok()?.path()) else {
            continue;
        };
        let name = path.strip_prefix("/dev").ok().and_then(Path::to_str);
        any |= name.is_some_and(|name| OPENED.iter().any(|start| name.starts_with(start)));
    }
    // The kernel shows an empty folder of a process that has ended.
    (files > 0).then_some(any)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(devices: &[&str], open: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("root/dev")).unwrap();
        fs::create_dir(folder.path().join("fd")).unwrap();
        for device in devices {
            fs::write(folder.path().join("root/dev").join(device), "").unwrap();
        }
        for (number, path) in open.iter().enumerate() {
            symlink(path, folder.path().join("fd").join(number.to_string())).unwrap();
        }
        folder
    }

    #[test]
    fn whether_a_process_has_a_device_open() {
        for (devices, open, told) in [
            (
                &["null", "nvidia0"][..],
                &["/dev/null", "/tmp/nvidia0"][..],
                Some(false),
            ),
            (&["davinci3"], &["/dev/null"], Some(false)),
            (&["nvidia0"], &["/dev/null", "/dev/nvidiactl"], Some(true)),
            (&["nvidia0"], &["/dev/nvidia-caps/nvidia-cap3"], Some(true)),
            (&["davinci0"], &["/dev/devmm_svm"], Some(true)),
            // It works with something that is not known here.
            (&["null", "nvidiactl", "nvidia-uvm"], &["/dev/null"], None),
            (&[], &["/dev/null"], None),
            // It has ended.
            (&["nvidia0"], &[], None),
        ] {
            let folder = process(devices, open);
            assert_eq!(has_open(folder.path()), told, "{devices:?} {open:?}");
        }
        assert_eq!(has_open(Path::new("/proc/0")), None);
    }
}
