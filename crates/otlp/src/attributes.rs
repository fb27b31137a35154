//! From labels to attributes.
//!
//! Where OpenTelemetry's semantic conventions have a name for what a label says, that is the attribute; every other label is an attribute
//! of the same name beneath `memscope.`. A number that is not known is no attribute, where a label would say `unknown`.

use memscope_metrics::Labels;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};

/// Labels for which there is a convention, with the name that it gives them.
const CONVENTIONS: &[(&str, &str)] = &[
    ("pid", "process.pid"),
    ("uid", "process.user.id"),
    ("namespace", "k8s.namespace.name"),
    ("pod", "k8s.pod.name"),
    ("pod_uid", "k8s.pod.uid"),
    ("container", "k8s.container.name"),
    ("container_id", "container.id"),
    ("container_runtime", "container.runtime.name"),
    ("function", "code.function.name"),
    ("status", "error.type"),
    ("hw_id", "hw.id"),
    ("hw_parent", "hw.parent"),
    ("hw_type", "hw.type"),
    ("hw_vendor", "hw.vendor"),
];
/// Labels that are whole numbers.
const NUMBERS: &[&str] = &["pid", "uid", "rank", "local_rank", "world_size", "device"];
/// Labels that are yes or no.
const FLAGS: &[&str] = &["lower_bound"];
/// What a label says where a number is not known.
const UNKNOWN: &str = "unknown";
/// Says that a number is of all processes that have no series of their own, which have no process id in common.
const TOGETHER: &str = "memscope.together";

/// An attribute with a text.
pub(crate) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    keyed(key, Value::StringValue(value.into()))
}

/// An attribute with a whole number. Those that are too large for the protocol are left out.
pub(crate) fn whole(key: &str, value: u64) -> Option<KeyValue> {
    let value = i64::try_from(value).ok()?;
    Some(keyed(key, Value::IntValue(value)))
}

/// An attribute with a number.
pub(crate) fn double(key: &str, value: f64) -> KeyValue {
    keyed(key, Value::DoubleValue(value))
}

fn keyed(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

/// The attributes that these labels are.
#[must_use]
pub fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let in_pod = labels.iter().any(|(name, _)| *name == "pod");
    let mut all = Vec::with_capacity(labels.len());
    for (label, value) in labels {
        match *label {
            "line" => all.extend(of_line(value)),
            // Only what belongs to a pod has a name that Kubernetes gave it.
            "container" if !in_pod => all.push(text("container.name", value.as_str())),
            label => all.extend(of_label(label, value)),
        }
    }
    all
}

/// The attribute of a label.
fn of_label(label: &str, value: &str) -> Option<KeyValue> {
    let convention = CONVENTIONS.iter().find(|(known, _)| *known == label);
    let own = format!("memscope.{label}");
    let key = convention.map_or(own.as_str(), |(_, name)| name);
    if NUMBERS.contains(&label) {
        return match value.parse() {
            Ok(number) => Some(keyed(key, Value::IntValue(number))),
            Err(_) if label == "pid" => Some(keyed(TOGETHER, Value::BoolValue(true))),
            Err(_) => None,
        };
    }
    if FLAGS.contains(&label) {
        return Some(keyed(key, Value::BoolValue(value == "true")));
    }
    Some(text(key, value))
}

/// File and number of a line of the program.
fn of_line(line: &str) -> Vec<KeyValue> {
    if line == UNKNOWN {
        return Vec::new();
    }
    let whole = line.rsplit_once(':');
    match whole.and_then(|(file, number)| Some((file, number.parse().ok()?))) {
        Some((file, number)) => vec![
            text("code.file.path", file),
            keyed("code.line.number", Value::IntValue(number)),
        ],
        None => vec![text("code.file.path", line)],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(labels: &[(&'static str, &str)]) -> Vec<(String, Value)> {
        let labels: Labels = labels
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        attributes(&labels)
            .into_iter()
            .map(|one| (one.key, one.value.unwrap().value.unwrap()))
            .collect()
    }

    fn words(text: &str) -> Value {
        Value::StringValue(text.to_owned())
    }

    #[test]
    fn conventions_are_kept_and_what_is_unknown_is_left_out() {
        let found = of(&[
            ("pid", "7"),
            ("program", "a.py"),
            ("device", "unknown"),
            ("rank", "3"),
            ("lower_bound", "true"),
            ("line", "x/a.py:8"),
        ]);
        let expected = [
            ("process.pid", Value::IntValue(7)),
            ("memscope.program", words("a.py")),
            ("memscope.rank", Value::IntValue(3)),
            ("memscope.lower_bound", Value::BoolValue(true)),
            ("code.file.path", words("x/a.py")),
            ("code.line.number", Value::IntValue(8)),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value));
        assert_eq!(found, expected);
        assert_eq!(of(&[("line", "unknown")]), []);
        let together = ("memscope.together".to_owned(), Value::BoolValue(true));
        assert_eq!(of(&[("pid", "other")]), [together]);
    }

    #[test]
    fn a_container_has_kubernetes_name_in_a_pod_only() {
        let plain = of(&[("container", "c")]);
        assert_eq!(plain, [("container.name".to_owned(), words("c"))]);
        let in_pod = of(&[("pod", "p"), ("container", "c")]);
        assert_eq!(in_pod[1], ("k8s.container.name".to_owned(), words("c")));
    }

    /// The page has a row for each convention.
    #[test]
    fn the_page_has_every_convention() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (label, attribute) in CONVENTIONS {
            let row = format!("| `{label}` | `{attribute}` |");
            assert!(page.contains(&row), "docs/metrics.md has no row {row}");
        }
    }
}
