//! Labels of a Kubernetes pod, from a file that kubelet writes for the pod.
//!
//! Owns: where the file is, and its form. A pod that mounts its labels (the downward API, file name `labels`) has them on the node in a
//! volume beneath kubelet's folder. So no API server has to be asked, and nothing is opened through the pod's own root folder, where
//! the pod decides what a path means.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Kinds of volumes in which the file can be, as kubelet names their folders.
const KINDS: &[&str] = &["kubernetes.io~downward-api", "kubernetes.io~projected"];
/// Number of bytes of the file that are read. Kubernetes allows 256 KiB of annotations; labels are far smaller.
const LARGEST: u64 = 1 << 20;

/// Labels of the pod with this uid; empty where the pod mounts none.
pub(super) fn of_pod(volumes: &Path, uid: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for kind in KINDS {
        let folder = volumes.join(uid).join("volumes").join(kind);
        let Ok(found) = std::fs::read_dir(folder) else {
            continue;
        };
        for volume in found.flatten() {
            if let Ok(file) = File::open(volume.path().join("labels")) {
                let mut text = String::new();
                if file.take(LARGEST).read_to_string(&mut text).is_ok() {
                    labels.extend(text.lines().filter_map(label));
                }
            }
        }
    }
    labels
}

/// Reads `key="value"`. Kubelet quotes values as Go does, but those of labels have letters, digits, `.`, `_` and `-` only.
fn label(line: &str) -> Option<(String, String)> {
    let (key, quoted) = line.split_once('=')?;
    let value = quoted.strip_prefix('"')?.strip_suffix('"')?;
    (!key.is_empty() && !value.contains(['"', '\\'])).then(|| (key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_a_line() {
        let key = |key: &str, value: &str| Some((key.to_owned(), value.to_owned()));
        assert_eq!(label("app=\"trainer\""), key("app", "trainer"));
        assert_eq!(
            label("app.kubernetes.io/name=\"llama-3.1\""),
            key("app.kubernetes.io/name", "llama-3.1")
        );
        assert_eq!(label("empty=\"\""), key("empty", ""));
        for line in ["", "app", "app=trainer", "=\"x\"", "a=\"b\\\"c\"", "a=\""] {
            assert_eq!(label(line), None, "{line}");
        }
    }
}
