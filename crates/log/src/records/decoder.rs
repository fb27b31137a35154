//! Decodes records one after the other, with the state that must be kept between them.

use crate::records::bytes::{self, Header, check};
use crate::records::daemon::DaemonRecord;
use crate::records::hal::Visible;
use crate::records::kernel::{self, Known, Site};
use crate::records::launch::Kernels;
use crate::records::outcome::{Malformed, Notice, Outcome, Skipped, What};
use crate::records::said::Said;
use crate::records::site::SiteDefined;
use foldhash::{HashMap, HashMapExt};
use memscope_common::{KIND_DAEMON_FIRST, KIND_KERNEL, KernelRecord, RECORD_VERSION};
use memscope_ledger::event::{Body, Event, EventId, ProcessHandle};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a process became known to this decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum KnownSince {
    /// By a record with a number.
    First,
    /// By a repeated record in a preamble. The number is that of the last record before the preamble.
    Repeated(u64),
}

/// Numbers of processes that have ended, as ranges: from the first to the last number. A daemon counts the processes
/// that it attaches to, so the ranges grow together, and there are few of them however many processes there were.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Ended(BTreeMap<u32, u32>);

impl Ended {
    fn contains(&self, process: u32) -> bool {
        let before = self.0.range(..=process).next_back();
        before.is_some_and(|(_, last)| process <= *last)
    }

    fn insert(&mut self, process: u32) {
        if self.contains(process) {
            return;
        }
        let before = self.0.range(..process).next_back();
        let joins = before.filter(|(_, last)| last.checked_add(1) == Some(process));
        let first = joins.map_or(process, |(first, _)| *first);
        let after = process.checked_add(1).and_then(|next| self.0.remove(&next));
        self.0.insert(first, after.unwrap_or(process));
    }
}

/// Decodes the records of one journal, in order.
///
/// It remembers the sites, the running number, and which processes have been seen attached, so that the preamble of a
/// segment changes nothing if the segments before it were read as well.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Decoder {
    epoch: u64,
    /// Number of the last record that had a number.
    sequence: u64,
    sites: HashMap<u32, Site>,
    /// Processes that have not ended, as far as their attach has been seen.
    known: HashMap<u32, KnownSince>,
    /// The visible devices of processes that see only some of Ascend's devices.
    visible: HashMap<u32, Visible>,
    all_visible: Visible,
    /// Number of records that came from the programs, by process. It is counted for each record, so the map's hashes are
    /// cheap ones, with a seed that differs from run to run: a recording may come from anybody. Checkpoints of earlier versions have none.
    #[serde(default)]
    came: HashMap<u32, u64>,
    /// Names of kernels, by process. Checkpoints of earlier versions have none.
    #[serde(default)]
    kernels: HashMap<u32, Kernels>,
    /// Processes that have ended. Checkpoints of earlier versions have none: there, they are among the known ones.
    #[serde(default)]
    ended: Ended,
}

impl Decoder {
    /// Starts at the first record of a journal.
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            sequence: 0,
            sites: HashMap::new(),
            known: HashMap::new(),
            visible: HashMap::new(),
            all_visible: Visible::default(),
            came: HashMap::new(),
            kernels: HashMap::new(),
            ended: Ended::default(),
        }
    }

    /// Number of records of a process that came from the programs, and have a number there ([`Header::sequence`]). What
    /// is missing of these numbers was lost on the way.
    pub fn came(&self, process: ProcessHandle) -> u64 {
        self.came.get(&process.0).copied().unwrap_or(0)
    }

    /// Sets the number of the next record. For a reader that does not begin at the first record, or that had to leave
    /// out damaged records.
    pub fn seek(&mut self, next: u64) {
        self.sequence = next.saturating_sub(1);
    }

    /// The number that the next record will get.
    pub fn next_sequence(&self) -> u64 {
        self.sequence.saturating_add(1)
    }

    /// The definition of a site, if it has been seen.
    pub fn site(&self, site: u32) -> Option<&SiteDefined> {
        self.sites.get(&site).map(|site| &site.definition)
    }

    /// Decodes one record.
    ///
    /// A record that is not whole (see [`check`]) is malformed and gets no number. An event from a repeated record has
    /// the number of the record before it.
    pub fn decode(&mut self, record: &[u8]) -> Outcome {
        match check(record) {
            Ok(header) => self.decode_read(&header, record),
            Err(malformed) => Outcome::Malformed(malformed),
        }
    }

    /// The same for a whole record whose header was read already.
    pub fn decode_read(&mut self, header: &Header, record: &[u8]) -> Outcome {
        if !header.is_repeated() {
            self.sequence = self.sequence.saturating_add(1);
        }
        if header.kind < KIND_DAEMON_FIRST && header.process != 0 && header.sequence != 0 {
            if let Some(came) = self.came.get_mut(&header.process) {
                *came += 1;
            } else if !self.has_ended(header.process) {
                // A record may be read after the end of its process was told. Then nothing would take this away again.
                self.came.insert(header.process, 1);
            }
        }
        match self.understand(header, record) {
            Ok(Said::Event(body)) => Outcome::Decoded(Event {
                id: self.id(),
                time_ns: header.time_ns,
                process: ProcessHandle(header.process),
                tid: header.tid,
                lost_before: header.lost_before,
                stack: kernel::stack_ref(header.stack),
                sampling: kernel::sampling(header.stack),
                body,
            }),
            Ok(Said::Notice(what)) => Outcome::Notice(Notice {
                id: self.id(),
                time_ns: header.time_ns,
                process: ProcessHandle(header.process),
                tid: header.tid,
                lost_before: header.lost_before,
                what,
            }),
            Ok(Said::Skip(why)) => Outcome::Skipped(why),
            Err(malformed) => Outcome::Malformed(malformed),
        }
    }

    fn id(&self) -> EventId {
        EventId {
            epoch: self.epoch,
            sequence: self.sequence,
        }
    }

    fn understand(&mut self, header: &Header, record: &[u8]) -> Result<Said, Malformed> {
        if header.version == 0 {
            return Err(Malformed::Version(header.version));
        }
        if header.version > RECORD_VERSION {
            return Ok(Said::Skip(Skipped::NewerVersion {
                found: header.version,
                known: RECORD_VERSION,
            }));
        }
        if header.kind == KIND_KERNEL && header.process != 0 {
            let named = bytes::read::<KernelRecord>(header, record)?;
            if !self.has_ended(header.process) {
                let kernels = self.kernels.entry(header.process).or_default();
                kernels.named(&named);
            }
            return Ok(Said::Notice(What::KernelNamed));
        }
        if header.kind < KIND_DAEMON_FIRST {
            let visible = self.visible.get(&header.process);
            let visible = visible.unwrap_or(&self.all_visible);
            let known = Known {
                sites: &self.sites,
                kernels: self.kernels.get(&header.process),
                visible,
            };
            return kernel::decode(header, record, &known);
        }
        match DaemonRecord::decode_body(header, record)? {
            Some(said) => Ok(self.daemon(header, said)),
            None => Ok(Said::Skip(Skipped::UnknownKind(header.kind))),
        }
    }

    fn daemon(&mut self, header: &Header, said: DaemonRecord) -> Said {
        let body = match said {
            // Definitions are always accepted: either they are equal, or the newer one is right.
            DaemonRecord::SiteDefined(definition) => {
                let function = Arc::from(definition.function.as_str());
                self.sites.insert(
                    definition.site,
                    Site {
                        definition: definition.clone(),
                        function,
                    },
                );
                return Said::Notice(What::SiteDefined(definition));
            }
            _ if !self.is_news(header) => return Said::Skip(Skipped::Repeated),
            DaemonRecord::Attached(facts) => {
                let visible = Visible::of(&facts.environment);
                if !visible.is_all() {
                    self.visible.insert(header.process, visible);
                }
                Body::Attached(facts)
            }
            DaemonRecord::Placed(placement) => Body::Placed(Box::new(placement)),
            DaemonRecord::Detached => self.ends(header, Body::Detached),
            DaemonRecord::Exited => self.ends(header, Body::Exited),
            DaemonRecord::Replaced => self.ends(header, Body::Replaced),
            DaemonRecord::Coverage(note) => Body::Coverage(note),
            DaemonRecord::Backend(backend) => Body::Backend(backend),
            DaemonRecord::Allocator(facts) => Body::Allocator(facts),
            DaemonRecord::Clock(clock) => Body::Clock {
                unix_ns: clock.unix_ns,
            },
            DaemonRecord::DeviceTotal(total) => Body::DeviceTotal(total),
            DaemonRecord::RunsOn(places) => Body::RunsOn(places),
            DaemonRecord::Held(part) => Body::Held(Box::new(part)),
            DaemonRecord::ReadingCost(cost) => Body::ReadingCost(cost),
            DaemonRecord::Lost => Body::Lost,
            DaemonRecord::Code(name) => Body::Code(Box::new(name)),
            DaemonRecord::Stack(seen) => Body::Stack(seen),
            DaemonRecord::Native(name) => Body::Native(Box::new(name)),
            DaemonRecord::Mark(mark) => Body::Mark(Box::new(mark)),
            DaemonRecord::Launches(launches) => Body::Launches {
                count: launches.count,
            },
            DaemonRecord::Shed(shed) => Body::Shed(shed),
            DaemonRecord::Finding(finding) => Body::Finding(Box::new(finding)),
        };
        self.remember(header, &body);
        Said::Event(body)
    }

    fn ends(&mut self, header: &Header, body: Body) -> Body {
        self.came.remove(&header.process);
        self.kernels.remove(&header.process);
        self.visible.remove(&header.process);
        self.known.remove(&header.process);
        self.ended.insert(header.process);
        body
    }

    fn has_ended(&self, process: u32) -> bool {
        self.ended.contains(process) && !self.known.contains_key(&process)
    }

    /// A repeated record is news only about a process that was not known before the preamble. Otherwise its original
    /// was already applied, and later records as well. That holds after the end of a process, too: the preambles of an
    /// imported recording have all of its processes.
    fn is_news(&self, header: &Header) -> bool {
        !header.is_repeated()
            || match self.known.get(&header.process) {
                None => !self.ended.contains(header.process),
                Some(KnownSince::First) => false,
                Some(KnownSince::Repeated(at)) => *at == self.sequence,
            }
    }

    fn remember(&mut self, header: &Header, body: &Body) {
        // Process 0, the machine, is never attached: its first record makes it known.
        if header.process == 0 || matches!(body, Body::Attached(_)) {
            let known = if header.is_repeated() {
                KnownSince::Repeated(self.sequence)
            } else {
                KnownSince::First
            };
            self.known.insert(header.process, known);
        }
    }
}
