//! One process of a dump.

use super::beside::Beside;
use super::log::{FUNCTIONS, Log, SYSTEM_MARK};
use super::stacks::Stacks;
use crate::row::{Device, Row};
use memscope_ledger::event::{
    Body, Call, CallOp, CoverageNote, HalFacts, HalModule, HalPage, HalSpace, Layer, Level, Mark,
    MarkKind, MarkSource, Placement, PoolOom, PoolReport, ProcessFacts, ProcessHandle, StackRef,
    Vendor,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What a row means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// A row of the framework's own pool.
    Pool {
        device: i32,
        frees: bool,
    },
    /// A row of a pool beside it, or of torch_npu's workspaces.
    Beside {
        frees: bool,
    },
    Driver {
        frees: bool,
    },
    Mark,
    Launch,
    Oom {
        device: i32,
    },
    Exit,
}

/// What a row means; `None` if there is no event for it. `main` is the type of the rows of the framework's own pool.
fn meaning(row: &Row, main: Option<&str>) -> Option<Meaning> {
    let ordinal = match row.device {
        Device::Number(number) => i32::try_from(number).ok(),
        _ => None,
    };
    Some(match (row.event.as_str(), row.event_type.as_str()) {
        (event @ ("MALLOC" | "FREE"), pool @ ("PTA" | "PTA_WORKSPACE" | "ATB" | "MINDSPORE")) => {
            row.ptr?;
            let frees = event == "FREE";
            if main == Some(pool) {
                Meaning::Pool {
                    device: ordinal?,
                    frees,
                }
            } else {
                Meaning::Beside { frees }
            }
        }
        (event @ ("MALLOC" | "FREE"), "HAL" | "HOST_PINNED") => {
            row.ptr?;
            Meaning::Driver {
                frees: event == "FREE",
            }
        }
        ("MSTX", "Mark" | "Range_start" | "Range_end") | ("SYSTEM", _) => Meaning::Mark,
        ("KERNEL_LAUNCH", "KERNEL_LAUNCH") => Meaning::Launch,
        ("OOM_DETAIL", "OOM_TRIGGER") => Meaning::Oom { device: ordinal? },
        ("CLEAN_UP", "PROC_EXIT") => Meaning::Exit,
        _ => return None,
    })
}

/// The totals of one pool on one device: as the last row with totals gave them, and added up since.
#[derive(Clone, Copy, Default)]
struct Totals {
    allocated: u64,
    reserved: u64,
}

/// Numbers of rows that were left out or lack something; they become coverage notes.
#[derive(Default)]
struct Lacks {
    /// Rows that no event was made of, by event and event type.
    rows: BTreeMap<String, u64>,
    /// Rows of blocks without a size, which are left out.
    sizes: u64,
    /// Rows of the framework's pool that lack one of its totals.
    totals: u64,
    /// Blocks that were there before the collection began.
    shadow: u64,
    /// Stacks of compiled code, which are left out.
    c_stacks: u64,
    /// Rows whose time is earlier than that of a row with a smaller ID.
    moved: u64,
}

/// Turns the rows of one process into events.
pub(super) struct ProcessRows {
    handle: ProcessHandle,
    pid: Option<u32>,
    stacks: Stacks,
    totals: BTreeMap<i32, Totals>,
    beside: Beside,
    /// Sizes of the pools' live blocks, for frees that do not say theirs.
    live: HashMap<(i32, u64), u64>,
    launches: u64,
    ended: bool,
    lacks: Lacks,
}

impl ProcessRows {
    pub(super) fn new(handle: ProcessHandle, pid: Option<u32>) -> ProcessRows {
        ProcessRows {
            handle,
            pid,
            stacks: Stacks::default(),
            totals: BTreeMap::new(),
            beside: Beside::default(),
            live: HashMap::new(),
            launches: 0,
            ended: false,
            lacks: Lacks::default(),
        }
    }

    /// Whether the row may become an event. If not, it is counted as left out.
    pub(super) fn wants(&mut self, row: &Row) -> bool {
        let meaning = meaning(row, None);
        if meaning.is_some() {
            self.beside.note(&row.event_type);
        }
        if meaning.is_none() {
            self.leave_out(row);
        }
        meaning.is_some()
    }

    fn leave_out(&mut self, row: &Row) {
        let after = if self.ended {
            " after the process's exit"
        } else {
            ""
        };
        let kind = format!("{} {}{after}", row.event, row.event_type);
        *self.lacks.rows.entry(kind).or_default() += 1;
    }

    /// Counts a row whose time is earlier than that of a row with a smaller ID.
    pub(super) fn moved(&mut self) {
        self.lacks.moved += 1;
    }

    /// Number of rows for which there is no event.
    pub(super) fn left_out(&self) -> u64 {
        self.lacks.rows.values().sum::<u64>() + self.lacks.sizes
    }

    pub(super) fn attach(&mut self, log: &mut Log) {
        let facts = ProcessFacts {
            pid: self.pid.unwrap_or(0),
            comm: "msmemscope".to_owned(),
            level: Some(Level::Blocks),
            ..ProcessFacts::default()
        };
        log.push(
            self.handle,
            0,
            StackRef::NotTaken,
            Body::Attached(Box::new(facts)),
        );
        let placement = Placement {
            ways: vec!["msMemScope".to_owned()],
            pool_seen: self.beside.main().is_some(),
            ..Placement::default()
        };
        log.push(
            self.handle,
            0,
            StackRef::NotTaken,
            Body::Placed(Box::new(placement)),
        );
    }

    pub(super) fn apply(&mut self, log: &mut Log, row: &Row) {
        if self.ended {
            // The ledger takes nothing of an ended process but notes.
            self.leave_out(row);
            return;
        }
        let Some(meaning) = meaning(row, self.beside.main()) else {
            // The row is of the framework's own pool and names no device; such a pool is always on a device.
            self.leave_out(row);
            return;
        };
        let body = match meaning {
            Meaning::Pool { device, frees } => self.pool(row, device, frees),
            Meaning::Beside { frees } => {
                let mut bodies = self.beside.row(row, frees).unwrap_or_default();
                let last = bodies.pop();
                for body in bodies {
                    log.push(self.handle, row.tid.unwrap_or(0), StackRef::NotTaken, body);
                }
                last
            }
            Meaning::Driver { frees } => self.driver(row, frees),
            Meaning::Mark => Some(Body::Mark(Box::new(mark(row)))),
            Meaning::Launch => {
                self.launches += 1;
                Some(Body::Launches {
                    count: self.launches,
                })
            }
            Meaning::Oom { device } => Some(self.oom(row, device)),
            Meaning::Exit => {
                self.ended = true;
                Some(Body::Exited)
            }
        };
        let Some(body) = body else {
            self.lacks.sizes += 1;
            return;
        };
        let (stack, new) = self.stacks.of(&row.python_stack);
        self.lacks.c_stacks += u64::from(!row.c_stack.is_empty());
        if let Some(new) = new {
            let told = |log: &mut Log, body| log.push(self.handle, 0, StackRef::NotTaken, body);
            told(log, Body::Stack(Box::new(new.seen)));
            for name in new.names {
                told(log, Body::Code(Box::new(name)));
            }
        }
        log.push(self.handle, row.tid.unwrap_or(0), stack, body);
    }

    fn pool(&mut self, row: &Row, device: i32, frees: bool) -> Option<Body> {
        let ptr = row.ptr?;
        let known = if frees {
            self.live.remove(&(device, ptr))
        } else {
            None
        };
        let size = row.size().or(known)?;
        let signed = i64::try_from(size).ok()?;
        if !frees {
            self.live.insert((device, ptr), size);
            self.lacks.shadow += u64::from(row.attr.get("shadow") == Some("true"));
        }
        let pool = self.totals.entry(device).or_default();
        let (used, total) = (row.attr_number("used"), row.attr_number("total"));
        self.lacks.totals += u64::from(used.is_none() || total.is_none());
        pool.allocated = used.unwrap_or_else(|| {
            if frees {
                pool.allocated.saturating_sub(size)
            } else {
                pool.allocated.saturating_add(size)
            }
        });
        // The pool must have reserved at least what it has handed out.
        pool.reserved = total.unwrap_or(pool.reserved.max(pool.allocated));
        let sum = *pool;
        Some(Body::Report(PoolReport {
            device,
            ptr,
            size: if frees { -signed } else { signed },
            total_allocated: sum.allocated,
            total_reserved: sum.reserved,
        }))
    }

    fn driver(&mut self, row: &Row, frees: bool) -> Option<Body> {
        let host = matches!(row.device, Device::Cpu | Device::Host);
        let device = match row.device {
            Device::Number(number) => i32::try_from(number).ok(),
            _ => None,
        };
        let size = if frees {
            row.size().unwrap_or(0)
        } else {
            row.size()?
        };
        let [alloc, free, register, unregister] = FUNCTIONS;
        let (function, op) = match (host, frees) {
            (false, false) => (alloc, CallOp::Alloc),
            (false, true) => (free, CallOp::Free),
            (true, false) => (register, CallOp::HostAlloc),
            (true, true) => (unregister, CallOp::HostFree),
        };
        Some(Body::Call(Call {
            function: Arc::from(function),
            layer: Layer::Driver,
            vendor: Vendor::Ascend,
            op,
            status: 0,
            device,
            ptr: row.ptr?,
            size,
            stream: None,
            handle: 0,
            context: 0,
            of_host: false,
            hal: (!frees).then(|| told(row, host)).flatten(),
            extra: 0,
            nested: 0,
            duration_ns: 0,
        }))
    }

    fn oom(&self, row: &Row, device: i32) -> Body {
        let sum = self.totals.get(&device).copied().unwrap_or_default();
        Body::Oom(PoolOom {
            device,
            size: row.attr_number("req_size").unwrap_or(0),
            total_allocated: sum.allocated,
            total_reserved: sum.reserved,
        })
    }

    /// Notes on what is missing, of an ended process as well; then the detach, unless the dump has the process's exit.
    pub(super) fn end(&mut self, log: &mut Log, older: bool) {
        self.notes(log, older);
        if !self.ended {
            log.push(self.handle, 0, StackRef::NotTaken, Body::Detached);
        }
    }

    fn notes(&self, log: &mut Log, older: bool) {
        for (code, text) in self.lacks.sentences(older) {
            let note = CoverageNote {
                code: code.to_owned(),
                text,
            };
            log.push(self.handle, 0, StackRef::NotTaken, Body::Coverage(note));
        }
    }
}

impl Lacks {
    fn sentences(&self, older: bool) -> Vec<(&'static str, String)> {
        let mut notes = vec![(
            "imported",
            "imported from a dump of msMemScope's: what it did not collect is not in these numbers"
                .to_owned(),
        )];
        if !self.rows.is_empty() {
            let kinds: Vec<String> = self
                .rows
                .iter()
                .map(|(kind, count)| format!("{count} {kind}"))
                .collect();
            notes.push((
                "import_rows_left_out",
                format!(
                    "rows that no event tells were left out: {}",
                    kinds.join(", ")
                ),
            ));
        }
        if self.sizes > 0 {
            notes.push((
                "import_sizes_unknown",
                format!(
                    "{} rows of blocks do not say how large they are and were left out",
                    self.sizes
                ),
            ));
        }
        if self.totals > 0 {
            notes.push((
                "import_totals_added_up",
                format!(
                    "{} rows do not say the pool's totals: there they are added up from the blocks, and reserved is \
                     what was said last, at least what is allocated",
                    self.totals
                ),
            ));
        }
        if self.shadow > 0 {
            notes.push((
                "import_shadow",
                format!(
                    "{} blocks were there before the collection began: their ages are counted from there",
                    self.shadow
                ),
            ));
        }
        if self.c_stacks > 0 {
            notes.push((
                "import_c_stacks",
                format!("{} stacks of compiled code were left out", self.c_stacks),
            ));
        }
        if self.moved > 0 {
            notes.push((
                "import_times_moved",
                format!(
                    "{} rows are earlier than one with a smaller ID: they are shown at its moment",
                    self.moved
                ),
            ));
        }
        if older {
            notes.push((
                "import_microseconds",
                "the dump is of an older version, which counts in microseconds".to_owned(),
            ));
        }
        notes
    }
}

/// What the driver learnt of an allocation, from the row's attributes. `None` unless the owner is `CANN@…`; labels of
/// users may follow the name of the component.
fn told(row: &Row, host: bool) -> Option<HalFacts> {
    let owner = row.attr.get("owner")?.strip_prefix("CANN@")?;
    let name = owner.split('@').next()?;
    let created = row.attr.get("alloc_type") == Some("create");
    Some(HalFacts {
        device: match row.device {
            Device::Number(number) => u16::try_from(number).ok()?,
            _ => 0,
        },
        space: if host {
            HalSpace::Host
        } else {
            HalSpace::Device
        },
        page: row
            .attr
            .get("page_type")
            .and_then(HalPage::from_name)
            .unwrap_or_default(),
        module: HalModule::from_name(name).unwrap_or_default(),
        created,
        memory: None,
    })
}

fn mark(row: &Row) -> Mark {
    let name = row.name.as_deref().unwrap_or("");
    let (kind, name) = match (row.event.as_str(), row.event_type.as_str()) {
        ("SYSTEM", "STEP") => (MarkKind::Step, format!("{SYSTEM_MARK}STEP {name}")),
        ("SYSTEM", event_type) => (
            MarkKind::Instant,
            format!("{SYSTEM_MARK}{event_type} {name}"),
        ),
        (_, "Range_start") => (MarkKind::Begin, name.to_owned()),
        (_, "Range_end") => (MarkKind::End, name.to_owned()),
        _ => (MarkKind::Instant, name.to_owned()),
    };
    Mark {
        kind,
        source: MarkSource::Mstx,
        range: 0,
        name: Arc::from(name.trim_end()),
        cut: false,
    }
}
