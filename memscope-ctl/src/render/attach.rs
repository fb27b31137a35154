//! `attach` and `detach`.

use super::{coverage, list};
use crate::units::plain;
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
            "Attached {} (pid {}): level {}, {} sites, ways in: {}\n",
            plain(&process.comm),
            process.pid,
            process.level(),
            process.sites,
            list(&process.ways),
        ));
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
