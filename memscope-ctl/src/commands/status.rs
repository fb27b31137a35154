//! `status`: shows how the daemon is doing.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::fleet::{self, Asking, Fleet, Replies};
use crate::render::libraries::libraries;
use crate::render::table::{Column, pairs, table};
use crate::session::Session;
use crate::units::{bytes, exact_bytes, grouped, maker, moment, nanoseconds, plain, unknown};
use memscope_proto::v1;

/// Show how the daemon does: version, journal, losses, libraries, rules.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {}

impl Run for Status {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let answer = session.client().await?.status().await?;
        session.show(&answer, text)
    }

    const FLEET: bool = true;

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let replies = fleet
            .ask(async |asking| of_node(asking).await)
            .await
            .any()?;
        fleet::show(&replies, session, of_fleet, super::each::whole)
    }
}

/// The state of the daemon of a node.
pub(super) async fn of_node(asking: &Asking<'_>) -> Result<v1::StatusResponse, Failure> {
    let call = async |mut rpc: crate::client::Rpc, request| rpc.status(request).await;
    asking.ask(v1::StatusRequest {}, call).await
}

fn of_fleet(replies: &Replies<v1::StatusResponse>) -> String {
    let head = [
        Column::Left("NODE"),
        Column::Left("DAEMON"),
        Column::Left("KERNEL"),
        Column::Right("RUNNING FOR"),
        Column::Right("TRACED"),
        Column::Left("JOURNAL"),
        Column::Right("MEMORY"),
        Column::Left("LOST"),
    ];
    let rows = replies.answers().map(|(node, answer)| {
        vec![
            plain(&node.name),
            plain(&answer.version),
            plain(&answer.kernel),
            nanoseconds(answer.uptime_ns),
            grouped(answer.traced_processes),
            answer
                .journal
                .as_ref()
                .map_or_else(unknown, |journal| plain(&journal.state)),
            answer
                .memory
                .as_ref()
                .map_or_else(unknown, |memory| bytes(memory.used_bytes)),
            match answer.totals_left_out {
                true => unknown(),
                false => drops(&answer.drops),
            },
        ]
    });
    table(&head, rows.collect())
}

fn text(answer: &v1::StatusResponse) -> String {
    let text_or_unknown = |text: &Option<String>| text.as_deref().map_or_else(unknown, plain);
    let mut rows = vec![
        (
            "daemon",
            format!("memscoped {}, pid {}", plain(&answer.version), answer.pid),
        ),
        ("kernel", plain(&answer.kernel)),
        ("running for", nanoseconds(answer.uptime_ns)),
    ];
    if let Some(recording) = &answer.replay {
        rows.push(("replays", plain(recording)));
    } else {
        rows.push(("attach method", text_or_unknown(&answer.attach_method)));
        rows.push(("ring", answer.ring_bytes.map_or_else(unknown, bytes)));
    }
    let sites = match answer.attaching {
        true => "sites not known: memscoped is busy with an attach".to_owned(),
        false => format!("{} sites", grouped(answer.sites)),
    };
    let processes = match answer.traced_processes {
        1 => "1 process".to_owned(),
        more => format!("{} processes", grouped(more)),
    };
    if answer.totals_left_out {
        rows.push(("traced", format!("{processes} of yours")));
        rows.push(("totals", "root sees those of all processes".to_owned()));
    } else {
        rows.push(("traced", format!("{processes}, {sites}")));
        rows.push(("records", grouped(answer.records)));
        let so_far = match answer.attaching {
            true => ", as far as known",
            false => "",
        };
        rows.push(("lost", drops(&answer.drops) + so_far));
    }
    if answer.reads_given_up > 0 {
        let times = grouped(answer.reads_given_up);
        rows.push((
            "not delivered",
            format!("{times} times, memory or a file of a process to who read it"),
        ));
    }
    if let Some(memory) = &answer.memory {
        rows.push(("memory", memory_text(memory)));
        if memory.shed.iter().any(|part| part.count > 0) {
            rows.push(("given up", drops(&memory.shed)));
        }
    }
    if let Some(journal) = &answer.journal {
        let limit = journal
            .limit_bytes
            .map(|limit| format!(" of at most {}", bytes(limit)));
        let size = match answer.totals_left_out {
            true => String::new(),
            false => format!(
                ", {}{}",
                exact_bytes(Some(journal.bytes)),
                limit.unwrap_or_default()
            ),
        };
        rows.push((
            "journal",
            format!("{}{size}, {}", plain(&journal.state), plain(&journal.path)),
        ));
        if let Some(from) = journal.known_from_unix_ns {
            rows.push(("moments", format!("from {} on", moment(from))));
        }
        if journal.refused_records > 0 {
            rows.push((
                "not kept",
                format!("{} records", grouped(journal.refused_records)),
            ));
        }
        if let Some(problem) = &journal.problem {
            rows.push(("journal problem", plain(problem)));
        }
    }
    let mut text = pairs(rows);
    text.push_str(&rules(&answer.rules));
    text.push_str(&libraries(&answer.libraries));
    if !answer.messages.is_empty() {
        text.push_str("\nMessages\n");
    }
    for message in &answer.messages {
        text.push_str(&format!(
            "  {} {}: {}\n",
            moment(message.time_unix_ns),
            plain(&message.severity),
            plain(&message.text)
        ));
    }
    text
}

fn memory_text(memory: &v1::Memory) -> String {
    format!(
        "{} of at most {}; processes {} of at most {}",
        bytes(memory.used_bytes),
        bytes(memory.limit_bytes),
        bytes(memory.processes_bytes),
        bytes(memory.processes_limit_bytes)
    )
}

fn drops(drops: &[v1::Cause]) -> String {
    let drops: Vec<_> = drops
        .iter()
        .filter(|cause| cause.count > 0)
        .map(|cause| format!("{} {}", grouped(cause.count), plain(&cause.cause)))
        .collect();
    if drops.is_empty() {
        "nothing".to_owned()
    } else {
        drops.join(", ")
    }
}

fn rules(rules: &[v1::Rule]) -> String {
    if rules.is_empty() {
        return String::new();
    }
    let head = [
        Column::Right("RULE"),
        Column::Left("SCOPE"),
        Column::Left("LEVEL"),
        Column::Right("BY"),
        Column::Right("ATTACHED"),
    ];
    let rows = rules.iter().map(|rule| {
        vec![
            rule.rule.to_string(),
            plain(&rule.scope),
            match rule.level() {
                v1::Level::Unspecified => "off".to_owned(),
                level => level.to_string(),
            },
            match rule.policy {
                true => "policy".to_owned(),
                false => maker(rule.uid, rule.certificate.as_deref()),
            },
            grouped(rule.attached),
        ]
    });
    format!("\n{}", table(&head, rows.collect()))
}
