//! `attach` and `detach`.

use super::{coverage, list};
use crate::units::{self, grouped, nanoseconds, plain};
use memscope_proto::v1;

pub(crate) fn attached(answer: &v1::AttachResponse) -> String {
    let mut text = String::new();
    if let Some(rule) = answer.rule {
        text.push_str(&format!(
            "Rule {rule} attaches what matches from now on; memscope-ctl detach --rule {rule} \
             ends it.\n"
        ));
        if answer.processes.is_empty() {
            text.push_str("Nothing matches yet.\n");
        }
    }
    for process in &answer.processes {
        text.push_str(&format!(
            "Attached {} (pid {}): level {}, ",
            plain(&process.comm),
            process.pid,
            process.level(),
        ));
        text.push_str(&match process.level() {
            v1::Level::Read => "no probes\n".to_owned(),
            _ => format!(
                "{} sites, ways in: {}\n",
                process.sites,
                list(&process.ways)
            ),
        });
        if let Some(read) = &process.baseline {
            text.push_str(&baseline(read));
        } else if process.baseline_pending {
            text.push_str(
                "There before: not known yet, it is still being read; stats shows it when it is known\n",
            );
        }
        if let Some(cost) = &process.cost {
            text.push_str(&format!("Cost: {}\n", plain(cost)));
        }
        text.push_str(&coverage(&process.coverage));
    }
    for refused in &answer.refused {
        text.push_str(&format!(
            "Not attached: pid {}: {}\n",
            refused.pid,
            plain(&refused.message)
        ));
    }
    text
}

/// What was there before.
fn baseline(read: &v1::BaselineRead) -> String {
    let mut text = format!(
        "There before: {} in {} blocks, {} reserved in {} segments, on {} {}",
        units::bytes(read.allocated_bytes),
        grouped(read.blocks),
        units::bytes(read.reserved_bytes),
        grouped(read.segments),
        read.devices,
        if read.devices == 1 {
            "device"
        } else {
            "devices"
        },
    );
    if let Some(cost) = &read.cost {
        text.push_str(&format!(
            " (read in {}, {} of its memory",
            nanoseconds(cost.duration_ns),
            units::bytes(cost.bytes_read)
        ));
        text.push_str(&match cost.raced {
            0 => ")".to_owned(),
            raced => format!(", {} attempts raced with it)", grouped(raced.into())),
        });
    }
    text.push('\n');
    text
}

pub(crate) fn detached(answer: &v1::DetachResponse) -> String {
    if answer.pids.is_empty() && answer.rules.is_empty() {
        return "Nothing was traced.\n".to_owned();
    }
    let mut text = String::new();
    for pid in &answer.pids {
        text.push_str(&format!("Detached pid {pid}.\n"));
    }
    for rule in &answer.rules {
        text.push_str(&format!("Rule {rule} ended.\n"));
    }
    text
}
