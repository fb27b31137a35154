//! Whether a process has a device open.
//!
//! The drivers of both vendors take memory only for a process that has opened a file of theirs in `/dev`, and keep that file open. A
//! process that has none open has no device memory. Owns: the names of those files. Refuses: to conclude anything where the process
//! could not have opened such a file, since it then works with a device that is not known here.

use std::fs;
use std::path::Path;

/// Files of NVIDIA's driver, of Ascend's, and of the GPU in Windows' subsystem for Linux.
const OPENED: [&str; 5] = ["nvidia", "davinci", "devmm_svm", "hisi_hdc", "dxg"];

/// Whether a process surely has no device memory: there are devices in its `/dev`, and it has none of them open. What it opens while this
/// looks counts as not open, so whoever needs to see all of its calls must see them before asking.
pub fn has_none_open(pid: u32) -> bool {
    let process = format!("/proc/{pid}");
    none_open(Path::new(&process))
}

fn none_open(process: &Path) -> bool {
    let Ok(devices) = fs::read_dir(process.join("root/dev")) else {
        return false;
    };
    let is_device = |name: &str| {
        let number = ["nvidia", "davinci", "dxg"]
            .iter()
            .find_map(|start| name.strip_prefix(start));
        number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let has_devices = devices
        .flatten()
        .any(|entry| entry.file_name().to_str().is_some_and(is_device));
    has_devices && is_any_open(process) == Some(false)
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
    fn a_process_without_an_open_device_has_no_device_memory() {
        for (devices, open, none) in [
            (
                &["null", "nvidia0"][..],
                &["/dev/null", "/tmp/nvidia0"][..],
                true,
            ),
            (&["davinci3"], &["/dev/null"], true),
            (&["nvidia0"], &["/dev/null", "/dev/nvidiactl"], false),
            (&["nvidia0"], &["/dev/nvidia-caps/nvidia-cap3"], false),
            (&["davinci0"], &["/dev/devmm_svm"], false),
            // It works with something that is not known here.
            (&["null", "nvidiactl", "nvidia-uvm"], &["/dev/null"], false),
            (&[], &["/dev/null"], false),
            // It has ended.
            (&["nvidia0"], &[], false),
        ] {
            let folder = process(devices, open);
            assert_eq!(none_open(folder.path()), none, "{devices:?} {open:?}");
        }
        assert!(!none_open(Path::new("/proc/0")));
    }
}
