//! Kinds of events by the names that the wire has for them: the fields of `Event.body`.

use memscope_ledger::event::Body;

/// All of them.
pub(crate) const NAMES: [&str; 28] = [
    "allocator",
    "attached",
    "backend",
    "call",
    "clock",
    "code",
    "code_died",
    "coverage",
    "detached",
    "device_total",
    "domain",
    "exited",
    "finding",
    "forked",
    "held",
    "launches",
    "lost",
    "mark",
    "native",
    "oom",
    "placed",
    "reading_cost",
    "region",
    "replaced",
    "report",
    "stack",
    "trace",
    "workspace",
];

/// The name of an event's kind.
pub(crate) fn name(body: &Body) -> &'static str {
    match body {
        Body::Allocator(_) => "allocator",
        Body::Attached(_) => "attached",
        Body::Backend(_) => "backend",
        Body::Call(_) => "call",
        Body::Clock { .. } => "clock",
        Body::Code(_) => "code",
        Body::CodeDied { .. } => "code_died",
        Body::Coverage(_) => "coverage",
        Body::Detached => "detached",
        Body::DeviceTotal { .. } => "device_total",
        Body::Domain(_) => "domain",
        Body::Exited => "exited",
        Body::Finding(_) => "finding",
        Body::Forked { .. } => "forked",
        Body::Held(_) => "held",
        Body::Launches { .. } => "launches",
        Body::Lost => "lost",
        Body::Mark(_) => "mark",
        Body::Native(_) => "native",
        Body::Oom(_) => "oom",
        Body::Placed(_) => "placed",
        Body::ReadingCost(_) => "reading_cost",
        Body::Region(_) => "region",
        Body::Replaced => "replaced",
        Body::Report(_) => "report",
        Body::Stack(_) => "stack",
        Body::Trace(_) => "trace",
        Body::Workspace(_) => "workspace",
    }
}

/// Which kinds a reader asked for.
///
/// # Errors
/// The first word that is none.
pub(crate) fn chosen(words: &[String]) -> Result<Vec<&'static str>, &str> {
    words
        .iter()
        .map(|word| {
            let known = NAMES.into_iter().find(|name| name == word);
            known.ok_or(word.as_str())
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{EventItem, convert};
    use memscope_ledger::event::{Event, EventId, Finding, ProcessHandle, StackRef};
    use std::sync::Arc;

    /// As the reader of a stream sees it.
    fn on_the_wire(body: Body) -> String {
        let item = EventItem {
            event: Arc::new(Event {
                id: EventId {
                    epoch: 1,
                    sequence: 1,
                },
                time_ns: 1,
                process: ProcessHandle(1),
                tid: 1,
                lost_before: 0,
                stack: StackRef::NotTaken,
                sampling: 0,
                body,
            }),
            pid: None,
            uids: None,
            unix_ns: None,
            missed: 0,
        };
        let json = serde_json::to_value(convert::event(&item)).unwrap();
        json["kind"].as_str().unwrap().to_owned()
    }

    #[test]
    fn the_names_are_the_wires() {
        let set = memscope_proto::FILE_DESCRIPTOR_SET;
        for name in NAMES {
            // A field's descriptor begins with its name: tag, length, text.
            let mut wanted = vec![0x0a, name.len() as u8];
            wanted.extend(name.as_bytes());
            let mut places = set.windows(wanted.len());
            assert!(places.any(|bytes| bytes == wanted), "{name}");
        }
        for body in [
            Body::Detached,
            Body::Exited,
            Body::Replaced,
            Body::Lost,
            Body::Forked { child: 1 },
            Body::Clock { unix_ns: 1 },
            Body::CodeDied { code: 1 },
            Body::Launches { count: 1 },
            Body::DeviceTotal {
                device: 0,
                total_bytes: 1,
            },
            Body::Finding(Box::<Finding>::default()),
        ] {
            let name = name(&body);
            assert_eq!(on_the_wire(body), name);
            assert!(NAMES.contains(&name));
        }
    }

    #[test]
    fn words_that_are_none() {
        let words = |list: &[&str]| list.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen(&[]), Ok(Vec::new()));
        assert_eq!(chosen(&words(&["oom", "mark"])), Ok(vec!["oom", "mark"]));
        assert_eq!(chosen(&words(&["oom", "OOM"])), Err("OOM"));
    }
}
