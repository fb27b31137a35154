//! Moments as users write them: ages, times, events, steps, marks, the peak.

use crate::failure::Failure;
use memscope_proto::v1::{self, moment::Moment as Wire};

/// Parses `now`, `-5m`, `2026-11-20T08:30:00Z`, nanoseconds since 1970, `event:NUMBER`, `step:NUMBER`, `mark:NAME`, `peak`, or `peak:DEVICE`. The
/// daemon finds out which mark a name means, because names may contain any character (also `#`).
pub(crate) fn parse(text: &str) -> Result<v1::Moment, String> {
    let moment = if let Some(age) = text.strip_prefix('-') {
        let age = crate::units::parse_duration(age).map_err(|error| error.to_string())?;
        Wire::AgoNs(u64::try_from(age.as_nanos()).map_err(|e| e.to_string())?)
    } else if let Some(number) = text.strip_prefix("event:") {
        Wire::Event(
            number
                .parse()
                .map_err(|e| format!("{e}; write event:1234, with a number as in as_of_event"))?,
        )
    } else if let Some(number) = text.strip_prefix("step:") {
        Wire::Step(
            number
                .parse()
                .map_err(|e| format!("{e}; write step:120, with a number as steps shows it"))?,
        )
    } else if let Some(name) = text.strip_prefix("mark:") {
        if name.is_empty() {
            return Err("write mark:NAME, with a name as marks shows it".to_owned());
        }
        Wire::Mark(name.to_owned())
    } else if text == "now" {
        Wire::AgoNs(0)
    } else if text == "peak" {
        Wire::Peak(v1::Peak { device: None })
    } else if let Some(device) = text.strip_prefix("peak:") {
        let device = device
            .parse()
            .map_err(|e| format!("{e}; write peak:0, with the number of a device"))?;
        Wire::Peak(v1::Peak {
            device: Some(device),
        })
    } else if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        Wire::UnixNs(text.parse().map_err(|e| format!("{e}"))?)
    } else {
        let time: jiff::Timestamp = text.parse().map_err(|e| {
            format!("{e}; write now, -5m, 2026-11-20T08:30:00Z, event:NUMBER, step:NUMBER, mark:NAME, or peak")
        })?;
        let ns = u64::try_from(time.as_nanosecond())
            .map_err(|_| "a time before 1970 is in no journal".to_owned())?;
        Wire::UnixNs(ns)
    };
    Ok(v1::Moment {
        moment: Some(moment),
    })
}

/// Refuses two moments of which the first lies after the second, where that is seen without a daemon: the answer would take long to say so.
pub(crate) fn in_order(from: Option<&v1::Moment>, to: Option<&v1::Moment>) -> Result<(), Failure> {
    let wire = |moment: Option<&v1::Moment>| moment.and_then(|moment| moment.moment.clone());
    let is_reversed = match (wire(from), wire(to)) {
        (Some(Wire::AgoNs(from)), Some(Wire::AgoNs(to))) => from < to,
        (Some(Wire::UnixNs(from)), Some(Wire::UnixNs(to)))
        | (Some(Wire::Event(from)), Some(Wire::Event(to)))
        | (Some(Wire::Step(from)), Some(Wire::Step(to))) => from > to,
        _ => false,
    };
    if !is_reversed {
        return Ok(());
    }
    Err(Failure::Usage {
        what: "the first moment lies after the second".into(),
        hint: "exchange them: --from is the earlier one".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(text: &str) -> Option<Wire> {
        parse(text).ok().and_then(|m| m.moment)
    }

    #[test]
    fn what_is_reversed_is_refused_before_it_is_asked() {
        let refused = |from: &str, to: &str| {
            in_order(parse(from).ok().as_ref(), parse(to).ok().as_ref()).is_err()
        };
        let reversed = [
            ("step:9", "step:3"),
            ("event:2", "event:1"),
            ("-1m", "-2m"),
            ("now", "-1s"),
            ("1970-01-01T00:00:03Z", "2000000000"),
        ];
        for (from, to) in reversed {
            assert!(refused(from, to), "{from} {to}");
            assert!(!refused(to, from) && !refused(from, from), "{from} {to}");
        }
        // Only the daemon knows which of these is earlier.
        assert!(!refused("step:9", "event:3") && !refused("mark:a", "mark:b"));
        assert!(in_order(None, parse("now").ok().as_ref()).is_ok());
    }

    #[test]
    fn reads_every_form_and_refuses_the_rest() {
        assert_eq!(wire("-5m"), Some(Wire::AgoNs(300_000_000_000)));
        assert_eq!(wire("now"), Some(Wire::AgoNs(0)));
        assert_eq!(wire("-500ms"), Some(Wire::AgoNs(500_000_000)));
        assert_eq!(wire("event:12"), Some(Wire::Event(12)));
        assert_eq!(
            wire("1795156410764721953"),
            Some(Wire::UnixNs(1_795_156_410_764_721_953))
        );
        assert_eq!(
            wire("1970-01-01T00:00:02Z"),
            Some(Wire::UnixNs(2_000_000_000))
        );
        for wrong in ["", "yesterday", "-", "event:x", "1960-01-01T00:00:00Z"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(wire("step:120"), Some(Wire::Step(120)));
        for name in ["new data set", "new data set#2", "step:7", "-"] {
            assert_eq!(
                wire(&format!("mark:{name}")),
                Some(Wire::Mark(name.to_owned()))
            );
        }
        assert_eq!(wire("peak"), Some(Wire::Peak(v1::Peak { device: None })));
        assert_eq!(
            wire("peak:1"),
            Some(Wire::Peak(v1::Peak { device: Some(1) }))
        );
        assert!(parse("peak:first").is_err_and(|e| e.contains("peak:0")));
        assert!(parse("mark:").is_err());
        assert!(parse("step:x").is_err_and(|e| e.contains("step:120")));
    }
}
