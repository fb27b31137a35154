//! Whether a process has a device open.
//!
//! The drivers of both vendors take memory only for a process that has opened a file of theirs in `/dev`, and keep that file open. A
//! process that has none open has no device memory. Owns: the names of those files. Refuses: to conclude anything where the process
//! could not have opened such a file, since it then works with a device that is not known here.

use std::fs;
use std::path::Path;

/// Beginnings of the names of files that are open in whoever may have device memory: NVIDIA's, Ascend's, AMD's, and that of Windows'
/// subsystem for Linux.
const OPENED: [&str; 6] = [
    "nvidia-uvm",
    "davinci",
    "devmm_svm",
    "hisi_hdc",
    "kfd",
    "dxg",
];
/// The same of files that are open also in whoever only asks about devices, as through NVML.
const ASKED: [&str; 2] = ["nvidia", "renderD"];

/// Whether a process has a device open: `Some(false)` if it surely has no device memory. `None` if there is no device in its `/dev`, if it
/// may only have asked about devices, or if it cannot be looked at. What it opens meanwhile counts as not open, so whoever needs to see all
/// of its calls must see them before asking.
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

fn is_any_open(process: &Path) -> Option<bool> {
    let (mut files, mut opened, mut asked) = (0, false, false);
    for entry in fs::read_dir(process.join("fd")).ok()? {
        files += 1;
        // A file that is closed meanwhile is not there any more.
        let Ok(path) = fs::read_link(entry.ok()?.path()) else {
            continue;
        };
        // In a program that has another root it is not the first folder of the path.
        let name = path
            .to_str()
            .and_then(|path| Some(path.rsplit_once("/dev/")?.1));
        let name = name.map(|name| name.strip_prefix("dri/").unwrap_or(name));
        let is_among = |starts: &[&str]| {
            name.is_some_and(|name| starts.iter().any(|start| name.starts_with(start)))
        };
        opened |= is_among(&OPENED);
        asked |= is_among(&ASKED);
    }
    // The kernel shows an empty folder of a process that has ended.
    (files > 0 && (opened || !asked)).then_some(opened)
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
            (
                &["nvidia0"],
                &["/dev/nvidiactl", "/dev/nvidia-uvm"],
                Some(true),
            ),
            (&["nvidia0"], &["/jail/dev/nvidia-uvm"], Some(true)),
            (
                &["nvidia0"],
                &["/dev/kfd", "/dev/dri/renderD128"],
                Some(true),
            ),
            // It may only have asked.
            (&["nvidia0"], &["/dev/nvidiactl", "/dev/nvidia0"], None),
            (&["nvidia0"], &["/dev/dri/renderD128"], None),
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
