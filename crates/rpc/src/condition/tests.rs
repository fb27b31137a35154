#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn parse(text: &str) -> Result<Condition, ConditionError> {
    text.parse()
}

#[track_caller]
fn metric_of(text: &str) -> Metric {
    parse(text)
        .unwrap_or_else(|e| panic!("{text:?}: {e}"))
        .metric
}

#[test]
fn every_form() {
    assert_eq!(metric_of("oom"), Metric::Oom);
    assert_eq!(metric_of(" OOM "), Metric::Oom);
    assert_eq!(
        metric_of("reserved > 30GiB"),
        Metric::Reserved { above: 30 * GIB }
    );
    assert_eq!(
        metric_of("reserved>30gib"),
        Metric::Reserved { above: 30 * GIB }
    );
    assert_eq!(
        metric_of("allocated > 1.5 GiB"),
        Metric::Allocated { above: 3 * GIB / 2 }
    );
    assert_eq!(
        metric_of("allocated > 12345"),
        Metric::Allocated { above: 12345 }
    );
    assert_eq!(
        metric_of("allocated > 2GB"),
        Metric::Allocated {
            above: 2_000_000_000
        }
    );
    assert_eq!(
        metric_of("fragmentation > 40%"),
        Metric::Fragmentation {
            above: 4000,
            reserved_above: GIB
        }
    );
    assert_eq!(
        metric_of("fragmentation > 0.125 with reserved > 2MiB"),
        Metric::Fragmentation {
            above: 1250,
            reserved_above: 2 << 20
        }
    );
    assert_eq!(
        metric_of("growth > 2GiB in 10min"),
        Metric::Growth {
            above: 2 * GIB,
            within_ns: 600_000_000_000
        }
    );
    assert_eq!(
        metric_of("growth > 2GiB in 90"),
        Metric::Growth {
            above: 2 * GIB,
            within_ns: 90_000_000_000
        }
    );
    for (text, device) in [
        ("oom on device 0", 0),
        ("reserved > 30GiB on device 7", 7),
        ("reserved > 30 on device 7", 7),
        ("fragmentation > 1% with reserved > 1B on device 127", 127),
        ("growth > 2GiB in 1h on device 3", 3),
        ("growth > 2GiB in 90 on device 3", 3),
    ] {
        assert_eq!(parse(text).unwrap().device, Some(device), "{text}");
    }
}

/// Each mistake, the column that is reported, and a piece of the message.
#[test]
fn mistakes_are_told_with_their_place() {
    for (text, column, said) in [
        ("", 1, "no condition"),
        ("   ", 1, "no condition"),
        ("> 3GiB", 1, "\">\" is nothing to watch"),
        ("reservd > 30GiB", 1, "\"reservd\" is nothing to watch"),
        ("step", 5, "= is missing"),
        ("  step 12", 8, "\"12\" stands where ="),
        ("step = x", 8, "\"x\" stands where a number of steps"),
        ("step = 0", 8, "0 is no number of a step"),
        ("step = 1.5", 8, "1.5 is no number of a step"),
        ("step = 5 steps", 10, "\"steps\" is too much"),
        ("step = 5 on device 1", 10, "not a device's"),
        ("every 500", 10, "`steps` is missing"),
        ("every 500 minutes", 11, "\"minutes\" stands where"),
        ("every steps", 7, "a number of steps"),
        ("reserved", 9, "needs a value"),
        ("reserved  ", 9, "needs a value"),
        ("reserved 30GiB", 10, "only > can"),
        ("reserved >= 30GiB", 10, "\">=\" cannot stand"),
        ("reserved < 30GiB", 10, "\"<\" cannot stand"),
        ("reserved >", 11, "a number of bytes is missing"),
        ("reserved > much", 12, "\"much\" stands where"),
        ("reserved > 30 GG", 15, "\"GG\" is no unit of bytes"),
        ("reserved > 30G", 14, "write GiB (1024) or GB (1000)"),
        ("reserved > 30%", 14, "watched in bytes"),
        ("reserved > 0", 12, "zero is no threshold"),
        ("reserved > 1.2.3GiB", 12, "so many bytes"),
        ("reserved > 99999999999999999999TiB", 12, "so many bytes"),
        ("reserved > 9000000TiB", 12, "so many bytes"),
        ("reserved > 30GiB in 5m", 18, "only growth takes"),
        ("reserved > 30GiB with x", 18, "only fragmentation takes"),
        ("reserved > 30GiB and oom", 18, "\"and\" is too much"),
        ("reserved > 30GiB on", 20, "device is missing"),
        (
            "reserved > 30GiB on gpu 1",
            21,
            "\"gpu\" stands where device",
        ),
        ("reserved > 30GiB on device", 27, "the number of a device"),
        ("reserved > 30GiB on device x", 28, "the number of a device"),
        ("reserved > 30GiB on device 128", 28, "0 to 127"),
        ("reserved > 30GiB on device 1.5", 28, "1.5 is no device"),
        ("reserved > 30GiB on device 1 2", 30, "\"2\" is too much"),
        ("oom > 3", 5, "oom has no value"),
        ("oom now", 5, "\"now\" is too much"),
        ("fragmentation > 40", 17, "between 0% and 100%"),
        ("fragmentation > 0%", 17, "between 0% and 100%"),
        ("fragmentation > 100%", 17, "between 0% and 100%"),
        ("fragmentation > 40GiB", 19, "is a share"),
        ("fragmentation > 40% with", 25, "reserved is missing"),
        (
            "fragmentation > 40% with allocated > 1",
            26,
            "stands where reserved",
        ),
        ("growth > 2GiB", 14, "`in` and a time is missing"),
        ("growth > 2GiB in", 17, "a time is missing"),
        (
            "growth > 2GiB in 5 parsecs",
            20,
            "\"parsecs\" is no unit of time",
        ),
        ("growth > 2GiB in 10ms", 18, "from 1s to 30d"),
        ("growth > 2GiB in 31d", 18, "from 1s to 30d"),
        ("ünsinn > 3", 1, "nothing to watch"),
        ("reserved ≥ 3", 10, "\"≥\" cannot stand"),
    ] {
        let error = parse(text).unwrap_err();
        let whole = error.to_string();
        assert_eq!(error.column, column, "{text:?}: {whole}");
        assert!(
            whole.contains(said),
            "{text:?} says {whole:?} and not {said:?}"
        );
        assert!(!error.hint.is_empty(), "{text:?}");
    }
    let long = format!("reserved > {}", "1".repeat(300));
    assert_eq!(parse(&long).unwrap_err().column, 201);
}

#[test]
fn written_back_in_one_way() {
    for (text, back) in [
        ("OOM", "oom"),
        ("reserved>1024MiB", "reserved > 1GiB"),
        ("reserved > 1.5GiB", "reserved > 1536MiB"),
        ("reserved > 30GB", "reserved > 30GB"),
        ("reserved > 1000", "reserved > 1000B"),
        (
            "fragmentation > 0.4",
            "fragmentation > 40% with reserved > 1GiB",
        ),
        (
            "fragmentation > 12.5% on device 1",
            "fragmentation > 12.5% with reserved > 1GiB on device 1",
        ),
        ("growth > 2GiB in 90s", "growth > 2GiB in 90s"),
        ("growth > 2GiB in 120min", "growth > 2GiB in 2h"),
        ("step==100", "step = 100"),
        ("Every 1 step", "every 1 steps"),
    ] {
        assert_eq!(parse(text).unwrap().to_string(), back);
    }
}

fn any_metric() -> impl Strategy<Value = Metric> {
    let bytes = 1..=i64::MAX as u64;
    let milliseconds = 1_000..=30 * 86_400_000u64;
    prop_oneof![
        Just(Metric::Oom),
        bytes.clone().prop_map(|above| Metric::Allocated { above }),
        bytes.clone().prop_map(|above| Metric::Reserved { above }),
        (1..10_000u64, bytes.clone()).prop_map(|(above, reserved_above)| {
            Metric::Fragmentation {
                above,
                reserved_above,
            }
        }),
        (bytes, milliseconds).prop_map(|(above, ms)| Metric::Growth {
            above,
            within_ns: ms * 1_000_000
        }),
        (1..=MOST_STEPS).prop_map(|number| Metric::Step { number }),
        (1..=MOST_STEPS).prop_map(|steps| Metric::Every { steps }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        metric in any_metric(),
        device in prop::option::of(0..128i32),
    ) {
        let device = device.filter(|_| !metric.is_of_steps());
        let condition = Condition { metric, device };
        prop_assert_eq!(parse(&condition.to_string()), Ok(condition));
    }

    #[test]
    fn no_text_is_too_strange(text in "[a-z>%0-9. äµ\u{202e}\n]{0,60}") {
        if let Err(error) = parse(&text) {
            prop_assert!(error.column >= 1 && error.column <= text.chars().count() + 1);
            prop_assert!(!error.to_string().contains('\n') || text.contains('\n'));
        }
    }
}
