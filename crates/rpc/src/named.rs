//! Turns the moment in a request into one that the daemon knows; `mark:NAME` becomes the mark's event, and `peak` the event that brought it.
//!
//! Owns: the translation from such names to events. Refuses: to keep marks and peaks; the ledger does.

use crate::Refusal;
use crate::asked::{Asked, asked};
use crate::daemon::Moment;
use crate::refusal::invalid;
use memscope_ledger::find_mark;
use memscope_proto::v1;

/// Who knows what names of moments mean.
pub(crate) trait Names {
    /// The marks of the process.
    async fn marks(&self) -> Result<v1::MarksResponse, Refusal>;
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
        Asked::Mark(name) => match find_mark(&names.marks().await?.marks, &name) {
            Ok(mark) => Ok(Some(Moment::Event(mark.event.unwrap_or_default().sequence))),
            Err(why) => Err(invalid(
                format!("{name:?} {why}, of process {pid}"),
                format!("`memscope-ctl marks --pid {pid} --all` lists those that are kept"),
            )),
        },
        Asked::Peak(device) => peak(pid, device, &names.stats().await?).map(Some),
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
