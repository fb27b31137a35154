//! The view of all devices.

use super::{limits, size, size_known};
use crate::commands::devices::{held, unexplained};
use crate::commands::top::page::{Cell, Opens, Page, Row, Tone, number, text};
use crate::render::{command_line, device};
use crate::units::{maybe_bytes, plain, unknown};
use memscope_proto::v1;

/// Characters of a command line that are kept.
const COMMAND: usize = 120;

/// Every device with its processes, and what nobody explains of it.
pub(in crate::commands::top) fn page(answer: &v1::DevicesResponse) -> Page {
    let mut page = Page {
        about: match answer.devices.len() {
            1 => "1 device".to_owned(),
            all => format!("{all} devices"),
        },
        as_of: Some(answer.as_of),
        columns: vec![
            text("DEVICE", 0, 8),
            number("PID", 0),
            text("WHAT", 0, 18),
            number("HELD", 0),
            number("OF", 2),
            number("ALLOCATED", 3),
            number("CONTEXT", 4),
            number("FREE", 1),
            number("ORDINAL", 5),
        ],
        nothing: "No process that is traced now has used a device.".to_owned(),
        limits: limits(&answer.coverage),
        ..Page::default()
    };
    for (place, one) in answer.devices.iter().enumerate() {
        let kind = one.kind.as_deref().map_or_else(unknown, plain);
        let name = one.name.as_deref().map_or_else(unknown, plain);
        let title = format!("{kind} {name}");
        for holder in &one.holders {
            page.rows.push(row(place, one, &title, holder));
        }
        let by_driver = one.driver_reserved_bytes;
        let by_nobody = one.unexplained_bytes;
        let tone = match by_nobody.is_some_and(|held| held > 0) {
            true => Tone::Plain,
            false => Tone::Quiet,
        };
        let rest = [
            (
                "(kept by the driver)",
                maybe_bytes(by_driver),
                by_driver,
                Tone::Quiet,
            ),
            ("(nobody explains)", unexplained(one), by_nobody, tone),
        ];
        for (what, words, held, tone) in rest {
            page.rows.push(Row {
                // Devices of one kind may have one name.
                key: format!("{place} {title} {what}"),
                cells: vec![
                    Cell::text(&title),
                    Cell::default(),
                    Cell::text(what).toned(tone),
                    size_known(words, held),
                    size(one.total_bytes),
                    Cell::default(),
                    Cell::default(),
                    size(one.free_bytes),
                    Cell::default(),
                ],
                location: None,
                pid: None,
                opens: None,
            });
        }
    }
    page
}

fn row(place: usize, one: &v1::MachineDevice, title: &str, holder: &v1::DeviceHolder) -> Row {
    let process = holder.process.clone().unwrap_or_default();
    let facts = process.facts.unwrap_or_default();
    let ordinal = device(holder.ordinal);
    Row {
        key: format!(
            "{place} {title} {} {} {ordinal}",
            facts.pid, facts.start_ticks
        ),
        cells: vec![
            Cell::text(title),
            Cell::number(facts.pid.to_string(), Some(-f64::from(facts.pid))),
            Cell::text(command_line(&facts.cmdline, &facts.comm, COMMAND)),
            size_known(held(holder.held_bytes, holder.at_least), holder.held_bytes),
            size(one.total_bytes),
            size_known(
                held(holder.allocated_bytes, holder.allocated_at_least),
                holder.allocated_bytes,
            ),
            size(holder.context_bytes),
            size(one.free_bytes),
            Cell::text(ordinal),
        ],
        location: None,
        pid: Some(facts.pid),
        opens: Some(Opens::Leaks),
    }
}
