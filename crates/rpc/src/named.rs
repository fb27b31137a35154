//! Turns the moment in a request into one that the daemon knows; `mark:NAME` becomes the mark's event, and `peak` the event that brought it.
//!
//! Owns: the translation from such names to events. Refuses: to keep marks and peaks; the ledger does.

use crate::Refusal;
use crate::asked::{Asked, asked};
use crate::daemon::Moment;
use crate::refusal::invalid;
use memscope_ledger::{find_mark, numbered_mark};
use memscope_proto::v1;

/// Who knows what names of moments mean.
pub(crate) trait Names {
    /// The marks of the process.
    async fn marks(&self) -> Result<v1::MarksResponse, Refusal>;
    /// The marks of earlier attaches of the process's memory image that are still known, those of the last one first.
    async fn marks_before(&self, now: &v1::MarksResponse) -> Vec<v1::MarksResponse>;
    /// What it holds, and when it held most.
    async fn stats(&self) -> Result<v1::StatsResponse, Refusal>;
}

/// The moment that is asked for, `None` for now. The names are looked up only where the moment has one.
pub(crate) async fn moment(
    pid: u32,
    at: Option<v1::Moment>,
    names: &impl Names,
) -> Result<Option<Moment>, Refusal> {
    match asked(at)? {
        Asked::Now => Ok(None),
        Asked::At(moment) => Ok(Some(moment)),
        Asked::Mark(name) => mark(pid, &name, names).await.map(Some),
        Asked::Peak(device) => peak(pid, device, &names.stats().await?).map(Some),
    }
}

/// The moment of the mark that a text names: one of this attach, or, where this one has no mark of that name, of the last attach
/// before that has it.
async fn mark(pid: u32, name: &str, names: &impl Names) -> Result<Moment, Refusal> {
    let now = names.marks().await?;
    let moment = |mark: &v1::NamedMoment| Moment::Event(mark.event.unwrap_or_default().sequence);
    let why = match find_mark(&now.marks, name) {
        Ok(mark) => return Ok(moment(mark)),
        Err(why) => why,
    };
    let plain = numbered_mark(name).map_or(name, |(plain, _)| plain);
    let mut of_now = now.marks.iter();
    let before = match of_now.any(|mark| mark.name == plain) {
        true => Vec::new(),
        false => names.marks_before(&now).await,
    };
    let mut found = before
        .iter()
        .filter_map(|all| find_mark(&all.marks, name).ok());
    match found.next() {
        Some(mark) => Ok(moment(mark)),
        None => Err(invalid(
            format!("{name:?} {why}, of process {pid}"),
            format!(
                "`memscope-ctl marks --pid {pid} --all` lists those that are kept of this attach; event:NUMBER names a moment without a mark"
            ),
        )),
    }
}

/// The moment at which most was allocated, on this device, or on the one with the largest peak.
fn peak(pid: u32, device: Option<i32>, stats: &v1::StatsResponse) -> Result<Moment, Refusal> {
    let known = stats.devices.iter().filter(|row| row.device.is_some());
    let row = match device {
        Some(_) => known.clone().find(|row| row.device == device),
        None => known.clone().max_by_key(|row| row.peak_allocated_bytes),
    };
    let Some(row) = row else {
        let devices: Vec<String> = known
            .filter_map(|row| row.device.map(|number| number.to_string()))
            .collect();
        let hint = match devices.as_slice() {
            [] => format!("`memscope-ctl stats --pid {pid}` shows what is known of it"),
            devices => format!("it has memory on device {}", devices.join(", ")),
        };
        let device = device.map_or_else(
            || "any device".to_owned(),
            |number| format!("device {number}"),
        );
        return Err(invalid(
            format!("process {pid} has no memory on {device}"),
            hint,
        ));
    };
    match row.peak_event {
        Some(event) => Ok(Moment::Event(event)),
        None => Err(invalid(
            format!(
                "no event of process {pid} shows when most was allocated on device {}",
                row.device.unwrap_or_default()
            ),
            format!("`memscope-ctl stats --pid {pid}` says why its numbers are limited"),
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn stats(rows: &[(i32, u64, Option<u64>)]) -> v1::StatsResponse {
        let row = |(device, peak, event): &(i32, u64, Option<u64>)| v1::DeviceStats {
            device: Some(*device),
            peak_allocated_bytes: Some(*peak),
            peak_event: *event,
            ..v1::DeviceStats::default()
        };
        v1::StatsResponse {
            devices: rows.iter().map(row).collect(),
            ..v1::StatsResponse::default()
        }
    }

    /// The marks of the present attach, and of those before it, by name and number of the event.
    struct Told(&'static [&'static [(&'static str, u64)]]);

    impl Told {
        fn marks(&self, attach: usize) -> v1::MarksResponse {
            let marks = self.0[attach].iter();
            v1::MarksResponse {
                marks: marks
                    .map(|(name, sequence)| v1::NamedMoment {
                        name: (*name).into(),
                        event: Some(v1::EventId {
                            sequence: *sequence,
                            ..v1::EventId::default()
                        }),
                        ..v1::NamedMoment::default()
                    })
                    .collect(),
                ..v1::MarksResponse::default()
            }
        }
    }

    impl Names for Told {
        async fn marks(&self) -> Result<v1::MarksResponse, Refusal> {
            Ok(self.marks(0))
        }

        async fn marks_before(&self, _: &v1::MarksResponse) -> Vec<v1::MarksResponse> {
            (1..self.0.len()).map(|attach| self.marks(attach)).collect()
        }

        async fn stats(&self) -> Result<v1::StatsResponse, Refusal> {
            Ok(v1::StatsResponse::default())
        }
    }

    #[tokio::test]
    async fn a_mark_may_be_of_an_attach_before() {
        let told = Told(&[
            &[("a", 90)],
            &[("a", 50), ("b", 60)],
            &[("b", 20), ("c", 10)],
        ]);
        for (name, event) in [("a", 90), ("b", 60), ("c", 10)] {
            let found = mark(7, name, &told).await.unwrap();
            assert!(
                matches!(found, Moment::Event(number) if number == event),
                "{name}"
            );
        }
        // The number counts the marks of the present attach where it has some of that name.
        assert!(mark(7, "a#2", &told).await.is_err());
        let refused = mark(7, "d", &told).await.unwrap_err().to_string();
        assert!(refused.contains("no mark that is kept"), "{refused}");
    }

    #[test]
    fn the_peak_of_the_device_or_of_the_fullest() {
        let all = stats(&[(0, 10, Some(4)), (1, 30, Some(9)), (2, 5, None)]);
        assert!(matches!(peak(7, None, &all), Ok(Moment::Event(9))));
        assert!(matches!(peak(7, Some(0), &all), Ok(Moment::Event(4))));
        let refused =
            |device, stats: &v1::StatsResponse| peak(7, device, stats).unwrap_err().to_string();
        assert!(refused(Some(2), &all).contains("device 2"));
        assert!(refused(Some(5), &all).contains("no memory on device 5"));
        assert!(refused(None, &stats(&[])).contains("any device"));
    }
}
