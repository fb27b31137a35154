//! Which functions exist and how they pass arguments: data, not code.
//!
//! This module owns the rows and what a row means. It knows no file and no process. A vendor is a
//! set of rows; another one is another file of rows and a line in [`rows`].

mod ascend;
mod cuda_driver;
mod cuda_runtime;
mod marks;
mod mstx_memory;
pub mod pytorch;
pub mod torch_npu;

use std::sync::LazyLock;

use memscope_common::{Cookie, MarkAbi, MarkForm, Op, PtrMode, RegionOp, SizeMode, Told, TorchAbi};
use memscope_ledger::event::Level;

/// Whose devices a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Vendor {
    /// NVIDIA CUDA.
    Cuda,
    /// Huawei Ascend.
    Ascend,
    /// No device of its own: the dynamic linker.
    None,
}

/// Which layer of software a function belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// The dynamic linker.
    Loader,
    /// The runtime (libcudart, or a copy of it inside another object; libascendcl).
    Runtime,
    /// The driver library (libcuda; libascend_hal).
    Driver,
    /// A framework's pool.
    Pool,
    /// What names moments: libraries for marks, and a framework's own steps.
    Mark,
}

/// What a function's probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A runtime or driver call.
    Call(Op),
    /// `c10::reportMemoryUsageToProfiler`, or what torch_npu has in its place.
    Report,
    /// `c10::reportOutOfMemoryToProfiler`.
    Oom,
    /// `DeviceCachingAllocator::record_trace`.
    Trace,
    /// The linker's `_dl_debug_state`: objects were mapped or unmapped.
    Loader,
    /// It names a moment, or is one.
    Mark(MarkAbi),
    /// It launches a kernel.
    Launch,
    /// It tells of a pool that a program has.
    Region(RegionOp),
    /// An instruction that calls torch_npu's report, in an allocator other than the caching one.
    Workspace,
}

/// How a row's function is recognised among the symbols of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// The symbol is exactly this.
    Exact(&'static str),
    /// The mangled symbol begins with this; the rest, the encoding of the parameters, says which
    /// variant it is ([`pytorch`]).
    Mangled(&'static str),
    /// By none: the sites are instructions that call the function of this other row.
    Calls(&'static str),
}

/// Where the arguments of a call are. Positions count the integer arguments that travel in
/// registers, from 0; an argument passed by value in memory has no position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abi {
    /// The pointer.
    pub ptr: Option<(u8, PtrMode)>,
    /// The size.
    pub size: Option<(u8, SizeMode)>,
    /// The stream.
    pub stream: Option<u8>,
    /// The handle, and whether it is a result.
    pub handle: Option<(u8, bool)>,
    /// The operation's second number.
    pub extra: Option<u8>,
    /// An argument that we need lies on the stack: the probe must stand where the stack pointer is
    /// still the entry's.
    pub stack: bool,
    /// What it says beside these, on Ascend.
    pub told: Told,
    /// It counts even inside a call that only selects or resets a device.
    pub apart: bool,
}

/// One function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name for people; of a C function its symbol.
    pub name: &'static str,
    /// How its symbol is recognised.
    pub symbol: Match,
    /// Whose devices.
    pub vendor: Vendor,
    /// Which layer.
    pub layer: Layer,
    /// The library that is known for it: what its file name begins with. Other objects may define
    /// the function too (a runtime linked statically); this one is missed if it does not.
    pub library: &'static str,
    /// What its probe is for.
    pub purpose: Purpose,
    /// Where its arguments are.
    pub abi: Abi,
    /// The result is known only when it returns. Only C functions that cannot throw have this: an
    /// exception that unwinds through a return-probed frame ends the process.
    pub returns: bool,
    /// A library of that name without it is worth a word.
    pub essential: bool,
    /// Pointers and sizes are 32 bits wide (the driver API of CUDA 3.1 and older, still exported).
    /// Not probed: a 64-bit reading of them would be wrong.
    pub narrow: bool,
    /// Stream 0 means the thread's own default stream (`_ptsz`).
    pub per_thread_stream: bool,
    /// First CUDA version that exports it (major × 1000 + minor × 10, as `CUDA_VERSION`), where
    /// known.
    pub since: Option<u32>,
}

impl Row {
    pub(crate) const fn new(
        name: &'static str,
        vendor: Vendor,
        layer: Layer,
        library: &'static str,
        purpose: Purpose,
    ) -> Row {
        Row {
            name,
            symbol: Match::Exact(name),
            vendor,
            layer,
            library,
            purpose,
            abi: Abi {
                ptr: None,
                size: None,
                stream: None,
                handle: None,
                extra: None,
                stack: false,
                told: Told::Nothing,
                apart: false,
            },
            returns: false,
            essential: false,
            narrow: false,
            per_thread_stream: false,
            since: None,
        }
    }
    const fn calls(mut self, row: &'static str) -> Row {
        self.symbol = Match::Calls(row);
        self
    }
    const fn mangled(mut self, prefix: &'static str) -> Row {
        self.symbol = Match::Mangled(prefix);
        self
    }
    const fn returning(mut self) -> Row {
        self.returns = true;
        self
    }
    const fn ptr(mut self, arg: u8) -> Row {
        self.abi.ptr = Some((arg, PtrMode::Value));
        self
    }
    const fn ptr_out(mut self, arg: u8) -> Row {
        self.abi.ptr = Some((arg, PtrMode::Out));
        self
    }
    const fn size(mut self, arg: u8) -> Row {
        self.abi.size = Some((arg, SizeMode::Value));
        self
    }
    const fn size_as(mut self, arg: u8, mode: SizeMode) -> Row {
        self.abi.size = Some((arg, mode));
        self
    }
    const fn stream(mut self, arg: u8) -> Row {
        self.abi.stream = Some(arg);
        self
    }
    const fn handle(mut self, arg: u8) -> Row {
        self.abi.handle = Some((arg, false));
        self
    }
    const fn handle_out(mut self, arg: u8) -> Row {
        self.abi.handle = Some((arg, true));
        self
    }
    const fn extra(mut self, arg: u8) -> Row {
        self.abi.extra = Some(arg);
        self
    }
    const fn stack(mut self) -> Row {
        self.abi.stack = true;
        self
    }
    const fn told(mut self, told: Told) -> Row {
        self.abi.told = told;
        self
    }
    const fn apart(mut self) -> Row {
        self.abi.apart = true;
        self
    }
    const fn essential(mut self) -> Row {
        self.essential = true;
        self
    }
    const fn narrow(mut self) -> Row {
        self.narrow = true;
        self
    }
    const fn per_thread(mut self) -> Row {
        self.per_thread_stream = true;
        self
    }
    const fn since(mut self, version: u32) -> Row {
        self.since = Some(version);
        self
    }

    /// The operation's number for the cookie (0: neither a call nor what tells of a pool).
    pub fn op(&self) -> u16 {
        match self.purpose {
            Purpose::Call(op) => op as u16,
            Purpose::Region(op) => op as u16,
            Purpose::Report
            | Purpose::Oom
            | Purpose::Trace
            | Purpose::Loader
            | Purpose::Mark(_)
            | Purpose::Workspace
            | Purpose::Launch => 0,
        }
    }

    /// The attach cookie of a site of this row.
    pub fn cookie(&self, site: u32, variant: Variant) -> Cookie {
        let mut cookie = Cookie::new(site, self.op());
        if let Some((arg, mode)) = self.abi.ptr {
            cookie = cookie.with_ptr(arg, mode);
        }
        if let Some((arg, mode)) = self.abi.size {
            cookie = cookie.with_size(arg, mode);
        }
        if let Some(arg) = self.abi.stream {
            cookie = cookie.with_stream(arg);
        }
        if let Some((arg, is_result)) = self.abi.handle {
            cookie = cookie.with_handle(arg, is_result);
        }
        if let Some(arg) = self.abi.extra {
            cookie = cookie.with_extra(arg);
        }
        if let Variant::Trace(abi) = variant {
            cookie = cookie.with_torch(abi);
        }
        if let Variant::Usage { component } = variant {
            cookie = cookie.with_usage(component);
        }
        cookie = cookie.with_told(self.abi.told);
        if self.abi.apart {
            cookie = cookie.with_apart();
        }
        if let Purpose::Mark(abi) = self.purpose {
            let form = match variant {
                Variant::OldString => MarkForm::OldString,
                Variant::Only | Variant::Trace(_) | Variant::Usage { .. } => abi.form,
            };
            cookie = cookie.with_mark(MarkAbi { form, ..abi });
        }
        cookie
    }

    /// Whether probes at this level include the row. The linker's hook belongs to every level and
    /// is found apart.
    ///
    /// `trace` includes the reporting function: with its totals the offsets that `record_trace`'s
    /// probe reads are found, and where that fails it stays.
    pub fn at_level(&self, level: Level) -> bool {
        match self.purpose {
            Purpose::Call(_)
            | Purpose::Mark(_)
            | Purpose::Launch
            | Purpose::Region(_)
            | Purpose::Workspace => level >= Level::Segments,
            Purpose::Report | Purpose::Oom => level >= Level::Blocks,
            Purpose::Trace => level >= Level::Trace,
            Purpose::Loader => false,
        }
    }
}

/// Which of a function's variants a symbol is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The function has one variant only.
    Only,
    /// `record_trace`, by its parameters.
    Trace(TorchAbi),
    /// It takes the older kind of `std::string`.
    OldString,
    /// torch_npu's report: one argument, a pointer to its `MemoryUsage`.
    Usage {
        /// The structure says which allocator it is of, in a byte before the data's type.
        component: bool,
    },
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let mut rows = Vec::new();
    rows.extend_from_slice(cuda_runtime::ROWS);
    rows.extend_from_slice(cuda_driver::ROWS);
    rows.extend_from_slice(ascend::ROWS);
    rows.extend_from_slice(pytorch::ROWS);
    rows.extend_from_slice(torch_npu::ROWS);
    rows.extend_from_slice(marks::ROWS);
    rows.extend_from_slice(mstx_memory::ROWS);
    rows.push(
        Row::new(
            "_dl_debug_state",
            Vendor::None,
            Layer::Loader,
            "ld-",
            Purpose::Loader,
        )
        .essential(),
    );
    rows
});

/// Every row of every vendor.
pub fn rows() -> &'static [Row] {
    &ROWS
}

/// Whether the row with this name is a report of blocks and totals.
pub fn is_report(name: &str) -> bool {
    row(name).is_some_and(|row| row.purpose == Purpose::Report)
}

/// The row with this name.
pub fn row(name: &str) -> Option<&'static Row> {
    rows().iter().find(|row| row.name == name)
}
