//! `pool`: how the pool is filled.

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::process::Process;
use crate::render::table::{Column, pairs, table};
use crate::render::{Known, coverage, name};
use crate::session::Session;
use crate::units::{bytes, exact_bytes, grouped, moment};
use memscope_proto::v1::{self, Moment};

/// Show how the pool is filled: sizes, ages, private pools, fragmentation.
///
/// A size class holds the blocks up to its size and above the half of it. Fragmentation is given as
/// XProf defines it (of the free bytes, the share outside the largest piece), as PyTorch's memory viewer
/// prints it, and as the share of the reserved bytes that nobody uses.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl pool --pid 4242
  memscope-ctl pool --pid 4242 --from -1h      and by how much each size class grew since then")]
pub(crate) struct Pool {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Compare with this earlier moment, from the journal: an age (-5m), a time
    /// (2026-11-20T08:30:00Z, or nanoseconds since 1970), event:NUMBER, step:NUMBER, mark:NAME, or peak (peak:DEVICE).
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) from: Option<Moment>,
    /// Describe this moment; now, if it is not given.
    #[arg(long, value_name = "MOMENT", value_parser = crate::moment::parse, allow_hyphen_values = true)]
    pub(crate) at: Option<Moment>,
}

impl Run for Pool {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let question = v1::PoolRequest {
            pid: client.choose(self.process.pid()).await?,
            at: self.at.clone(),
            from: self.from.clone(),
        };
        let answer = client
            .ask(question, async |mut rpc, request| rpc.pool(request).await)
            .await?;
        session.show(&answer, text)
    }
}

fn text(answer: &v1::PoolResponse) -> String {
    let process = answer.process.as_ref();
    let mut text = format!(
        "{}  as of {}",
        process.map_or_else(|| format!("pid {}", answer.pid), name),
        moment(answer.as_of)
    );
    if let Some(from) = answer.from_unix_ns {
        text.push_str(&format!(", compared with {}", moment(from)));
    }
    text.push('\n');
    if answer.devices.is_empty() {
        text.push_str("\nNo segment is known on any device.\n");
    }
    for device in &answer.devices {
        text.push_str(&format!("\nDevice {}\n", device.device));
        text.push_str(&sums(device, &answer.coverage));
        if !device.classes.is_empty() {
            text.push('\n');
            if Known::of(&answer.coverage, &["totals", "blocks"]) != Known::Exactly {
                text.push_str("Of the blocks that are known:\n");
            }
            text.push_str(&classes(answer, device));
        }
        if device.pools.len() > 1 {
            text.push('\n');
            text.push_str(&pools(device));
        }
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn amount(amount: Option<v1::Amount>) -> v1::Amount {
    amount.unwrap_or_default()
}

fn of(one: Option<v1::Amount>) -> String {
    let one = amount(one);
    format!("{} in {}", exact_bytes(Some(one.bytes)), grouped(one.count))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn sums(device: &v1::DevicePool, notes: &[v1::CoverageNote]) -> String {
    let totals = Known::of(notes, &["totals"]);
    // These sums are added up from blocks, so what is missing of the blocks is missing in the sums.
    let blocks = Known::of(notes, &["totals", "blocks"]);
    // A share means nothing if only a part of the blocks is known.
    let share = |text: String| match blocks {
        Known::Exactly => text,
        _ => crate::units::unknown(),
    };
    let in_use = amount(device.allocated).bytes + amount(device.pending).bytes;
    let rounding = device
        .requested_bytes
        .map(|requested| in_use.saturating_sub(requested));
    let mut rows = vec![
        (
            "reserved",
            totals.say(exact_bytes(Some(device.reserved_bytes))),
        ),
        ("allocated", blocks.say(of(device.allocated))),
        ("pending free", blocks.say(of(device.pending))),
        ("  of both rounding", share(exact_bytes(rounding))),
        ("free in segments", share(of(device.free))),
        (
            "  largest piece",
            share(exact_bytes(Some(device.largest_free_bytes))),
        ),
        ("idle segments", share(of(device.idle_segments))),
    ];
    rows.push((
        "unused: 1 - allocated/reserved",
        share(percent(device.unused_share)),
    ));
    rows.push((
        "fragmentation: 1 - largest/free",
        share(percent(device.fragmentation_of_free)),
    ));
    rows.push((
        "fragmentation, PyTorch's viewer",
        share(format!("{:.4}", device.fragmentation_viewer)),
    ));
    pairs(rows)
}

fn classes(answer: &v1::PoolResponse, device: &v1::DevicePool) -> String {
    let compared = answer.from_unix_ns.is_some();
    let mut head = vec![
        Column::Right("SIZE UP TO"),
        Column::Right("BLOCKS"),
        Column::Right("BYTES"),
    ];
    if compared {
        head.push(Column::Right("GREW BY"));
    }
    let mut ages: Vec<String> = answer
        .ages_ns
        .iter()
        .map(|end| format!("< {}", age(*end)))
        .collect();
    ages.push("OLDER".to_owned());
    ages.push("AGE UNKNOWN".to_owned());
    // Ages that no block has are left out.
    let used: Vec<usize> = (0..ages.len())
        .filter(|at| {
            device
                .classes
                .iter()
                .any(|class| by_age(class, *at).count > 0)
        })
        .collect();
    head.extend(
        used.iter()
            .filter_map(|at| ages.get(*at))
            .cloned()
            .map(Column::Named),
    );
    let mut rows = Vec::new();
    for class in &device.classes {
        let live = amount(class.live);
        let mut row = vec![
            bytes(class.up_to_bytes),
            grouped(live.count),
            bytes(live.bytes),
        ];
        if compared {
            row.push(change(amount(class.before).bytes, live.bytes));
        }
        row.extend(used.iter().map(|at| match by_age(class, *at) {
            v1::Amount { count: 0, .. } => String::new(),
            one => bytes(one.bytes),
        }));
        rows.push(row);
    }
    table(&head, rows)
}

/// An age as a whole number of one unit, such as `5 min`.
fn age(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn by_age(class: &v1::SizeClass, at: usize) -> v1::Amount {
    class
        .by_age
        .get(at)
        .copied()
        .unwrap_or_else(|| amount(class.age_unknown))
}

fn change(before: u64, now: u64) -> String {
    match now.checked_sub(before) {
        Some(0) => "0 B".to_owned(),
        Some(more) => format!("+{}", bytes(more)),
        None => format!("-{}", bytes(before - now)),
    }
}

fn pools(device: &v1::DevicePool) -> String {
    let head = [
        Column::Left("POOL"),
        Column::Left("KIND"),
        Column::Right("STREAM"),
        Column::Right("SEGMENTS"),
        Column::Right("RESERVED"),
        Column::Right("ALLOCATED"),
        Column::Right("BLOCKS"),
    ];
    let rows = device.pools.iter().map(|share| {
        let id = match (share.pool_id_first, share.pool_id_second) {
            (0, 0) => "default".to_owned(),
            (first, second) => format!("private ({first}, {second})"),
        };
        let mut kind = if share.large { "large" } else { "small" }.to_owned();
        if share.expandable {
            kind.push_str(", expandable");
        }
        let (segments, allocated) = (amount(share.segments), amount(share.allocated));
        vec![
            id,
            kind,
            format!("{:#x}", share.stream),
            grouped(segments.count),
            bytes(segments.bytes),
            bytes(allocated.bytes),
            grouped(allocated.count),
        ]
    });
    table(&head, rows.collect())
}
