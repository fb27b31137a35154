//! Enums as words: `LEVEL_TRACE` on the wire is `"trace"` in JSON, unspecified and unknown ones are
//! null.

use crate::v1;
use serde::Serializer;

/// An enum of the package, in words.
pub trait Word: TryFrom<i32> {
    /// The lower-case word; `None` for the unspecified value.
    fn word(&self) -> Option<String>;
}

/// The word of an enum's number; `None` where it is unspecified or from a newer version.
pub(crate) fn of<E: Word>(number: i32) -> Option<String> {
    E::try_from(number).ok().and_then(|value| value.word())
}

pub(crate) fn word<E: Word, S: Serializer>(number: &i32, out: S) -> Result<S::Ok, S::Error> {
    match of::<E>(*number) {
        Some(text) => out.serialize_str(&text),
        None => out.serialize_none(),
    }
}

macro_rules! words {
    ($($name:ident $prefix:literal),* $(,)?) => {$(
        impl Word for v1::$name {
            fn word(&self) -> Option<String> {
                if *self as i32 == 0 {
                    return None;
                }
                let name = self.as_str_name();
                Some(name.strip_prefix($prefix).unwrap_or(name).to_ascii_lowercase())
            }
        }

        impl std::fmt::Display for v1::$name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word().as_deref().unwrap_or("unknown"))
            }
        }
    )*};
}

words! {
    Level "LEVEL_",
    Stacks "STACKS_",
    ProcessState "PROCESS_STATE_",
    ProcessVerdict "PROCESS_VERDICT_",
    Source "SOURCE_",
    Verdict "VERDICT_",
    BlockState "BLOCK_STATE_",
    HolderOrigin "HOLDER_ORIGIN_",
    HolderVia "HOLDER_VIA_",
    OwnerEvidence "OWNER_EVIDENCE_",
    ExportFormat "EXPORT_FORMAT_",
    Layer "LAYER_",
    TraceAction "TRACE_ACTION_",
    MarkKind "MARK_KIND_",
    RegionChange "REGION_CHANGE_",
    MarkSource "MARK_SOURCE_",
    OperatorPart "OPERATOR_PART_",
    MarkOrigin "MARK_ORIGIN_",
    StepSource "STEP_SOURCE_",
    StackMetric "STACK_METRIC_",
    StackUnit "STACK_UNIT_",
    StackGrouping "STACK_GROUPING_",
    FrameKind "FRAME_KIND_",
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_null_and_enums_are_words() {
        let device = v1::DeviceStats {
            allocated_bytes: Some(u64::MAX),
            source: v1::Source::Pool.into(),
            ..Default::default()
        };
        let json = serde_json::to_value(&device).unwrap();
        assert_eq!(json["allocated_bytes"], u64::MAX);
        assert!(json["device"].is_null());
        assert!(json["total_bytes"].is_null());
        assert_eq!(json["source"], "pool");
        assert_eq!(json["live_blocks"], 0);
    }

    #[test]
    fn unspecified_and_foreign_enums_are_null() {
        for number in [0, 99] {
            let device = v1::DeviceStats {
                source: number,
                ..Default::default()
            };
            assert!(serde_json::to_value(&device).unwrap()["source"].is_null());
        }
    }

    #[test]
    fn a_process_is_one_flat_object() {
        let process = v1::Process {
            handle: 3,
            facts: Some(v1::ProcessFacts {
                pid: 42,
                comm: "python".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let json = serde_json::to_value(&process).unwrap();
        assert_eq!(json["pid"], 42);
        assert_eq!(json["handle"], 3);
        assert!(json["reserved_bytes"].is_null());
        assert!(json.get("facts").is_none());
    }

    #[test]
    fn an_event_names_its_kind() {
        let event = v1::Event {
            pid: Some(7),
            body: Some(v1::event::Body::Trace(v1::PoolTrace {
                action: v1::TraceAction::FreeRequested.into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["kind"], "trace");
        assert_eq!(json["body"]["action"], "free_requested");
        assert!(json["body"]["device"].is_null());
    }
}
