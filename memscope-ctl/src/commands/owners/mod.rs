//! `owners`: what the device memory of a process is for.

mod course;
mod tree;
pub(in crate::commands) mod words;

use std::path::PathBuf;

use super::run::Run;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::process::Process;
use crate::render::table::{Column, table};
use crate::render::{coverage, name};
use crate::session::Session;
use crate::units::{bytes, grouped, moment, plain};
use memscope_proto::v1;
use words::{module, short, what, words};

/// Largest file of rules that is read, in bytes.
const LARGEST_RULES: u64 = 256 << 10;
/// Rows that a table shows where no number is asked for.
const ROWS: u32 = 20;

/// A moment, as it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct At {
    text: String,
    /// `None`: now.
    moment: Option<v1::Moment>,
}

impl At {
    fn parse(text: &str) -> Result<At, String> {
        let moment = match text {
            "now" => None,
            text => Some(crate::moment::parse(text)?),
        };
        Ok(At {
            text: text.to_owned(),
            moment,
        })
    }
}

/// Show what device memory is for: weights, gradients, optimizer state, buffers, activations, KV cache, communication and the rest.
///
/// First the process's Python objects say it, which are read from its memory while it goes on: a parameter of a module is a weight, by the
/// name that `named_parameters()` gives it, and likewise buffers, gradients and the state of optimizers. What only the autograd graph holds
/// are activations. For all else rules decide, by the way on which it is held, by the stack that allocated it and by its pool. Rules are
/// data: --rules adds your own, --rule-set takes another set, and --explain says for a block why it is what it is.
///
/// Categories of the usual set, as the answer names them: weights, buffers, optimizer_state, gradients, garbage, private_pools, kv_cache,
/// communication, activations, workspaces, temporaries, program, native, beside_pool, came_meanwhile; of an earlier moment also
/// recomputed, freed_since, unknown. docs/questions/owners.md says what each of them means; other sets have others.
///
/// A program can label its memory by the Python package (memscope.describe); the sums of these labels stand below.
///
/// Where the device says how much of it is in use, what nobody explains is shown too. CPython 3.9 to 3.15, with the GIL; without Python,
/// only rules decide. A recording has no objects that could be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl owners 4242
  memscope-ctl owners 4242 --tree --depth 2          sums by module
  memscope-ctl owners 4242 --below layers.3          one part of the model
  memscope-ctl owners 4242 --explain 0x7f3a5c000000  why a block is what it is
  memscope-ctl owners 4242 --at peak                 when most was allocated
  memscope-ctl owners 4242 --at -1h --at now         which part grew
  memscope-ctl owners 4242 --rules mine.toml         your own categories first
  memscope-ctl owners 4242 --json | jq '.devices[].categories'")]
pub(crate) struct Owners {
    #[command(flatten)]
    pub(crate) process: Process,
    /// Largest number of rows; 0 for all. A table shows 20 if it is not given, JSON all.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u32>,
    /// Sum up by the modules of the model instead of showing the largest uses.
    #[arg(long)]
    pub(crate) tree: bool,
    /// With --tree: how deep modules are shown.
    #[arg(long, value_name = "N", default_value_t = 3, requires = "tree")]
    pub(crate) depth: usize,
    /// Show only this module, parameter or buffer and what is below it, by its name: `layers.3`. Activations of the module are shown as well.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) below: String,
    /// An earlier moment, from the journal: an age (-5m, -30s), a time (2026-11-20T08:30:00Z, or nanoseconds since 1970), event:NUMBER,
    /// step:NUMBER, mark:NAME, or peak: when most was allocated (peak:DEVICE on one device). What is still there is for what objects say of
    /// it now; of what has been freed since the threads say it that allocated and freed it (activations, gradients), or it is "freed since".
    /// Given several times (`now` is one, too), the moments stand side by side, with what changed from the first to the last; with --json each
    /// has a line.
    #[arg(long, value_name = "MOMENT", value_parser = At::parse, allow_hyphen_values = true)]
    pub(crate) at: Vec<At>,
    /// Explain the blocks in which these addresses lie (commas between them).
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = super::holders::address)]
    pub(crate) explain: Vec<u64>,
    /// Rules of your own, which are tried before the set: a TOML file.
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// The set of rules: memscope, or the categories of torchtitan's analyzer, mosaic's or msMemScope's.
    #[arg(long, value_name = "NAME", default_value = "memscope", value_parser = ["memscope", "torchtitan", "mosaic", "msmemscope"])]
    pub(crate) rule_set: String,
}

impl Run for Owners {
    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let rules = match &self.rules {
            Some(path) => crate::file::text(path, LARGEST_RULES)?,
            None => String::new(),
        };
        let several = self.at.len() > 1;
        if several && (self.tree || !self.explain.is_empty()) {
            return Err(Failure::Usage {
                what: "--tree and --explain are for one moment".to_owned(),
                hint: "give --at once".to_owned(),
            });
        }
        let client = session.client().await?;
        let all = session.global.json || self.tree;
        let limit = self.limit.unwrap_or(if all { 0 } else { ROWS });
        let mut question = v1::OwnersRequest {
            pid: client.choose(self.process.pid()).await?,
            addresses: self.explain.clone(),
            // Any row may be the one that changed.
            limit: if several && !all { 0 } else { limit },
            rule_set: self.rule_set.clone(),
            rules,
            below: self.below.clone(),
            at: None,
            blocks: false,
        };
        if let [] | [_] = &self.at[..] {
            question.at = self.at.first().and_then(|at| at.moment.clone());
            let answer = ask(&client, question).await?;
            return session.show(&answer, |answer| self.text(answer));
        }
        let mut answers = Vec::new();
        for at in &self.at {
            question.at = at.moment.clone();
            let answer = ask(&client, question.clone()).await?;
            if session.global.json {
                output::json_line(&answer)?;
            } else {
                answers.push((at.text.clone(), answer));
            }
        }
        if !session.global.json {
            output::text(&course::text(&answers, limit))?;
        }
        Ok(Exit::Done)
    }
}

async fn ask(client: &Client, question: v1::OwnersRequest) -> Result<v1::OwnersResponse, Failure> {
    let asked = client.ask(question, async |mut rpc, request| rpc.owners(request).await);
    asked.await
}

impl Owners {
    fn text(&self, answer: &v1::OwnersResponse) -> String {
        let process = answer.process.as_ref();
        let mut text = format!(
            "{}  as of {}\n",
            process.map_or_else(|| format!("pid {}", answer.pid), name),
            moment(answer.as_of)
        );
        if !answer.explained.is_empty() {
            for one in &answer.explained {
                text.push_str(&explained(one));
            }
            text.push_str(&coverage(&answer.coverage));
            return text;
        }
        for device in &answer.devices {
            text.push_str(&categories(device));
        }
        text.push('\n');
        if self.tree {
            text.push_str(&tree::text(&answer.owners, self.depth));
        } else {
            text.push_str(&rows(&answer.owners));
        }
        if answer.more > 0 {
            text.push_str(&format!(
                "and {} more, {} (--limit 0 shows all that fits into an answer, --below NAME a part)\n",
                grouped(answer.more),
                bytes(answer.more_bytes)
            ));
        }
        text.push_str(&coverage(&answer.coverage));
        text
    }
}

/// The table of a device: each category with its part of all that is in use.
fn categories(device: &v1::OwnedDevice) -> String {
    let blocks = device.blocks.unwrap_or_default();
    let whole = device
        .device_used_bytes
        .filter(|_| !device.device_used_is_old);
    let cached = device.cached_bytes.unwrap_or(0);
    let whole = whole.unwrap_or(blocks.bytes + device.pending_free_bytes + cached);
    let share = |bytes: u64| match whole {
        0 => String::new(),
        whole => format!("{:.1}%", bytes as f64 * 100.0 / whole as f64),
    };
    let mut rows: Vec<Vec<String>> = device
        .categories
        .iter()
        .map(|one| {
            let blocks = one.blocks.unwrap_or_default();
            let unsure = match one.unsure.unwrap_or_default().count {
                0 => String::new(),
                count => format!("{} changed while they were read", grouped(count)),
            };
            vec![
                words(&one.category),
                grouped(blocks.count),
                bytes(blocks.bytes),
                share(blocks.bytes),
                unsure,
            ]
        })
        .collect();
    let rest = [
        ("(a stream still uses it)", Some(device.pending_free_bytes)),
        ("(free in the pool)", device.cached_bytes),
        ("(driver's context)", device.context_bytes),
        ("(kept by the driver)", device.driver_reserved_bytes),
        ("(not explained)", device.unexplained_bytes),
    ];
    for (title, size) in rest {
        if let Some(size) = size.filter(|size| *size > 0) {
            let what = match title {
                "(driver's context)" => {
                    "its code for this process; what was taken beside the pool before the attach"
                }
                "(not explained)" if device.context_bytes.is_some() => "other processes",
                "(not explained)" => {
                    "the driver's context and code, freed memory that it keeps, other processes"
                }
                _ => "",
            };
            let row = [
                title.to_owned(),
                String::new(),
                bytes(size),
                share(size),
                what.to_owned(),
            ];
            rows.push(row.into());
        }
    }
    let ordinal = match device.device {
        Some(ordinal) => format!("device {ordinal}"),
        None => "device not known".to_owned(),
    };
    let in_use = match device.device_used_bytes {
        Some(used) if !device.device_used_is_old => format!(", {} in use on it", bytes(used)),
        _ => String::new(),
    };
    let head = [
        Column::Left("FOR"),
        Column::Right("BLOCKS"),
        Column::Right("SIZE"),
        Column::Right("SHARE"),
        Column::Left(""),
    ];
    let labels = labels(device, share);
    format!("\n{ordinal}{in_use}\n{}{labels}", table(&head, rows))
}

/// The table of the labels that the program gives its memory; nothing where it gives none.
fn labels(device: &v1::OwnedDevice, share: impl Fn(u64) -> String) -> String {
    if device.labels.is_empty() {
        return String::new();
    }
    let head = [
        Column::Left("LABEL"),
        Column::Right("BLOCKS"),
        Column::Right("SIZE"),
        Column::Right("SHARE"),
    ];
    let rows = device.labels.iter().map(|one| {
        let blocks = one.blocks.unwrap_or_default();
        vec![
            plain(&one.category),
            grouped(blocks.count),
            bytes(blocks.bytes),
            share(blocks.bytes),
        ]
    });
    format!("\n{}", table(&head, rows.collect()))
}

/// The table of uses.
fn rows(owners: &[v1::Owner]) -> String {
    let has = |what: &dyn Fn(&v1::Owner) -> bool| owners.iter().any(what);
    let has_modules = has(&|owner| !owner.module.is_empty());
    let has_labels = has(&|owner| !owner.labels.is_empty());
    let module_column = has_modules.then_some(Column::Left("MODULE"));
    let head = [Column::Left("FOR"), Column::Left("WHAT")];
    let head = head.into_iter().chain(module_column).chain([
        Column::Left("TYPE"),
        Column::Right("BLOCKS"),
        Column::Right("SIZE"),
        Column::Left("ALLOCATED AT"),
    ]);
    let head = head.chain(has_labels.then_some(Column::Left("LABELS")));
    let rows = owners.iter().map(|owner| {
        let blocks = owner.blocks.unwrap_or_default();
        let mut row = vec![words(&owner.category), what(owner)];
        row.extend(has_modules.then(|| module(owner)));
        row.extend([
            plain(&owner.kind),
            grouped(blocks.count),
            bytes(blocks.bytes),
            plain(&short(&owner.place)),
        ]);
        row.extend(has_labels.then(|| plain(&owner.labels.join(", "))));
        row
    });
    table(&head.collect::<Vec<_>>(), rows.collect())
}

fn explained(one: &v1::OwnerExplained) -> String {
    let owner = one.owner.clone().unwrap_or_default();
    let mut text = format!(
        "\nblock at {:#x}, {}: {}\n",
        one.address,
        bytes(one.size_bytes),
        words(&owner.category)
    );
    for why in &one.why {
        text.push_str(&format!("  {}\n", plain(why)));
    }
    text
}
