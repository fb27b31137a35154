//! `steps`: the steps of a process, and the lowest and highest memory in each.

mod kempner;

use std::path::PathBuf;

use super::run::Run;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::file::{Target, export};
use crate::output;
use crate::process::Process;
use crate::render::steps::{line, summary};
use crate::render::table::{Column, table};
use crate::render::{CourseKnown, coverage, device, heading};
use crate::session::Session;
use crate::units::{bytes, grouped, nanoseconds, plain, signed_bytes};
use memscope_proto::v1;

/// Show which steps a process made, how that is known, and how far memory went in each.
///
/// Nothing in the program has to be changed: a step ends where an optimizer has made its step; without one, with each backward
/// pass (several of them where gradients are accumulated); without those, with each step of PyTorch's profiler; without
/// those, where a pattern of allocations begins anew. Marks are better than all of these: a step of memscope's library or
/// of mark --step, ranges called "step start" as msMemScope has them, or what attach --steps NAME picked. Where there is
/// nothing, the answer is unknown.
///
/// The gap of a step is its smallest allocated level by its largest, as in msMemScope's gap analysis; a ratio that keeps
/// rising means that the floor does. Survivors are blocks that came in step 2 or later and were alive at the end of a
/// later one: msMemScope's leaks. Many of them are none: leaks judges.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl steps --pid 4242
  memscope-ctl steps --pid 4242 --last 50 --survivors 20
  memscope-ctl steps --pid 4242 --format kempner --every 100 --snapshot-step 500
  memscope-ctl attach --pid 4242 --steps 'train step *'")]
pub(crate) struct Steps {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Show so many of the last rows, 0 for all that are kept (4,096 steps); a row is a step, or --every steps.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) last: u32,
    /// Put so many steps into a row: their lowest and highest levels, as a monitor that starts anew each N steps.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) every: u32,
    /// Also the first blocks that outlived their step, at most so many.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) survivors: u32,
    /// How to show them: a table, or lines as KempnerForge's memory monitor logs them.
    #[arg(long, value_name = "FORMAT", default_value = "table", value_parser = ["table", "kempner"], conflicts_with = "survivors")]
    pub(crate) format: String,
    /// With --format kempner: the device.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) device: i32,
    /// With --format kempner: also write a snapshot of the end of this step, for PyTorch's viewer.
    #[arg(long, value_name = "STEP")]
    pub(crate) snapshot_step: Option<u64>,
    /// The folder for that snapshot, which gets KempnerForge's name for it: snapshot_step_N_device_D.pickle.
    #[arg(long, value_name = "DIR", default_value = "memory_snapshots")]
    pub(crate) snapshot_dir: PathBuf,
}

impl Run for Steps {
    const CLEANS_UP: bool = true;

    fn check(&self, _: &Session) -> Result<(), Failure> {
        if self.snapshot_step.is_some() && !self.is_kempner() {
            return Err(Failure::Usage {
                what: "--snapshot-step belongs to --format kempner".into(),
                hint: "add --format kempner; or write the file with memscope-ctl snapshot --at step:N -o FILE"
                    .into(),
            });
        }
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let client = session.client().await?;
        let is_kempner = self.is_kempner() && !session.global.json;
        let question = v1::StepsRequest {
            pid: client.choose(self.process.pid()).await?,
            // The peak of a line depends on the one before it.
            limit: if is_kempner { 0 } else { self.last },
            survivors: self.survivors,
            every: self.every,
        };
        let answer = client
            .ask(question, async |mut rpc, request| rpc.steps(request).await)
            .await?;
        if is_kempner {
            return self.kempner(&client, &answer).await;
        }
        if let Some((target, last)) = self.snapshot(&client, answer.pid).await? {
            target.finish()?;
            crate::file::note_limits(&last.coverage);
        }
        session.show(&answer, text)
    }
}

impl Steps {
    fn is_kempner(&self) -> bool {
        self.format == "kempner"
    }

    /// Writes the snapshot of the end of a step, where one is asked for, and returns where it is and what is to be known of it.
    async fn snapshot(
        &self,
        client: &Client,
        pid: u32,
    ) -> Result<Option<(Target, v1::ExportChunk)>, Failure> {
        let Some(step) = self.snapshot_step else {
            return Ok(None);
        };
        let name = format!("snapshot_step_{step}_device_{}.pickle", self.device);
        let path = self.snapshot_dir.join(name);
        std::fs::create_dir_all(&self.snapshot_dir).map_err(|source| Failure::Output {
            what: format!("the folder {} cannot be made", self.snapshot_dir.display()),
            source,
        })?;
        let mut target = Target::open(Some(&path))?;
        let question = v1::ExportRequest {
            pid,
            format: v1::ExportFormat::MemoryViz.into(),
            at: Some(v1::Moment {
                moment: Some(v1::moment::Moment::Step(step)),
            }),
            ..v1::ExportRequest::default()
        };
        let last = export(client, question, &mut target).await?;
        Ok(Some((target, last)))
    }

    /// What KempnerForge's monitor does in a program.
    async fn kempner(&self, client: &Client, answer: &v1::StepsResponse) -> Result<Exit, Failure> {
        let pid = answer.pid;
        let stats = client
            .ask(v1::StatsRequest { pid }, async |mut rpc, request| {
                rpc.stats(request).await
            })
            .await?;
        let device = Some(self.device);
        let found = stats.devices.iter().find(|one| one.device == device);
        let total = found.and_then(|one| one.total_bytes);
        let (every, last) = (u64::from(self.every), self.last as usize);
        for line in kempner::lines(answer, device, every, last, total) {
            output::text(&format!("{line}\n"))?;
        }
        let mut notes = answer.coverage.clone();
        if let Some((target, mut last)) = self.snapshot(client, pid).await? {
            let of_file = std::mem::take(&mut last.coverage);
            notes.extend(
                of_file
                    .into_iter()
                    .filter(|note| !answer.coverage.contains(note)),
            );
            crate::file::told(target, pid, None, last, false)?;
        }
        output::text(&coverage(&notes))?;
        Ok(Exit::Done)
    }
}

fn text(answer: &v1::StepsResponse) -> String {
    let mut text = heading(
        answer.process.as_ref(),
        answer.as_of,
        answer.as_of_event.as_ref(),
        answer.lost_records,
    );
    if let Some(known) = &answer.summary {
        text.push_str(&summary(known));
    }
    if answer.lines.len() > 1 {
        text.push_str("\nWhat tells of them\n");
        for one in &answer.lines {
            let place = one.line.as_ref().map(line).unwrap_or_default();
            let name = plain(&one.name);
            text.push_str(&format!("  {:>9} × {name} {place}\n", grouped(one.count)));
        }
    }
    for one in &answer.devices {
        text.push_str(&of_device(one, &answer.coverage));
    }
    if !answer.rows.is_empty() {
        text.push('\n');
        text.push_str(&rows(&answer.rows, &answer.coverage));
    }
    if answer.survivor_count > 0 {
        text.push_str(&format!(
            "\n{} {} step, {}; some may have gone since.\n",
            grouped(answer.survivor_count),
            if answer.survivor_count == 1 {
                "block outlived its"
            } else {
                "blocks outlived their"
            },
            bytes(answer.survivor_bytes)
        ));
    }
    if !answer.survivors.is_empty() {
        text.push('\n');
        text.push_str(&survivors(answer));
    }
    if answer.unchecked_blocks > 0 {
        let blocks = grouped(answer.unchecked_blocks);
        text.push_str(&format!(
            "Of {blocks} more blocks that is not known: too many came in one step.\n"
        ));
    }
    text.push_str(&coverage(&answer.coverage));
    text
}

fn of_device(one: &v1::StepDevice, notes: &[v1::CoverageNote]) -> String {
    let known = CourseKnown::of(one.source(), notes);
    let quantiles = |q: Option<v1::StepQuantiles>| {
        let q = q.unwrap_or_default();
        format!("{} ({} to {})", bytes(q.p50), bytes(q.p5), bytes(q.p95))
    };
    let mut text = format!(
        "\nDevice {} ({}), {} steps after the first: lowest {}, highest {}, floor {} per step, {} allocations, {} frees\n",
        device(one.device),
        one.source(),
        grouped(one.steps),
        known.lowest(quantiles(one.min_bytes)),
        known.highest(quantiles(one.max_bytes)),
        known.compared(signed_bytes(one.floor_bytes_per_step.round() as i64)),
        known.count(grouped(one.allocs)),
        known.count(grouped(one.frees)),
    );
    for (name, gap) in [("smallest", one.smallest_gap), ("largest", one.largest_gap)] {
        if let Some(gap) = gap {
            text.push_str(&format!(
                "  {name} gap {}: {} of {} in step {}\n",
                known.compared(format!("{:.4} %", gap.ratio * 100.0)),
                known.lowest(bytes(gap.min_bytes)),
                known.highest(bytes(gap.max_bytes)),
                grouped(gap.step),
            ));
        }
    }
    text
}

fn rows(rows: &[v1::StepRow], notes: &[v1::CoverageNote]) -> String {
    let head = [
        Column::Right("STEP"),
        Column::Right("DEVICE"),
        Column::Right("TIME"),
        Column::Right("MIN"),
        Column::Right("MAX"),
        Column::Right("END"),
        Column::Right("RESERVED"),
        Column::Right("USED OF IT"),
        Column::Right("ALLOCS"),
        Column::Right("FREES"),
    ];
    let rows = rows.iter().map(|row| {
        let known = CourseKnown::of(row.source(), notes);
        let used = if row.reserved_at_max_bytes == 0 {
            crate::units::unknown()
        } else {
            let share = row.max_allocated_bytes as f64 / row.reserved_at_max_bytes as f64;
            format!("{:.1} %", share * 100.0)
        };
        vec![
            grouped(row.step),
            device(row.device),
            nanoseconds(row.to_boot_ns.saturating_sub(row.from_boot_ns)),
            known.lowest(bytes(row.min_allocated_bytes)),
            known.highest(bytes(row.max_allocated_bytes)),
            known.level(bytes(row.end_allocated_bytes)),
            known.highest(bytes(row.max_reserved_bytes)),
            known.compared(used),
            known.count(grouped(row.allocs)),
            known.count(grouped(row.frees)),
        ]
    });
    table(&head, rows.collect())
}

fn survivors(answer: &v1::StepsResponse) -> String {
    let head = [
        Column::Right("STEP"),
        Column::Right("DEVICE"),
        Column::Right("SIZE"),
        Column::Left("ADDRESS"),
        Column::Right("LAUNCHES BEFORE"),
    ];
    let rows = answer.survivors.iter().map(|one| {
        vec![
            grouped(one.step),
            device(Some(one.device)),
            bytes(one.size_bytes),
            format!("{:#x}", one.address),
            one.launches_before
                .map_or_else(crate::units::unknown, grouped),
        ]
    });
    table(&head, rows.collect())
}
