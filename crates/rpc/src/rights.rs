//! What each method needs from the holder of a certificate, and which ones are written down in the audit log.
//!
//! Owns: the one table of that. A test compares it with the services' description: a method that is missing here does
//! not pass. Without an entry a method is refused to every certificate. Local users are not asked for roles; what they
//! may do depends on whose the processes are (`access`).

use crate::roles::Right;

/// A method of a service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// Path of its requests.
    pub(crate) path: &'static str,
    /// What a certificate must give.
    pub(crate) needs: Right,
    /// The word by which it is written down in the audit log, if it is.
    pub(crate) action: Option<&'static str>,
}

const fn question(path: &'static str) -> Method {
    Method {
        path,
        needs: Right::See,
        action: None,
    }
}

const fn action(path: &'static str, needs: Right, action: &'static str) -> Method {
    Method {
        path,
        needs,
        action: Some(action),
    }
}

/// All methods of all services.
pub(crate) const METHODS: &[Method] = &[
    action("/memscope.v1.Memscope/Attach", Right::Control, "attach"),
    action("/memscope.v1.Memscope/Detach", Right::Control, "detach"),
    question("/memscope.v1.Memscope/List"),
    question("/memscope.v1.Memscope/Stats"),
    question("/memscope.v1.Memscope/Devices"),
    question("/memscope.v1.Memscope/Leaks"),
    question("/memscope.v1.Memscope/Fluctuation"),
    question("/memscope.v1.Memscope/Steps"),
    action("/memscope.v1.Memscope/Mark", Right::Control, "mark"),
    question("/memscope.v1.Memscope/Marks"),
    action("/memscope.v1.Memscope/Snapshot", Right::See, "snapshot"),
    question("/memscope.v1.Memscope/Stacks"),
    action("/memscope.v1.Memscope/Export", Right::Control, "export"),
    action("/memscope.v1.Memscope/Record", Right::Admin, "record"),
    question("/memscope.v1.Memscope/Diff"),
    question("/memscope.v1.Memscope/Pool"),
    question("/memscope.v1.Memscope/Holders"),
    question("/memscope.v1.Memscope/Owners"),
    question("/memscope.v1.Memscope/Events"),
    question("/memscope.v1.Memscope/Status"),
    action(
        "/memscope.v1.Triggers/AddTrigger",
        Right::Control,
        "trigger_add",
    ),
    action(
        "/memscope.v1.Triggers/RemoveTrigger",
        Right::Control,
        "trigger_remove",
    ),
    question("/memscope.v1.Triggers/ListTriggers"),
    question("/memscope.v1.Triggers/ListKept"),
    action(
        "/memscope.v1.Triggers/GetKept",
        Right::Control,
        "export_kept",
    ),
    question("/grpc.health.v1.Health/Check"),
    question("/grpc.health.v1.Health/Watch"),
    question("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
    question("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
];

/// The method with this path; `None`: no service has it.
pub(crate) fn of(path: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.path == path)
}

/// Paths, needed roles and audit words of all methods, for tests that try each role against each of them.
#[cfg(feature = "fake")]
#[must_use]
pub fn all() -> Vec<(&'static str, Right, Option<&'static str>)> {
    let row = |method: &Method| (method.path, method.needs, method.action);
    METHODS.iter().map(row).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    fn paths(descriptors: &[u8]) -> Vec<String> {
        let set = FileDescriptorSet::decode(descriptors).unwrap();
        let mut paths = Vec::new();
        for file in &set.file {
            for service in &file.service {
                let methods = service.method.iter();
                paths.extend(methods.map(|method| {
                    let (service, method) = (service.name(), method.name());
                    format!("/{}.{service}/{method}", file.package())
                }));
            }
        }
        paths
    }

    /// A new method must be decided about here, and what is gone must go here.
    #[test]
    fn the_table_has_every_method_once_and_no_other() {
        let mut expected = paths(memscope_proto::FILE_DESCRIPTOR_SET);
        assert!(expected.len() >= 25, "{expected:?}");
        expected.extend(paths(tonic_health::pb::FILE_DESCRIPTOR_SET));
        for reflection in [
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ] {
            expected.extend(paths(reflection));
        }
        let mut known: Vec<String> = METHODS.iter().map(|one| one.path.to_owned()).collect();
        expected.sort();
        known.sort();
        assert_eq!(known, expected);
    }

    #[test]
    fn what_changes_something_needs_more_than_to_see_and_is_written_down() {
        for method in METHODS {
            let word = method.path.rsplit('/').next().unwrap();
            let changes = ["Attach", "Detach", "Mark", "Export", "Record", "GetKept"];
            let changes =
                changes.contains(&word) || word.starts_with("Add") || word.starts_with("Remove");
            assert_eq!(method.needs > Right::See, changes, "{}", method.path);
            assert!(!changes || method.action.is_some(), "{}", method.path);
        }
        assert_eq!(of("/memscope.v1.Memscope/attach"), None);
    }
}
