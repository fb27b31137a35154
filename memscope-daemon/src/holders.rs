//! Which Python objects keep the memory of a process alive: from a reading of the objects and the blocks to an answer.
//!
//! Owns: how holders are put together that are alike. Refuses: to say what a block is for.

use std::collections::{HashMap, HashSet};
use std::io;

use memscope_heap::{Link, Origin, Reading, Steps, Wanted, Ways};
use memscope_ledger::report::{BlockState, SnapshotBlock, SnapshotReport};
use memscope_memory::ProcessMemory;
use memscope_proto::v1;
use memscope_rpc::Refusal;
use prost::Message;

use crate::addresses::Addresses;
use crate::works;

/// Most bytes of rows in an answer, which as a whole must stay below the 4 MiB that gRPC's clients accept.
const MOST_BYTES_OF_ROWS: usize = 3 << 20;
/// A dictionary with more text keys than this is a container of like things, and its keys are no names.
const MOST_NAMES: u64 = 16;

/// A block that is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub address: u64,
    pub size: u64,
    /// When it was handed out.
    since_ns: u64,
}

/// The blocks that are handed out and that are asked about, by address.
pub(crate) fn blocks(report: &SnapshotReport, asked: &v1::HoldersRequest) -> Vec<Block> {
    let all = report.segments.iter().flat_map(|segment| &segment.blocks);
    let mut found: Vec<&SnapshotBlock> = all
        .filter(|block| block.state == BlockState::Active)
        .collect();
    if !asked.addresses.is_empty() {
        let addresses = Addresses::new(&asked.addresses);
        let has = |block: &SnapshotBlock| addresses.lie_in(block.addr, block.size);
        let named: HashSet<(u32, u64)> = found
            .iter()
            .filter(|block| asked.alike && has(block))
            .map(|block| (block.stack, block.size))
            .collect();
        found.retain(|block| has(block) || named.contains(&(block.stack, block.size)));
    }
    let mut blocks: Vec<Block> = found
        .into_iter()
        .map(|block| Block {
            address: block.addr,
            size: block.size,
            since_ns: block.since_ns,
        })
        .collect();
    blocks.sort_unstable_by_key(|block| block.address);
    blocks
}

/// The blocks that both moments have.
pub(crate) fn still_there(before: &[Block], after: &[Block]) -> Vec<Block> {
    let is_there = |block: &&Block| {
        let at = after.binary_search_by_key(&block.address, |other| other.address);
        at.is_ok_and(|at| after[at] == **block)
    };
    before.iter().filter(is_there).copied().collect()
}

/// Why Python's objects were not read.
#[derive(Debug)]
pub(crate) enum NotRead {
    /// There are none: the process with this process id runs no Python.
    NoPython { pid: u32 },
    /// They could not be read.
    Refused(Refusal),
}

impl NotRead {
    /// The refusal of a question that is about nothing but objects.
    pub(crate) fn refusal(self) -> Refusal {
        match self {
            NotRead::NoPython { pid } => Refusal::Invalid {
                what: format!("process {pid} runs no Python, whose objects could be looked at"),
                hint: "`memscope-ctl stacks` says which stacks allocated its memory".to_owned(),
            },
            NotRead::Refused(refusal) => refusal,
        }
    }
}

/// Has the objects of a process read by a reader process. `modules`: also which modules made what the autograd graph has saved.
pub(crate) fn read(pid: u32, blocks: Vec<u64>, modules: bool) -> Result<Reading, NotRead> {
    let unreadable = |source| {
        NotRead::Refused(Refusal::Unreadable {
            pid,
            what: "Python's objects".to_owned(),
            source,
        })
    };
    let interpreter = match memscope_python::find(pid) {
        Ok(interpreter) => interpreter,
        Err(memscope_python::PythonError::NoInterpreter) => {
            return Err(NotRead::NoPython { pid });
        }
        Err(other) => return Err(unreadable(io::Error::other(other))),
    };
    let memory = ProcessMemory::open(pid).map_err(unreadable)?;
    let wanted = Wanted {
        layout: interpreter.layout,
        code_type: interpreter.code_type,
        runtime: interpreter.runtime,
        blocks,
        objects: Vec::new(),
        modules,
    };
    works::heap(&memory, &wanted)
        .map_err(unreadable)?
        .map_err(|why| unreadable(io::Error::other(why)))
}

/// The answer for these blocks.
pub(crate) fn answer(
    reading: &Reading,
    blocks: &[Block],
    limit: u32,
    of_process: &[v1::CoverageNote],
) -> v1::HoldersResponse {
    let sizes: HashMap<u64, u64> = blocks.iter().map(|b| (b.address, b.size)).collect();
    let mut rows: HashMap<(Origin, v1::HolderVia, String), Row<'_>> = HashMap::new();
    let mut held = v1::Amount::default();
    let mut garbage = v1::Amount::default();
    let ways = Ways::new(reading);
    for one in &reading.held {
        let Some(size) = sizes.get(&one.block).copied() else {
            continue;
        };
        let way = Way::new(&ways, one.holder);
        add(&mut held, size);
        if one.origin == Origin::Garbage {
            add(&mut garbage, size);
        }
        let row = rows
            .entry((one.origin, way.via, way.pattern.clone()))
            .or_default();
        add(&mut row.blocks, size);
        if !way.is_sure {
            add(&mut row.unsure, size);
        }
        row.others += u64::from(one.others);
        if row.largest.as_ref().is_none_or(|(_, _, most)| size > *most) {
            row.largest = Some((way, one.block, size));
        }
    }
    let mut holders: Vec<v1::Holder> = rows
        .into_iter()
        .filter_map(|((origin, via, path), row)| row.told(reading, origin, via, path))
        .collect();
    let bytes = |holder: &v1::Holder| holder.blocks.unwrap_or_default().bytes;
    holders.sort_by(|a, b| {
        let by_path = || a.path.cmp(&b.path).then(a.via.cmp(&b.via));
        bytes(b).cmp(&bytes(a)).then_with(by_path)
    });
    let more = cut(&mut holders, limit).len() as u64;
    let all = v1::Amount {
        count: blocks.len() as u64,
        bytes: blocks.iter().map(|block| block.size).sum(),
    };
    v1::HoldersResponse {
        holders,
        more,
        blocks: Some(all),
        unheld: Some(v1::Amount {
            count: all.count - held.count,
            bytes: all.bytes - held.bytes,
        }),
        garbage: Some(garbage),
        objects: reading.objects,
        coverage: notes(reading, of_process),
        ..v1::HoldersResponse::default()
    }
}

/// Cuts off the rows for which an answer has no room, and those beyond a limit that is not 0. Returns them.
pub(crate) fn cut<R: Message>(rows: &mut Vec<R>, limit: u32) -> Vec<R> {
    let limit = match limit {
        0 => usize::MAX,
        limit => limit as usize,
    };
    let mut room = MOST_BYTES_OF_ROWS;
    let fit = rows.iter().take(limit).take_while(|row| {
        // A row is told with its length before it.
        let left = room.checked_sub(row.encoded_len() + 8);
        room = left.unwrap_or(0);
        left.is_some()
    });
    let fit = fit.count();
    rows.split_off(fit)
}

pub(crate) fn add(amount: &mut v1::Amount, bytes: u64) {
    amount.count += 1;
    amount.bytes += bytes;
}

/// What limits a reading, beside the notes about the process.
pub(crate) fn notes(reading: &Reading, of_process: &[v1::CoverageNote]) -> Vec<v1::CoverageNote> {
    let mut notes = Vec::new();
    let mut note = |code: &str, text: String| {
        notes.push(v1::CoverageNote {
            code: code.to_owned(),
            text,
            ..v1::CoverageNote::default()
        });
    };
    if !reading.knows_tensors {
        let hidden = |note: &v1::CoverageNote| note.code == "level_segments";
        let text = match of_process.iter().any(hidden) {
            true => {
                "at level segments no block of the pool is known that a tensor could hold, so no holder is known; attach at blocks or trace to know them"
            }
            false => {
                "it was not found where tensors keep their memory (there is none on a device, or this version of PyTorch keeps it elsewhere), so no holder is known"
            }
        };
        note("tensors_unknown", text.to_owned());
    } else if !reading.knows_graphs {
        let text = "no autograd graph was found, so gradients and what a graph has saved have no holder here";
        note("graphs_unknown", text.to_owned());
    }
    if reading.is_cut {
        let text = format!(
            "the process has more objects than are looked at ({}), so blocks may have a holder that is not told, and none is told to be garbage for certain",
            reading.objects
        );
        note("objects_cut", text);
    }
    if reading.uses_left_out > 0 {
        let text = format!(
            "at least {} uses of blocks by modules and optimizers are not told, because there are too many",
            reading.uses_left_out
        );
        note("uses_left_out", text);
    }
    if reading.left_out > 0 {
        let text = format!(
            "{} blocks have a holder that is not told, because there are too many",
            reading.left_out
        );
        note("holders_left_out", text);
    }
    notes
}

/// Holders that are alike.
#[derive(Default)]
struct Row<'r> {
    blocks: v1::Amount,
    unsure: v1::Amount,
    others: u64,
    /// The way to the largest block, its address and its size.
    largest: Option<(Way<'r>, u64, u64)>,
}

impl Row<'_> {
    fn told(
        self,
        reading: &Reading,
        origin: Origin,
        via: v1::HolderVia,
        path: String,
    ) -> Option<v1::Holder> {
        let (way, example_address, _) = self.largest?;
        let container = way.container.map(|at| &way.steps[at]);
        Some(v1::Holder {
            path,
            container: way.container.map(|at| way.path_to(at)),
            kind: container.map(|step| kind(reading, step.kind)),
            length: container.and_then(|step| step.length),
            origin: match origin {
                Origin::Named => v1::HolderOrigin::Named,
                Origin::Outside => v1::HolderOrigin::Outside,
                Origin::Garbage => v1::HolderOrigin::Garbage,
            }
            .into(),
            via: via.into(),
            blocks: Some(self.blocks),
            unsure: Some(self.unsure),
            other_references: self.others,
            way: way.told(reading),
            example_address,
        })
    }
}

pub(crate) fn kind(reading: &Reading, number: u32) -> String {
    reading
        .kinds
        .get(number as usize)
        .cloned()
        .unwrap_or_default()
}

/// A way to a block.
pub(crate) struct Way<'r> {
    pub(crate) steps: Vec<&'r memscope_heap::Holder>,
    /// What each step adds to the path.
    pub(crate) parts: Vec<String>,
    /// The path, with `[*]` for elements.
    pub(crate) pattern: String,
    /// The step with the container that has most elements.
    pub(crate) container: Option<usize>,
    pub(crate) via: v1::HolderVia,
    /// Whether every step was the same when it was read for a second time.
    pub(crate) is_sure: bool,
}

impl<'r> Way<'r> {
    pub(crate) fn new(ways: &Ways<'r>, holder: u32) -> Way<'r> {
        let Steps {
            steps,
            parts,
            is_sure,
        } = ways.to(holder);
        let mut pattern = String::new();
        let mut container: Option<usize> = None;
        let mut via = v1::HolderVia::Tensor;
        for (at, step) in steps.iter().enumerate() {
            // What stands before a gap does not have the step behind it.
            let is_gap = parts[at].starts_with('…');
            let before = at.checked_sub(1).filter(|_| !is_gap);
            let before = before.and_then(|before| steps.get(before));
            let length = before.and_then(|before| before.length).unwrap_or(0);
            let is_element = match &step.link {
                Link::Index(_) | Link::Element | Link::OfKeys => true,
                Link::Key { is_text, .. } => !is_text || length > MOST_NAMES,
                _ => false,
            };
            match &step.link {
                Link::Gradient => via = v1::HolderVia::Gradient,
                Link::GradFn => {
                    // What follows is the graph, of which the pattern tells no more.
                    pattern.push_str(".grad_fn");
                    via = v1::HolderVia::Graph;
                    break;
                }
                _ => {}
            }
            if is_element {
                if is_gap {
                    pattern.push('…');
                }
                pattern.push_str("[*]");
                let most = container.and_then(|at| steps[at].length).unwrap_or(0);
                if before.is_some() && (container.is_none() || length > most) {
                    container = at.checked_sub(1);
                }
            } else {
                pattern.push_str(&parts[at]);
            }
        }
        Way {
            steps,
            parts,
            pattern,
            container,
            via,
            is_sure,
        }
    }

    /// The path up to a step.
    fn path_to(&self, step: usize) -> String {
        self.parts[..=step].concat()
    }

    fn told(&self, reading: &Reading) -> Vec<v1::HolderStep> {
        let step = |(step, part): (&&memscope_heap::Holder, &String)| {
            let (file, line) = match &step.link {
                Link::Local { file, line, .. } => (file.clone(), *line),
                Link::Module { file, .. } => (file.clone(), 0),
                _ => (String::new(), 0),
            };
            v1::HolderStep {
                part: part.clone(),
                name: step.link.name().unwrap_or_default().into_owned(),
                kind: kind(reading, step.kind),
                length: step.length,
                file,
                line: u32::try_from(line).unwrap_or(0),
            }
        };
        self.steps.iter().zip(&self.parts).map(step).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use memscope_heap::{Held, Holder};

    /// A link with its type and length.
    type Step = (Link, &'static str, Option<u64>);

    /// A reading in which each way is given by its steps.
    fn reading(ways: &[(u64, &[Step])]) -> Reading {
        let mut reading = Reading::default();
        for (block, way) in ways {
            let mut parent = None;
            for (link, name, length) in *way {
                let kind = reading.kinds.iter().position(|kind| kind == name);
                let kind = kind.unwrap_or_else(|| {
                    reading.kinds.push((*name).to_owned());
                    reading.kinds.len() - 1
                });
                reading.holders.push(Holder {
                    parent,
                    link: link.clone(),
                    kind: kind as u32,
                    length: *length,
                    is_sure: *block != 3,
                });
                parent = Some(reading.holders.len() as u32 - 1);
            }
            reading.held.push(Held {
                block: *block,
                holder: parent.unwrap(),
                origin: Origin::Named,
                others: 1,
                module: None,
            });
        }
        reading
    }

    fn block(address: u64, size: u64) -> Block {
        Block {
            address,
            size,
            since_ns: 5,
        }
    }

    fn key(shown: &str, is_text: bool) -> Link {
        Link::Key {
            shown: shown.to_owned(),
            is_text,
        }
    }

    fn module(name: &str) -> Link {
        Link::Module {
            name: name.to_owned(),
            file: String::new(),
        }
    }

    #[test]
    fn what_is_alike_is_one_row() {
        let main = || (module("__main__"), "module", None);
        let list = || (Link::Attribute("kept".to_owned()), "list", Some(40));
        let at = |index| (Link::Index(index), "Tensor", None);
        let state = || (Link::Attribute("state".to_owned()), "dict", Some(2));
        let of = |name| (key(&format!("'{name}'"), true), "Tensor", None);
        let of_object = || (key("<Parameter>", false), "dict", Some(2));
        let reading = reading(&[
            (1, &[main(), list(), at(0)]),
            (2, &[main(), list(), at(7)]),
            (
                3,
                &[main(), list(), at(9), (Link::GradFn, "MulBackward0", None)],
            ),
            (4, &[main(), state(), of_object(), of("exp_avg")]),
            (5, &[main(), state(), of_object(), of("exp_avg")]),
            (6, &[main(), state(), of_object(), of("step")]),
            (99, &[main()]),
        ]);
        let blocks: Vec<Block> = (1..=7).map(|n| block(n, 100 * n)).collect();
        let answer = answer(&reading, &blocks, 3, &[]);
        let rows: Vec<_> = answer
            .holders
            .iter()
            .map(|holder| {
                let blocks = holder.blocks.unwrap();
                let container = holder.container.clone().unwrap_or_default();
                (holder.path.as_str(), container, holder.length, blocks.bytes)
            })
            .collect();
        let list = "__main__.kept".to_owned();
        assert_eq!(
            rows,
            [
                (
                    "__main__.state[*]['exp_avg']",
                    "__main__.state".to_owned(),
                    Some(2),
                    900
                ),
                (
                    "__main__.state[*]['step']",
                    "__main__.state".to_owned(),
                    Some(2),
                    600
                ),
                ("__main__.kept[*]", list.clone(), Some(40), 300),
            ]
        );
        assert_eq!(answer.more, 1);
        assert_eq!(
            answer.unheld.unwrap(),
            v1::Amount {
                count: 1,
                bytes: 700
            }
        );
        let all = super::answer(&reading, &blocks, 0, &[]);
        let graph = all
            .holders
            .iter()
            .find(|h| h.path == "__main__.kept[*].grad_fn");
        let graph = graph.unwrap();
        assert_eq!(graph.via(), v1::HolderVia::Graph);
        assert_eq!(graph.unsure.unwrap().count, 1);
        assert_eq!(graph.container, Some(list));
        let names: Vec<&str> = graph.way.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["__main__", "kept", "", ""]);
    }

    /// Without a block nobody can find where tensors keep their memory, whatever the version of PyTorch is.
    #[test]
    fn the_level_is_why_no_holder_is_known() {
        let reading = Reading::default();
        let level = v1::CoverageNote {
            code: "level_segments".to_owned(),
            ..v1::CoverageNote::default()
        };
        for (of_process, said, not_said) in [
            (vec![level], "level segments", "PyTorch"),
            (vec![], "PyTorch", "level segments"),
        ] {
            let told = answer(&reading, &[], 0, &of_process).coverage;
            let note = told.iter().find(|note| note.code == "tensors_unknown");
            let text = &note.unwrap().text;
            assert!(text.contains(said) && !text.contains(not_said), "{text}");
        }
    }

    #[test]
    fn an_answer_has_room_for_so_many_rows() {
        let row = |name: usize| v1::Holder {
            path: format!("{name:1000}"),
            ..v1::Holder::default()
        };
        let mut rows: Vec<v1::Holder> = (0..4000).map(row).collect();
        let rest = cut(&mut rows, 0);
        assert_eq!(rows.len() + rest.len(), 4000);
        assert!(rows.len() > 3000 && !rest.is_empty(), "{}", rows.len());
        let whole = v1::HoldersResponse {
            holders: rows.clone(),
            ..v1::HoldersResponse::default()
        };
        assert!(whole.encoded_len() <= MOST_BYTES_OF_ROWS);
        assert_eq!(cut(&mut rows, 5).len() + 5 + rest.len(), 4000);
    }

    #[test]
    fn a_block_that_was_freed_meanwhile_is_not_held() {
        let before = [block(1, 10), block(2, 10), block(3, 10)];
        let mut after = [block(1, 10), block(3, 10)];
        after[1].since_ns = 6;
        assert_eq!(still_there(&before, &after), [block(1, 10)]);
    }
}
