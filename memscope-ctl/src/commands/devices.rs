//! `devices`: what all processes hold, by device.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::fleet::{self, Fleet};
use crate::render::table::{Column, table};
use crate::render::{command_line, coverage, device, hardware};
use crate::session::Session;
use crate::units::{bytes, maybe_bytes, moment, plain, unknown};
use memscope_proto::v1;

/// Characters of a command line that are shown.
const COMMAND: usize = 40;

/// Show what all traced processes hold on each device, and how much of it nobody explains.
///
/// Where NVML tells it, a device is named by its UUID, or a process's part of one (MIG) by its own, whatever number each process has for it.
/// Else a device is what processes name alike in CUDA_VISIBLE_DEVICES (or the variable of another vendor): a number or a UUID. What nobody
/// explains is in use on the device and held by none of these processes, nor by the driver for itself or for them (CONTEXT: its code and
/// context for a process): it belongs to processes that are not traced, or not shown to you, as those of other users may be. Where the
/// driver does not say what a process uses, its context counts among what nobody explains. Where it is not known how much of a device is
/// free, that is not known either.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl devices
  memscope-ctl devices --json | jq '.devices[] | {name, unexplained_bytes}'")]
pub(crate) struct Devices {}

impl Run for Devices {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let answer = client
            .ask(v1::DevicesRequest {}, async |mut rpc, request| {
                rpc.devices(request).await
            })
            .await?;
        session.show(&answer, text)
    }

    const FLEET: bool = true;

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let ask = async |asking: &fleet::Asking<'_>| {
            let call = async |mut rpc: crate::client::Rpc, request| rpc.devices(request).await;
            asking.ask(v1::DevicesRequest {}, call).await
        };
        let replies = fleet.ask(ask).await.any()?;
        fleet::show(&replies, session, of_fleet, super::each::whole)
    }
}

/// All devices of all nodes as one table, a row for each process that holds something of one.
fn of_fleet(replies: &fleet::Replies<v1::DevicesResponse>) -> String {
    let mut rows = Vec::new();
    for (node, answer) in replies.answers() {
        for one in &answer.devices {
            let kind = one.kind.as_deref().map_or_else(unknown, plain);
            let name = name(one);
            let unexplained = unexplained(one);
            for holder in &one.holders {
                let mut row = vec![
                    plain(&node.name),
                    format!("{kind} {name}"),
                    maybe_bytes(one.total_bytes),
                    maybe_bytes(one.free_bytes),
                    unexplained.clone(),
                ];
                row.extend(cells(holder));
                rows.push(row);
            }
        }
    }
    if rows.is_empty() {
        return "No process that is traced now on any node has used a device.\n".to_owned();
    }
    let mut head = vec![
        Column::Left("NODE"),
        Column::Left("DEVICE"),
        Column::Right("TOTAL"),
        Column::Right("FREE"),
        Column::Right("NOBODY EXPLAINS"),
    ];
    head.extend(HOLDER);
    table(&head, rows)
}

fn text(answer: &v1::DevicesResponse) -> String {
    if answer.devices.is_empty() {
        return "No process that is traced now has used a device.\n".to_owned();
    }
    let mut text = format!("As of {}\n", moment(answer.as_of));
    for one in &answer.devices {
        text.push_str(&format!("\n{}\n", heading(one)));
        text.push_str(&holders(&one.holders));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

/// What nobody explains of a device. Where what its processes hold is a lower bound, that is an upper bound.
pub(in crate::commands) fn unexplained(one: &v1::MachineDevice) -> String {
    let words = maybe_bytes(one.unexplained_bytes);
    match one.at_least && one.unexplained_bytes.is_some() {
        true => format!("at most {words}"),
        false => words,
    }
}

/// What processes hold or have handed out. Where it is not known, it is no lower bound either.
pub(in crate::commands) fn held(of: Option<u64>, at_least: bool) -> String {
    let words = maybe_bytes(of);
    match at_least && of.is_some() {
        true => format!("at least {words}"),
        false => words,
    }
}

/// `GPU-8c3b… (0000:01:00.0)`, `MIG-03d1… of GPU-8c3b… (0000:01:00.0)`, or as its processes call it.
fn name(one: &v1::MachineDevice) -> String {
    let called = || one.name.as_deref().map_or_else(unknown, plain);
    one.hardware.as_ref().map_or_else(called, hardware)
}

/// `Device cuda 0: 24.00 GiB in all, 11.21 GiB free; these processes hold 12.01 GiB, the driver 410.00 MiB for them and 200.00 MiB for itself,
/// nobody explains 191.00 MiB`
fn heading(one: &v1::MachineDevice) -> String {
    let kind = one.kind.as_deref().map_or_else(unknown, plain);
    let name = name(one);
    let held = held(one.held_bytes, one.at_least);
    let by_driver = match (one.context_bytes, one.driver_reserved_bytes) {
        (None, None) => String::new(),
        (Some(context), None) => format!("the driver {} for them, ", bytes(context)),
        (None, Some(own)) => format!("the driver {} for itself, ", bytes(own)),
        (Some(context), Some(own)) => {
            let (context, own) = (bytes(context), bytes(own));
            format!("the driver {context} for them and {own} for itself, ")
        }
    };
    format!(
        "Device {kind} {name}: {} in all, {} free; these processes hold {held}, {by_driver}nobody explains {}",
        maybe_bytes(one.total_bytes),
        maybe_bytes(one.free_bytes),
        unexplained(one),
    )
}

/// The columns that tell of a process on a device.
const HOLDER: [Column; 6] = [
    Column::Right("PID"),
    Column::Right("ORDINAL"),
    Column::Right("ALLOCATED"),
    Column::Right("HELD"),
    Column::Right("CONTEXT"),
    Column::Left("COMMAND"),
];

fn holders(holders: &[v1::DeviceHolder]) -> String {
    table(&HOLDER, holders.iter().map(cells).collect())
}

fn cells(holder: &v1::DeviceHolder) -> Vec<String> {
    let facts = holder.process.clone().unwrap_or_default().facts;
    let facts = facts.unwrap_or_default();
    vec![
        facts.pid.to_string(),
        device(holder.ordinal),
        held(holder.allocated_bytes, holder.allocated_at_least),
        held(holder.held_bytes, holder.at_least),
        maybe_bytes(holder.context_bytes),
        command_line(&facts.cmdline, &facts.comm, COMMAND),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_explains_is_an_upper_bound_where_the_processes_may_hold_more() {
        let device = |at_least, unexplained_bytes| v1::MachineDevice {
            at_least,
            unexplained_bytes,
            holders: vec![v1::DeviceHolder::default()],
            ..v1::MachineDevice::default()
        };
        let text = |one: v1::MachineDevice| {
            of_fleet(&fleet::Replies::answered(vec![v1::DevicesResponse {
                devices: vec![one],
                ..v1::DevicesResponse::default()
            }]))
        };
        assert!(text(device(true, Some(5 << 30))).contains("at most 5.00 GiB"));
        assert!(!text(device(false, Some(5 << 30))).contains("at most"));
        assert!(!text(device(true, None)).contains("at most"));
    }

    #[test]
    fn what_is_not_known_is_no_bound() {
        let hold = |held_bytes| {
            heading(&v1::MachineDevice {
                at_least: true,
                held_bytes,
                ..v1::MachineDevice::default()
            })
        };
        assert!(hold(Some(5 << 30)).contains("hold at least 5.00 GiB"));
        let unknown = hold(None);
        assert!(unknown.contains("hold unknown"), "{unknown}");
    }
}
