//! The marks of a process: which moments have a name.
//!
//! Owns: the newest marks, kept so that a rare name is not pushed out by frequent ones, and how many there were
//! of each name. Refuses: what a mark means for steps (`steps` decides that), and ends of ranges, which have no name.
//!
//! # Bounds
//!
//! Marks of people, of the program and of PyTorch itself are kept apart, because PyTorch makes several in each
//! step. Of one name the last [`PER_NAME`] are kept. Where a whole list is full, the oldest mark of the name
//! that has the most goes first.

use crate::event::{Event, Mark, MarkKind, MarkSource};
use crate::report::{KeptMark, MarkOrigin, OriginMarks};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum number of marks of one name that are kept.
const PER_NAME: usize = 64;
/// Maximum number of marks of one origin that are kept.
const KEPT: usize = 1024;

/// How the names begin that PyTorch gives by itself: of its optimizers, its profiler, its loaders and what it does
/// between processes.
const OF_PYTORCH: [&str; 8] = [
    "Optimizer.",
    "ProfilerStep#",
    "enumerate(DataLoader)#",
    "DistributedDataParallel.",
    "FullyShardedDataParallel.",
    "FSDP::",
    "autograd::",
    "aten::",
];

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Marks {
    people: Book,
    program: Book,
    framework: Book,
}

/// The marks of one origin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Book {
    names: BTreeMap<Arc<str>, Named>,
    kept: usize,
    /// Number of all marks, including those that are not kept any more.
    count: u64,
    /// A name was forgotten with all of its marks. From then on the marks of a new name are not numbered, because it
    /// may be a forgotten one.
    forgot_names: bool,
}

/// The marks of one name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Named {
    /// Number of all marks of this name; `None` if it is not known.
    count: Option<u64>,
    /// Marks that are kept, oldest first.
    kept: VecDeque<KeptMark>,
}

impl Marks {
    /// Takes a mark.
    pub(crate) fn take(&mut self, mark: &Mark, event: &Event) {
        if mark.kind == MarkKind::End {
            return;
        }
        // As `steps` compares names: some libraries pass them with quotation marks.
        let name = mark.name.trim_matches('"');
        let book = match origin(mark.source, name) {
            MarkOrigin::People => &mut self.people,
            MarkOrigin::Program => &mut self.program,
            MarkOrigin::Framework => &mut self.framework,
        };
        book.take(KeptMark {
            event: event.id,
            time_ns: event.time_ns,
            tid: event.tid,
            kind: mark.kind,
            source: mark.source,
            name: name.into(),
            cut: mark.cut,
            nth: None,
        });
    }

    /// All marks that are kept, oldest first, and the numbers of marks by origin.
    pub(crate) fn all(&self) -> (Vec<KeptMark>, Vec<OriginMarks>) {
        let origins = [
            (MarkOrigin::People, &self.people),
            (MarkOrigin::Program, &self.program),
            (MarkOrigin::Framework, &self.framework),
        ];
        let mut all: Vec<KeptMark> = Vec::new();
        let mut counts = Vec::new();
        for (origin, book) in origins {
            let named = book.names.values();
            all.extend(named.flat_map(|named| named.kept.iter().cloned()));
            counts.push(OriginMarks {
                origin,
                count: book.count,
                kept: book.kept as u64,
            });
        }
        all.sort_by_key(|mark| mark.event);
        (all, counts)
    }

    /// Number of marks that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.people.kept + self.program.kept + self.framework.kept
    }
}

/// Who makes marks of this source and name.
fn origin(source: MarkSource, name: &str) -> MarkOrigin {
    match source {
        MarkSource::Outside => MarkOrigin::People,
        MarkSource::Backward => MarkOrigin::Framework,
        MarkSource::RecordFunction if OF_PYTORCH.iter().any(|own| name.starts_with(own)) => {
            MarkOrigin::Framework
        }
        MarkSource::Memscope | MarkSource::Mstx | MarkSource::Nvtx | MarkSource::RecordFunction => {
            MarkOrigin::Program
        }
    }
}

impl Mark {
    /// Whether PyTorch makes this mark by itself, for example for a step of an optimizer or a backward pass. The end of a
    /// `record_function` has no name that says whose it is. It counts as PyTorch's, because PyTorch makes one in each step.
    #[must_use]
    pub fn is_of_the_framework(&self) -> bool {
        let nameless = self.source == MarkSource::RecordFunction
            && self.kind == MarkKind::End
            && self.name.is_empty();
        nameless || origin(self.source, &self.name) == MarkOrigin::Framework
    }
}

impl KeptMark {
    /// Who made the mark: people, the program, or PyTorch.
    pub fn origin(&self) -> MarkOrigin {
        origin(self.source, &self.name)
    }
}

impl Book {
    fn take(&mut self, mut mark: KeptMark) {
        self.count += 1;
        let known = !self.forgot_names;
        let named = self
            .names
            .entry(Arc::clone(&mark.name))
            .or_insert_with(|| Named {
                count: known.then_some(0),
                ..Named::default()
            });
        named.count = named.count.map(|count| count + 1);
        mark.nth = named.count;
        named.kept.push_back(mark);
        self.kept += 1;
        if named.kept.len() > PER_NAME {
            named.kept.pop_front();
            self.kept -= 1;
        }
        if self.kept > KEPT {
            self.forget_one();
        }
    }

    /// Forgets the oldest mark of the name that has the most; of several such names, the oldest mark of all.
    fn forget_one(&mut self) {
        let most = self.names.iter().max_by_key(|(_, named)| {
            let oldest = named.kept.front().map(|mark| mark.event);
            (named.kept.len(), std::cmp::Reverse(oldest))
        });
        let Some(name) = most.map(|(name, _)| Arc::clone(name)) else {
            return;
        };
        let Some(named) = self.names.get_mut(&name) else {
            return;
        };
        named.kept.pop_front();
        self.kept -= 1;
        if named.kept.is_empty() {
            self.names.remove(&name);
            self.forgot_names = true;
        }
    }
}
