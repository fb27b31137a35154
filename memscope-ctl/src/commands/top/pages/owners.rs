//! The view of what memory is for.

use super::line::Lines;
use super::{Got, about, count, limits, size};
use crate::commands::owners::words::{module, short, what, words};
use crate::commands::top::page::{Cell, Opens, Page, Row, Tone, number, text};
use crate::render::device;
use crate::units::{bytes, grouped};
use memscope_proto::v1;

/// What a use is known by in the next answer.
pub(in crate::commands::top) fn key(owner: &v1::Owner) -> String {
    let device = device(owner.device);
    format!(
        "{device} {} {} {} {} {} {}",
        owner.category, owner.owner, owner.name, owner.key, owner.module, owner.place
    )
}

/// The categories in a sentence, and the uses.
pub(in crate::commands::top) fn page(answer: &v1::OwnersResponse) -> Page {
    let mut page = Page {
        about: about(answer.process.as_ref(), answer.pid),
        as_of: Some(answer.as_of),
        columns: vec![
            text("FOR", 0, 12),
            text("WHAT", 0, 20),
            number("SIZE", 0),
            number("BLOCKS", 3),
            text("ALLOCATED AT", 2, 16),
            text("MODULE", 4, 16),
            text("TYPE", 5, 10),
            number("DEVICE", 6),
            text("LABELS", 7, 10),
        ],
        nothing: "Nothing is in use.".to_owned(),
        limits: limits(&answer.coverage),
        ..Page::default()
    };
    for one in &answer.devices {
        page.says.push(Cell::text(categories(one)));
    }
    for owner in &answer.owners {
        let blocks = owner.blocks.unwrap_or_default();
        page.rows.push(Row {
            key: key(owner),
            cells: vec![
                Cell::text(words(&owner.category)),
                Cell::text(what(owner)),
                size(Some(blocks.bytes)),
                count(blocks.count),
                Cell::text(short(&owner.place)),
                Cell::text(module(owner)),
                Cell::text(&owner.kind),
                Cell::text(device(owner.device)),
                Cell::text(owner.labels.join(", ")),
            ],
            location: location(&owner.place),
            pid: None,
            opens: Some(Opens::Owner),
        });
    }
    if answer.more > 0 {
        let more = format!(
            "{} smaller uses, {}, are left out.",
            grouped(answer.more),
            bytes(answer.more_bytes)
        );
        page.says.push(Cell::text(more).toned(Tone::Quiet));
    }
    page
}

/// `device 0: 48.00 MiB weights, 96.00 MiB optimizer state, …`
fn categories(one: &v1::OwnedDevice) -> String {
    let each = one.categories.iter().map(|category| {
        let blocks = category.blocks.unwrap_or_default();
        format!("{} {}", bytes(blocks.bytes), words(&category.category))
    });
    let rest = [
        (Some(one.pending_free_bytes), "that a stream still uses"),
        (one.cached_bytes, "free in the pool"),
        (one.context_bytes, "the driver's context"),
        (one.unexplained_bytes, "not explained"),
    ];
    let rest = rest.into_iter().filter_map(|(size, what)| {
        let size = size.filter(|size| *size > 0)?;
        Some(format!("{} {what}", bytes(size)))
    });
    let all: Vec<String> = each.chain(rest).collect();
    format!("device {}: {}.", device(one.device), all.join(", "))
}

/// The place without its function: `/home/ada/train.py:18`.
fn location(place: &str) -> Option<String> {
    let (file, _) = place.split_once(" in ")?;
    let (_, line) = file.rsplit_once(':')?;
    line.parse::<u32>().ok()?;
    Some(crate::units::plain(file))
}

/// Why one use is what it is. `is_then`: both answers are of one moment. Else the block may be for something else by the time when it is
/// explained, as it is in a pause.
pub(in crate::commands::top) fn why(
    answer: &v1::OwnersResponse,
    of: &str,
    explained: Got<'_, v1::OwnersResponse>,
    is_then: bool,
) -> Page {
    let name = about(answer.process.as_ref(), answer.pid);
    let Some(owner) = answer.owners.iter().find(|owner| key(owner) == of) else {
        return Page::only(name, "It is not there any more (Esc goes back).");
    };
    let blocks = owner.blocks.unwrap_or_default();
    let mut lines = Lines::default();
    let facts = [
        ("for", words(&owner.category)),
        ("what", what(owner)),
        ("type", owner.kind.clone()),
        ("module", module(owner)),
        ("labels", owner.labels.join(", ")),
    ];
    for (title, fact) in facts.iter().filter(|(_, fact)| !fact.is_empty()) {
        lines.add(&format!("{title:<14}{fact}"), None, Tone::Plain);
    }
    let held = format!(
        "{} in {} blocks",
        bytes(blocks.bytes),
        grouped(blocks.count)
    );
    lines.add(&format!("{:<14}{held}", "size"), None, Tone::Plain);
    if !owner.place.is_empty() {
        let words = format!("{:<14}{}", "allocated at", owner.place);
        lines.add(&words, location(&owner.place), Tone::Plain);
    }
    lines.title("");
    lines.title(&format!(
        "Why the largest of them, at {:#x}, is that",
        owner.address
    ));
    match explained {
        Err(why) => lines.quiet(&why),
        Ok(explained) => {
            let is_another = |of: &v1::Owner| {
                let use_of = |one: &v1::Owner| {
                    let parts = [&one.category, &one.owner, &one.name];
                    parts.map(String::clone)
                };
                use_of(of) != use_of(owner)
            };
            for one in &explained.explained {
                if !is_then && one.owner.as_ref().is_some_and(is_another) {
                    lines.quiet("what is there now is for something else");
                    continue;
                }
                for why in &one.why {
                    lines.add(&format!("  {why}"), None, Tone::Plain);
                }
            }
            if explained.explained.is_empty() {
                lines.quiet("it is not there any more");
            }
        }
    }
    Page {
        about: format!("{name}: {}", what(owner)),
        as_of: Some(answer.as_of),
        columns: vec![text("", 0, 20)],
        rows: lines.rows,
        ..Page::default()
    }
}
