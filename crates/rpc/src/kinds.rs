//! Kinds of events, by their names on the wire: the fields of `Event.body`.

use memscope_ledger::event::{Body, TraceAction};
use std::collections::BTreeSet;

/// Makes the list of names and the function from one list, so that a kind that is missing in it does not compile.
macro_rules! kinds {
    ($($name:literal: $body:pat),* $(,)?) => {
        /// Names of all kinds.
        pub(crate) const NAMES: &[&str] = &[$($name),*];

        /// The name of an event's kind.
        pub(crate) fn name(body: &Body) -> &'static str {
            match body {
                $($body => $name),*
            }
        }
    };
}

kinds! {
    "allocator": Body::Allocator(_),
    "attached": Body::Attached(_),
    "backend": Body::Backend(_),
    "call": Body::Call(_),
    "clock": Body::Clock { .. },
    "code": Body::Code(_),
    "code_died": Body::CodeDied { .. },
    "coverage": Body::Coverage(_),
    "detached": Body::Detached,
    "device_total": Body::DeviceTotal(_),
    "domain": Body::Domain(_),
    "exited": Body::Exited,
    "finding": Body::Finding(_),
    "forked": Body::Forked { .. },
    "held": Body::Held(_),
    "launch": Body::Launch(_),
    "launches": Body::Launches { .. },
    "lost": Body::Lost,
    "mark": Body::Mark(_),
    "native": Body::Native(_),
    "oom": Body::Oom(_),
    "operator": Body::Operator(_),
    "placed": Body::Placed(_),
    "reading_cost": Body::ReadingCost(_),
    "region": Body::Region(_),
    "replaced": Body::Replaced,
    "report": Body::Report(_),
    "runs_on": Body::RunsOn(_),
    "shed": Body::Shed(_),
    "stack": Body::Stack(_),
    "trace": Body::Trace(_),
    "workspace": Body::Workspace(_),
}

/// The name by which a reader asks for PyTorch's own marks. Their events are of the kind `mark`, but there are so many
/// of them (each step of an optimizer, each backward pass, and each end of a `record_function`) that a reader who asks for `mark` does not get them.
pub(crate) const FRAMEWORK_MARK: &str = "framework_mark";

/// The name by which a reader inside the daemon asks for all events about memory that ran out. Some of them are of the kind `trace`, of
/// which there are too many for one who wants only these.
pub const OUT_OF_MEMORY: &str = "out_of_memory";

/// Whether an event is of one of these kinds. An empty list accepts every event.
pub(crate) fn is_of(kinds: &[&str], body: &Body) -> bool {
    let word = match body {
        Body::Mark(mark) if mark.is_of_the_framework() => FRAMEWORK_MARK,
        body => name(body),
    };
    kinds.is_empty() || kinds.contains(&word) || ran_out(body) && kinds.contains(&OUT_OF_MEMORY)
}

/// Whether an event tells that memory ran out.
fn ran_out(body: &Body) -> bool {
    match body {
        Body::Oom(_) => true,
        Body::Trace(trace) => trace.action == TraceAction::Oom,
        _ => false,
    }
}

/// Looks up the kinds that a reader asked for by name; each comes back once, however often it was named, because the keeper looks
/// through the list for each event.
///
/// # Errors
/// Returns the first word that is not the name of a kind.
pub(crate) fn chosen(words: &[String]) -> Result<Vec<&'static str>, &str> {
    let known: Result<BTreeSet<&'static str>, &str> = words
        .iter()
        .map(|word| {
            let mut all = NAMES.iter().copied().chain([FRAMEWORK_MARK]);
            let known = all.find(|name| name == word);
            known.ok_or(word.as_str())
        })
        .collect();
    Ok(known?.into_iter().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{event, fake};
    use memscope_ledger::event::{DeviceTotal, Finding, Mark, MarkSource, RunsOn};
    use prost::Message;

    /// The fields of `Event.body`, as the descriptor of the `.proto` files lists them.
    fn fields() -> BTreeSet<String> {
        let set = memscope_proto::FILE_DESCRIPTOR_SET;
        let set = prost_types::FileDescriptorSet::decode(set).unwrap();
        let mut messages = set.file.into_iter().flat_map(|file| file.message_type);
        let event = messages.find(|message| message.name() == "Event").unwrap();
        let body = event.oneof_decl.iter().position(|of| of.name() == "body");
        let body = i32::try_from(body.unwrap()).unwrap();
        let fields = event.field.into_iter();
        fields
            .filter(|field| field.oneof_index == Some(body))
            .map(|field| field.name().to_owned())
            .collect()
    }

    #[test]
    fn a_kind_that_is_named_often_counts_once() {
        let words = vec!["oom".to_owned(); 10_000];
        assert_eq!(chosen(&words), Ok(vec!["oom"]));
        let words = ["mark", "oom", "mark"].map(str::to_owned);
        assert_eq!(chosen(&words), Ok(vec!["mark", "oom"]));
        assert_eq!(chosen(&["no".to_owned()]), Err("no"));
    }

    #[test]
    fn the_names_are_the_wires() {
        let names: BTreeSet<String> = NAMES.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(names, fields());
        for body in [
            Body::Detached,
            Body::Exited,
            Body::Replaced,
            Body::Lost,
            Body::Forked { child: 1 },
            Body::Clock { unix_ns: 1 },
            Body::CodeDied { code: 1 },
            Body::Launches { count: 1 },
            Body::DeviceTotal(DeviceTotal::default()),
            Body::RunsOn(RunsOn::default()),
            Body::Finding(Box::<Finding>::default()),
        ] {
            // A reader of the stream sees the kind under the same name.
            let item = fake::event(1, 0, 1, body);
            let json = serde_json::to_value(event::event(&item)).unwrap();
            assert_eq!(json["kind"], name(&item.event.body));
        }
    }

    #[test]
    fn pytorchs_own_marks_are_asked_for_by_their_own_word() {
        let mark = |name: &str| {
            Body::Mark(Box::new(Mark {
                source: MarkSource::RecordFunction,
                name: name.into(),
                ..Mark::default()
            }))
        };
        let (own, program) = (mark("Optimizer.step#AdamW.step"), mark("epoch"));
        assert!(is_of(&["mark"], &program) && !is_of(&["mark"], &own));
        assert!(!is_of(&[FRAMEWORK_MARK], &program) && is_of(&[FRAMEWORK_MARK], &own));
        assert!(is_of(&[], &program) && is_of(&[], &own));
    }

    #[test]
    fn words_that_are_none() {
        let words = |list: &[&str]| list.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(chosen(&[]), Ok(Vec::new()));
        let list = ["framework_mark", "mark", "oom"];
        assert_eq!(chosen(&words(&list)), Ok(list.to_vec()));
        assert_eq!(chosen(&words(&["oom", "OOM"])), Err("OOM"));
    }
}
