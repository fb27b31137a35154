//! Which events become log records: what is found to leak, when the device is full soon because of it, when it is over, and memory that ran
//! out.
//!
//! Owns: what was told of which process, so that each finding has one record of each kind, and a program that catches thousands of
//! failures has one record in ten seconds.

use super::queue::{Batch, Message, Queue};
use super::stop::Stop;
use crate::clock;
use crate::keeper::KeeperHandle;
use memscope_ledger::event::{Body, Event, Finding, ProcessHandle, StackRef, TraceAction};
use memscope_metrics::{Filling, Labels, of_process};
use memscope_otlp::{FindingNews, OutOfMemory, finding, logs_request, out_of_memory};
use memscope_proto::v1;
use memscope_rpc::{EventFilter, EventItem, OUT_OF_MEMORY};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Time in which a process has one record about memory that ran out; the next one says how often it was meanwhile.
const PAUSE: Duration = Duration::from_secs(10);
/// How often it is looked whether there is such a record to be made.
const LOOK: Duration = Duration::from_secs(1);
/// Time within which a full device is worth a record: that of the alert MemscopeFullSoon.
pub(super) const SOON_SECONDS: f64 = 3600.0;

/// What was told of a process.
#[derive(Default)]
struct Told {
    pid: u32,
    labels: Labels,
    findings: Vec<ToldFinding>,
    oom: Option<Oom>,
}

/// A finding that stands.
struct ToldFinding {
    finding: v1::Finding,
    stack: Vec<v1::CodeLine>,
    is_filling: bool,
}

/// When memory ran out last in a process.
struct Oom {
    told: Instant,
    /// The last one that was not told, with the number of them.
    pending: Option<(OutOfMemory, Vec<v1::CodeLine>, Option<u64>)>,
}

/// Makes records of events.
pub(super) struct News {
    keeper: KeeperHandle,
    queue: Arc<Queue>,
    resource: Resource,
    processes: HashMap<ProcessHandle, Told>,
    records: Vec<LogRecord>,
}

impl News {
    pub(super) fn new(keeper: KeeperHandle, queue: Arc<Queue>, resource: Resource) -> News {
        News {
            keeper,
            queue,
            resource,
            processes: HashMap::new(),
            records: Vec::new(),
        }
    }

    /// Follows the events until it is told to stop; then it takes what has come by then. `filling`: devices that are full soon.
    pub(super) async fn run(mut self, mut filling: mpsc::Receiver<Vec<Filling>>, mut stop: Stop) {
        let mut events = self.keeper.hub().subscribe(EventFilter {
            pid: None,
            caller: None,
            kinds: vec!["finding", "exited", "detached", "replaced", OUT_OF_MEMORY],
        });
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event).await,
                    None => break,
                },
                Some(filling) = filling.recv() => self.fill(&filling),
                _ = look.tick() => self.flush(Instant::now(), PAUSE),
                () = stop.told() => break,
            }
            self.send();
        }
        while let Ok(event) = events.try_recv() {
            self.take(event).await;
        }
        self.flush(Instant::now(), Duration::ZERO);
        self.send();
    }

    /// Hands over the records that were made.
    fn send(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let (_, now) = clock::pair();
        let mut records = std::mem::take(&mut self.records);
        for record in &mut records {
            record.observed_time_unix_nano = now;
        }
        let items = records.len() as u64;
        let message = Message::Logs(logs_request(records, &self.resource));
        self.queue.push(Batch { message, items });
    }

    async fn take(&mut self, item: EventItem) {
        if item.missed > 0 {
            self.queue.missed(item.missed);
        }
        let process = item.event.process;
        let unix_ns = item.unix_ns;
        let why = match &item.event.body {
            Body::Finding(found) if found.withdrawn => {
                self.ended(process, found, unix_ns);
                return;
            }
            Body::Finding(found) => {
                self.reported(process, item.pid, found, unix_ns).await;
                return;
            }
            Body::Exited => "the process has ended",
            Body::Detached => "the process is no longer traced",
            Body::Replaced => "the process runs another program now",
            _ => {
                if let Some(oom) = ran_out(&item.event) {
                    self.ran_out(&item, oom).await;
                }
                return;
            }
        };
        self.left(process, why, unix_ns);
    }

    /// A line of a program is found to leak.
    async fn reported(
        &mut self,
        process: ProcessHandle,
        pid: Option<u32>,
        found: &Finding,
        unix_ns: Option<u64>,
    ) {
        let wanted = found.clone();
        let about = self.keeper.ask(move |ledger, as_of| {
            let query = v1::LeaksRequest::default();
            let leaks = ledger.ask(&[process], as_of, &query)?;
            let stack = stack_of(&wanted, &leaks.groups);
            Some((leaks.process, stack))
        });
        // If the keeper is too busy, the record says less.
        let (whose, stack) = about.await.ok().flatten().unwrap_or_default();
        let told = self.of(process, pid, whose.as_ref());
        let one = ToldFinding {
            finding: found.into(),
            stack,
            is_filling: false,
        };
        let news = FindingNews::Reported;
        let record = finding(&news, &told.labels, &one.finding, &one.stack);
        told.findings
            .retain(|known| known.finding.number != one.finding.number);
        told.findings.push(one);
        self.add(record, unix_ns);
    }

    /// A finding was withdrawn. One that was not told of before has no record.
    fn ended(&mut self, process: ProcessHandle, found: &Finding, unix_ns: Option<u64>) {
        let Some(told) = self.processes.get_mut(&process) else {
            return;
        };
        let mut all = told.findings.iter();
        let Some(at) = all.position(|known| known.finding.number == found.number) else {
            return;
        };
        let known = told.findings.remove(at);
        let news = FindingNews::Ended {
            reason: found.reason.clone(),
        };
        let record = finding(&news, &told.labels, &found.into(), &known.stack);
        self.add(record, unix_ns);
    }

    /// The process is no longer followed, and its findings stand no more.
    fn left(&mut self, process: ProcessHandle, why: &str, unix_ns: Option<u64>) {
        let Some(mut told) = self.processes.remove(&process) else {
            return;
        };
        if let Some((oom, stack, at)) = told.oom.take().and_then(|oom| oom.pending) {
            let record = out_of_memory(&told.labels, &oom, &stack);
            self.add(record, at);
        }
        let reason = why.to_owned();
        let news = FindingNews::Ended { reason };
        for known in &told.findings {
            let record = finding(&news, &told.labels, &known.finding, &known.stack);
            self.add(record, unix_ns);
        }
    }

    /// Memory ran out in a process.
    async fn ran_out(&mut self, item: &EventItem, mut oom: OutOfMemory) {
        let (process, reference) = (item.event.process, item.event.stack);
        let pid = item.pid;
        let known = self.processes.get_mut(&process);
        if let Some(known) = known.and_then(|told| told.oom.as_mut())
            && known.told.elapsed() < PAUSE
        {
            // Only the last one is kept, with the number of them; its stack is that of the last one with a known stack.
            let before = known.pending.as_ref().map_or(0, |(oom, _, _)| oom.times);
            oom.times = before + 1;
            let stack = match known.pending.take() {
                Some((_, stack, _)) => stack,
                None => self.stack(process, reference).await,
            };
            if let Some(known) = self
                .processes
                .get_mut(&process)
                .and_then(|told| told.oom.as_mut())
            {
                known.pending = Some((oom, stack, item.unix_ns));
            }
            return;
        }
        let (whose, stack) = self.whose(process, reference).await;
        let told = self.of(process, pid, whose.as_ref());
        let pending = told.oom.take().and_then(|before| before.pending);
        oom.times = 1 + pending.map_or(0, |(before, _, _)| before.times);
        told.oom = Some(Oom {
            told: Instant::now(),
            pending: None,
        });
        let record = out_of_memory(&told.labels, &oom, &stack);
        self.add(record, item.unix_ns);
    }

    /// Makes the records about memory that ran out again, and was told of at least so long ago.
    fn flush(&mut self, now: Instant, pause: Duration) {
        let mut made = Vec::new();
        for told in self.processes.values_mut() {
            let Some(oom) = &mut told.oom else { continue };
            if now.duration_since(oom.told) < pause {
                continue;
            }
            if let Some((one, stack, at)) = oom.pending.take() {
                oom.told = now;
                made.push((out_of_memory(&told.labels, &one, &stack), at));
            }
        }
        for (record, at) in made {
            self.add(record, at);
        }
    }

    /// Devices are full soon: each finding that makes them so is told of once more.
    fn fill(&mut self, filling: &[Filling]) {
        let (_, now) = clock::pair();
        let mut made = Vec::new();
        for told in self.processes.values_mut() {
            let Told {
                pid,
                labels,
                findings,
                ..
            } = told;
            for known in findings.iter_mut().filter(|known| !known.is_filling) {
                let device = known.finding.device;
                let of_it = |one: &&Filling| one.pid == *pid && one.device == device;
                let Some(one) = filling.iter().find(of_it) else {
                    continue;
                };
                if known.finding.space == "host" {
                    continue;
                }
                known.is_filling = true;
                let seconds = one.seconds;
                let news = FindingNews::Filling { seconds };
                made.push(finding(&news, labels, &known.finding, &known.stack));
            }
        }
        for record in made {
            self.add(record, Some(now));
        }
    }

    fn add(&mut self, mut record: LogRecord, unix_ns: Option<u64>) {
        // 0 means that the time is not known.
        record.time_unix_nano = unix_ns.unwrap_or_default();
        self.records.push(record);
    }

    /// What was told of a process, with its labels as they are known now.
    fn of(
        &mut self,
        process: ProcessHandle,
        pid: Option<u32>,
        whose: Option<&v1::Process>,
    ) -> &mut Told {
        let told = self.processes.entry(process).or_default();
        if let Some(pid) = pid {
            told.pid = pid;
        }
        match whose {
            Some(whose) => told.labels = of_process(whose),
            None if told.labels.is_empty() => {
                told.labels = vec![("pid", told.pid.to_string())];
            }
            None => {}
        }
        told
    }

    async fn stack(&self, process: ProcessHandle, stack: StackRef) -> Vec<v1::CodeLine> {
        let asked = self
            .keeper
            .ask(move |ledger, _| ledger.frames(process, stack));
        let frames = asked.await.unwrap_or_default();
        frames
            .iter()
            .filter(|frame| frame.line > 0)
            .map(line)
            .collect()
    }

    /// Whose a process is, and the frames of a stack.
    async fn whose(
        &self,
        process: ProcessHandle,
        stack: StackRef,
    ) -> (Option<v1::Process>, Vec<v1::CodeLine>) {
        let asked = self.keeper.ask(move |ledger, as_of| {
            let query = v1::StatsRequest::default();
            let stats = ledger.ask(&[process], as_of, &query);
            stats.and_then(|stats| stats.process)
        });
        let whose = asked.await.ok().flatten();
        (whose, self.stack(process, stack).await)
    }
}

fn line(frame: &memscope_ledger::report::Frame) -> v1::CodeLine {
    v1::CodeLine {
        file: frame.file.to_string(),
        line: frame.line,
        name: frame.name.to_string(),
    }
}

/// The stack that allocates what a finding is about: that of its group that grows most.
fn stack_of(found: &Finding, groups: &[v1::LeakGroup]) -> Vec<v1::CodeLine> {
    let mut of_it = groups.iter().filter(|group| {
        let line = group.line.as_ref();
        let same = line.is_some_and(|line| line.file == found.file && line.line == found.line);
        same && group.device == found.device && !group.frames.is_empty()
    });
    of_it
        .next()
        .map_or_else(Vec::new, |group| group.frames.clone())
}

/// What an event tells of memory that ran out.
fn ran_out(event: &Event) -> Option<OutOfMemory> {
    match &event.body {
        Body::Oom(oom) => Some(OutOfMemory {
            device: Some(oom.device),
            requested_bytes: oom.size,
            allocated_bytes: Some(oom.total_allocated),
            reserved_bytes: Some(oom.total_reserved),
            times: 1,
        }),
        Body::Trace(trace) if trace.action == TraceAction::Oom => Some(OutOfMemory {
            device: trace.device,
            requested_bytes: trace.size,
            allocated_bytes: trace.total_allocated,
            reserved_bytes: trace.total_reserved,
            times: 1,
        }),
        _ => None,
    }
}
