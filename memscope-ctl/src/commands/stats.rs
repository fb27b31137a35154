//! `stats`: what processes hold on each device.

use super::each::{documents, each, whole};
use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::fleet::{self, Fleet, Told, of_processes};
use crate::process::Processes;
use crate::render::table::{Column, pairs, table};
use crate::render::{
    Known, OF_NODE, coverage, device_of_kind, hardware, heading, list, of_node, peaks_of, totals_of,
};
use crate::session::Session;
use crate::units::{self, exact_bytes, grouped, nanoseconds, plain};
use memscope_proto::v1;
use memscope_vendors::Vendor;

/// Show what processes hold on each device.
///
/// With --json, the answer about one process is a document, and about several a list of documents.
/// `allocated` includes the baseline: what was there before the attach and still lives.
#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    processes: Processes,
}

impl Run for Stats {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let ask = async |pid| client.stats(pid).await;
        let json = session.global.json;
        let (_, exit) = each(&client, &self.processes, json, ask, text, whole).await?;
        Ok(exit.unwrap_or(Exit::Done))
    }

    const FLEET: bool = true;

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let ask = async |asking: &fleet::Asking<'_>| {
            let stats = async |pid| {
                let question = v1::StatsRequest { pid };
                let call = async |mut rpc: crate::client::Rpc, request| rpc.stats(request).await;
                asking.ask(question, call).await
            };
            of_processes(asking, &self.processes, stats).await
        };
        let replies = fleet.ask(ask).await.any()?;
        fleet::show_processes(&replies, &self.processes, session, of_fleet, documents)
    }
}

/// Rows of the table of one process that are columns of the table of a fleet.
const OF_FLEET: [&str; 7] = [
    "device",
    "allocated",
    "reserved",
    "peak allocated",
    "peak reserved",
    "live blocks",
    "out of memory",
];

/// All devices of all processes of all nodes as one table.
fn of_fleet(replies: &fleet::Replies<Told<v1::StatsResponse>>) -> String {
    let mut rows = Vec::new();
    for (node, told) in replies.answers() {
        for (process, answer) in told.answers() {
            for device in &answer.devices {
                let mut row = Vec::from(of_node(&node.name, process));
                let fields = fields(std::slice::from_ref(device), &answer.coverage);
                let short = |name: &&str| {
                    let found = fields
                        .iter()
                        .find(|row| row.first().is_some_and(|is| is == name));
                    let value = found.and_then(|row| row.get(1)).map(String::as_str);
                    // Beside many others a number is read, not copied.
                    let value = value.unwrap_or_default();
                    value.split(" (").next().unwrap_or(value).to_owned()
                };
                row.extend(OF_FLEET.iter().map(short));
                rows.push(row);
            }
        }
    }
    if rows.is_empty() {
        // Of those that were refused nobody knows what they hold.
        if replies.lacks_processes() {
            return String::new();
        }
        return "No traced process of any node holds memory of a device.\n".to_owned();
    }
    let mut head = Vec::from(OF_NODE);
    head.extend(OF_FLEET.map(|name| Column::Named(name.to_uppercase())));
    table(&head, rows)
}

/// Number of devices that are shown side by side.
const ABREAST: usize = 3;
/// Largest number of failures, and of gaps, that are shown.
const SHOWN: usize = 10;

fn text(answer: &v1::StatsResponse) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    text.push_str(&ways(answer));
    if answer.devices.is_empty() {
        text.push_str(match Known::of(&answer.coverage, &["totals", "blocks"]) {
            Known::Exactly => "\nNothing was seen on any device yet.\n",
            _ => "\nWhat it holds is not known: the notes below say why.\n",
        });
    }
    for devices in answer.devices.chunks(ABREAST) {
        text.push('\n');
        text.push_str(&columns(devices, &answer.coverage));
    }
    text.push_str(&components(answer));
    text.push_str(&region_pools(answer));
    text.push_str(&reading(answer));
    text.push_str(&host(answer));
    text.push_str(&settings(answer));
    text.push_str(&failures(answer));
    text.push_str(&gaps(answer));
    text.push_str(&coverage(&answer.coverage));
    text
}

fn ways(answer: &v1::StatsResponse) -> String {
    let allocator = match &answer.backend {
        Some(v1::Backend {
            name: Some(name), ..
        }) => plain(name),
        Some(backend) => plain(&backend.kind),
        None => units::unknown(),
    };
    let (ways, sites) = match &answer.placement {
        Some(placement) => (list(&placement.ways), placement.sites),
        None => ("none".to_owned(), 0),
    };
    format!(
        "level {}, allocator {allocator}, {sites} probes; blocks of the pool are seen at {ways}\n{}",
        answer.level(),
        since(answer)
    )
}

/// The moment from which counts and peaks are known, where that is not the start of the process.
fn since(answer: &v1::StatsResponse) -> String {
    let Some(process) = &answer.process else {
        return String::new();
    };
    let from_start = process.facts.as_ref().is_some_and(|facts| facts.from_start);
    if from_start {
        return String::new();
    }
    let ago = answer
        .as_of_boot_ns
        .saturating_sub(process.attached_boot_ns);
    format!(
        "counts and peaks since {}, when it was attached\n",
        units::moment(answer.as_of.saturating_sub(ago))
    )
}

fn columns(devices: &[v1::DeviceStats], notes: &[v1::CoverageNote]) -> String {
    let mut head = vec![Column::Left("")];
    head.extend(devices.iter().map(|_| Column::Right("")));
    let mut rows = fields(devices, notes);
    rows.retain(|row| {
        let name = row.first();
        name.is_some_and(|name| !is_of_none(name, devices) && says_something(name, &row[1..]))
    });
    table(&head, rows)
}

/// What is told of devices: the name of each number, and its value for each device.
fn fields(devices: &[v1::DeviceStats], notes: &[v1::CoverageNote]) -> Vec<Vec<String>> {
    let count = |value: u64| grouped(value);
    let blocks = Known::of(notes, &["blocks"]);
    let history = Known::of(notes, &["history"]);
    let failures = Known::of(notes, &["history", "failures"]);
    let driver = Known::of(notes, &["driver"]);
    let totals = |device: &v1::DeviceStats| totals_of(device, notes);
    let peaks = |device: &v1::DeviceStats| peaks_of(device, notes);
    let of = |bytes: &Option<v1::DriverBytes>| match bytes {
        Some(bytes) => format!("{} in {}", units::bytes(bytes.bytes), grouped(bytes.count)),
        None => units::unknown(),
    };
    let spread =
        |distribution: &Option<v1::Distribution>, show: fn(u64) -> String| match distribution {
            Some(d) if d.count > 0 => {
                format!("{} / {} / {}", show(d.p50), show(d.p99), show(d.max))
            }
            // Left out, as where the moments are not right.
            _ if history == Known::Not => units::unknown(),
            _ => "none seen".to_owned(),
        };
    type Row<'a> = (&'a str, &'a dyn Fn(&v1::DeviceStats) -> String);
    let rows: &[Row<'_>] = &[
        ("device", &|d| {
            device_of_kind(d.device, d.device_kind.as_deref())
        }),
        ("hardware", &|d| {
            let told = d.hardware.as_ref();
            told.map_or_else(|| NOT_KNOWN.to_owned(), hardware)
        }),
        ("allocated", &|d| {
            totals(d).say(exact_bytes(d.allocated_bytes))
        }),
        ("  of it baseline", &|d| exact_bytes(d.baseline_bytes)),
        ("reserved", &|d| {
            totals(d).say(exact_bytes(d.reserved_bytes))
        }),
        ("peak allocated", &|d| {
            peaks(d).say(exact_bytes(d.peak_allocated_bytes))
        }),
        ("  last reached", &|d| {
            let none = || "none seen".to_owned();
            d.peak_unix_ns.map_or_else(none, units::moment)
        }),
        ("peak reserved", &|d| {
            peaks(d).say(exact_bytes(d.peak_reserved_bytes))
        }),
        ("requested", &|d| blocks.say(exact_bytes(d.requested_bytes))),
        ("pending free", &|d| {
            blocks.say(exact_bytes(d.pending_free_bytes))
        }),
        ("device total", &|d| exact_bytes(d.total_bytes)),
        ("device free (last seen)", &|d| exact_bytes(d.free_bytes)),
        ("numbers from", &|d| d.source().to_string()),
        ("live blocks", &|d| blocks.say(count(d.live_blocks))),
        ("allocations", &|d| history.say(count(d.alloc_count))),
        ("frees", &|d| history.say(count(d.free_count))),
        ("frees of unknown blocks", &|d| count(d.orphan_free_count)),
        ("out of memory", &|d| failures.say(count(d.oom_count))),
        ("totals taken over", &|d| count(d.resync_count)),
        ("segments", &|d| {
            d.segments.map_or_else(units::unknown, grouped)
        }),
        ("from the driver", &|d| driver.say(of(&d.driver))),
        ("  not for the pool", &|d| driver.say(of(&d.direct))),
        ("  stream-ordered", &|d| driver.say(of(&d.async_pool))),
        ("  managed", &|d| driver.say(of(&d.managed))),
        ("  physical", &|d| driver.say(of(&d.physical))),
        ("imported", &|d| driver.say(of(&d.imported))),
        ("size p50 / p99 / max", &|d| spread(&d.sizes, units::bytes)),
        ("lifetime p50 / p99 / max", &|d| {
            spread(&d.lifetimes, nanoseconds)
        }),
    ];
    let rows = rows.iter().map(|(name, value)| {
        let mut row = vec![(*name).to_owned()];
        row.extend(devices.iter().map(value));
        row
    });
    rows.collect()
}

/// What a device is, where nobody told.
const NOT_KNOWN: &str = "not known";

/// Rows that are shown even if they are zero, because users look for them.
const ALWAYS: [&str; 7] = [
    "allocated",
    "reserved",
    "peak allocated",
    "peak reserved",
    "live blocks",
    "allocations",
    "frees",
];

/// Whether a row is of a rare kind of memory of which none was seen on any of the devices. Nothing is said of that.
fn is_of_none(name: &str, devices: &[v1::DeviceStats]) -> bool {
    let of_kind = |device: &v1::DeviceStats| match name {
        "  stream-ordered" => Some(device.async_pool),
        "  managed" => Some(device.managed),
        "  physical" => Some(device.physical),
        "imported" => Some(device.imported),
        _ => None,
    };
    let mut devices = devices.iter();
    devices.all(|device| {
        let bytes = of_kind(device).flatten();
        bytes.is_some_and(|bytes| bytes.count == 0)
    })
}

/// Whether a row is shown. A row about something rare is left out where there is none of it.
fn says_something(name: &str, values: &[String]) -> bool {
    let none = ["0", "0 B", "0 B in 0", "none seen", NOT_KNOWN];
    let is_zero = |value: &String| none.contains(&value.as_str());
    ALWAYS.contains(&name) || !values.iter().all(is_zero)
}

/// On Ascend: which component holds how much memory that is not the pool's.
fn components(answer: &v1::StatsResponse) -> String {
    let known = Known::of(&answer.coverage, &["driver"]);
    let mut rows = Vec::new();
    let mut add = |place: String, components: &[v1::Component]| {
        for component in components {
            rows.push(vec![
                place.clone(),
                match component.module {
                    Some(_) => format!("CANN@{}", plain(&component.name)),
                    None => plain(&component.name).to_string(),
                },
                known.say(exact_bytes(Some(component.bytes))),
                known.say(grouped(component.count)),
                known.say(units::bytes(
                    component.huge_page_bytes + component.giant_page_bytes,
                )),
            ]);
        }
    };
    for device in &answer.devices {
        let place = device_of_kind(device.device, device.device_kind.as_deref());
        add(place, &device.components);
    }
    add("host".to_owned(), &answer.host_components);
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        Column::Left("NOT THE POOL'S"),
        Column::Left("HELD BY"),
        Column::Right("BYTES"),
        Column::Right("ALLOCATIONS"),
        Column::Right("IN HUGE PAGES"),
    ];
    format!("\n{}", table(&head, rows))
}

/// Pools that report their own memory, a line for each device.
fn region_pools(answer: &v1::StatsResponse) -> String {
    let known = Known::of(&answer.coverage, &["regions"]);
    let mut text = String::new();
    for pool in &answer.region_pools {
        let title = plain(&pool.title);
        for row in &pool.devices {
            let heap = match row.heap_bytes {
                Some(bytes) => format!(" of a heap of {}", units::bytes(bytes)),
                None => String::new(),
            };
            text.push_str(&format!(
                "{}: {title} {}{heap}, peak {}\n",
                // The functions by which pools report are CANN's.
                device_of_kind(row.device, Some("npu")),
                known.say(format!(
                    "{} in {}",
                    units::bytes(row.bytes),
                    regions(row.count)
                )),
                known.say(units::bytes(row.peak_bytes)),
            ));
        }
        if pool.orphan_free_count > 0 {
            let count = regions(pool.orphan_free_count);
            text.push_str(&format!(
                "{title}: {count} went and had not been seen to come\n"
            ));
        }
        if pool.untold_count > 0 {
            let count = regions(pool.untold_count);
            text.push_str(&format!(
                "{title}: {count} more were in calls of too many\n"
            ));
        }
    }
    if text.is_empty() {
        return text;
    }
    format!("\npools that tell of themselves through mstx, inside the memory above\n{text}")
}

fn regions(count: u64) -> String {
    match count {
        1 => "1 region".to_owned(),
        count => format!("{} regions", grouped(count)),
    }
}

/// The environment variables that change what Ascend's numbers mean, as the process was started with them.
fn settings(answer: &v1::StatsResponse) -> String {
    let facts = answer.process.as_ref().and_then(|p| p.facts.as_ref());
    let environment = facts.map_or(&[][..], |facts| &facts.environment);
    let words: Vec<String> = environment
        .iter()
        .filter(|variable| {
            Vendor::Ascend
                .facts()
                .settings
                .contains(&variable.name.as_str())
        })
        .map(|variable| format!("{}={}", variable.name, plain(&variable.value)))
        .collect();
    if words.is_empty() {
        return String::new();
    }
    format!("\nstarted with {}\n", words.join(" "))
}

/// Cost of the last reading, at level `read`, which has no other source.
fn reading(answer: &v1::StatsResponse) -> String {
    match &answer.reading {
        Some(cost) if answer.level() == v1::Level::Read => format!(
            "\nLast reading {} before this answer: took {}, {} of the process's memory, {} attempts \
             raced with it\n",
            nanoseconds(answer.as_of_boot_ns.saturating_sub(cost.at_boot_ns)),
            nanoseconds(cost.duration_ns),
            units::bytes(cost.bytes_read),
            cost.raced
        ),
        _ => String::new(),
    }
}

fn host(answer: &v1::StatsResponse) -> String {
    let driver = Known::of(&answer.coverage, &["driver"]);
    let kinds = [
        ("page-locked host memory", &answer.host),
        ("  of it registered", &answer.host_registered),
        ("address space reserved", &answer.address_reserved),
    ];
    let rows: Vec<_> = kinds
        .into_iter()
        .filter_map(|(name, bytes)| {
            let bytes = bytes.as_ref().filter(|bytes| bytes.count > 0)?;
            let count = grouped(bytes.count);
            let bytes = exact_bytes(Some(bytes.bytes));
            Some((name, driver.say(format!("{bytes} in {count}"))))
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("\n{}", pairs(rows))
}

fn failures(answer: &v1::StatsResponse) -> String {
    if answer.failures.is_empty() {
        return String::new();
    }
    let rows = answer.failures.iter().take(SHOWN).map(|failure| {
        vec![
            plain(&failure.function),
            failure.status.to_string(),
            grouped(failure.count),
            units::bytes(failure.bytes),
        ]
    });
    let head = [
        Column::Left("FAILED CALL"),
        Column::Right("STATUS"),
        Column::Right("TIMES"),
        Column::Right("ASKED FOR"),
    ];
    let mut text = format!("\n{}", table(&head, rows.collect()));
    text.push_str(&more(answer.failures.len()));
    text
}

fn gaps(answer: &v1::StatsResponse) -> String {
    if answer.gaps.is_empty() {
        return String::new();
    }
    let rows = answer.gaps.iter().rev().take(SHOWN).map(|gap| {
        vec![
            nanoseconds(answer.as_of_boot_ns.saturating_sub(gap.from_boot_ns)),
            nanoseconds(gap.to_boot_ns.saturating_sub(gap.from_boot_ns)),
            grouped(gap.records),
        ]
    });
    let head = [
        Column::Left("GAP, AGO"),
        Column::Right("LONG"),
        Column::Right("RECORDS LOST"),
    ];
    let mut text = format!("\n{}", table(&head, rows.collect()));
    text.push_str(&more(answer.gaps.len()));
    text
}

fn more(count: usize) -> String {
    match count.checked_sub(SHOWN) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more (--json shows all)\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside what is held of a kind on one device, none that was seen on another one is no less a lower bound.
    #[test]
    fn no_memory_of_a_kind_is_known_as_exactly_as_some() {
        let notes = [v1::CoverageNote {
            code: "direct_baseline_unknown".to_owned(),
            affects: vec!["driver".to_owned()],
            lower_bound: true,
            ..v1::CoverageNote::default()
        }];
        let device = |count| v1::DeviceStats {
            driver: Some(v1::DriverBytes {
                count,
                bytes: count,
            }),
            physical: Some(v1::DriverBytes {
                count,
                bytes: count,
            }),
            managed: Some(v1::DriverBytes::default()),
            ..v1::DeviceStats::default()
        };
        let shown = columns(&[device(0), device(3)], &notes);
        let row = |name: &str| shown.lines().find(|line| line.trim().starts_with(name));
        for name in ["from the driver", "physical"] {
            let row = row(name).unwrap_or_default();
            assert!(row.contains("at least 0 B in 0"), "{row}");
            assert!(row.contains("at least 3 B in 3"), "{row}");
        }
        // Of a kind of which none was seen nothing is said.
        assert_eq!(row("managed"), None);
    }
}
