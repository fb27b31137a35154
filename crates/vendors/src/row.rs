//! What is said of one function: how its symbol is recognised, and how it passes its arguments.

use memscope_common::{
    AscendExtra, Cookie, MarkAbi, MarkForm, Op, PtrMode, RegionOp, SizeMode, TorchAbi,
};

use crate::vendor::Vendor;

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
    /// variant it is ([`crate::pytorch`]).
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
    pub told: AscendExtra,
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
    /// Whose devices; none: it has none of its own, as the dynamic linker.
    pub vendor: Option<Vendor>,
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
        vendor: Option<Vendor>,
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
                told: AscendExtra::Nothing,
                apart: false,
            },
            returns: false,
            essential: false,
            narrow: false,
            per_thread_stream: false,
            since: None,
        }
    }
    pub(crate) const fn calls(mut self, row: &'static str) -> Row {
        self.symbol = Match::Calls(row);
        self
    }
    pub(crate) const fn mangled(mut self, prefix: &'static str) -> Row {
        self.symbol = Match::Mangled(prefix);
        self
    }
    pub(crate) const fn returning(mut self) -> Row {
        self.returns = true;
        self
    }
    pub(crate) const fn ptr(mut self, arg: u8) -> Row {
        self.abi.ptr = Some((arg, PtrMode::Value));
        self
    }
    pub(crate) const fn ptr_out(mut self, arg: u8) -> Row {
        self.abi.ptr = Some((arg, PtrMode::Out));
        self
    }
    pub(crate) const fn size(mut self, arg: u8) -> Row {
        self.abi.size = Some((arg, SizeMode::Value));
        self
    }
    pub(crate) const fn size_as(mut self, arg: u8, mode: SizeMode) -> Row {
        self.abi.size = Some((arg, mode));
        self
    }
    pub(crate) const fn stream(mut self, arg: u8) -> Row {
        self.abi.stream = Some(arg);
        self
    }
    pub(crate) const fn handle(mut self, arg: u8) -> Row {
        self.abi.handle = Some((arg, false));
        self
    }
    pub(crate) const fn handle_out(mut self, arg: u8) -> Row {
        self.abi.handle = Some((arg, true));
        self
    }
    pub(crate) const fn extra(mut self, arg: u8) -> Row {
        self.abi.extra = Some(arg);
        self
    }
    pub(crate) const fn stack(mut self) -> Row {
        self.abi.stack = true;
        self
    }
    pub(crate) const fn told(mut self, told: AscendExtra) -> Row {
        self.abi.told = told;
        self
    }
    pub(crate) const fn apart(mut self) -> Row {
        self.abi.apart = true;
        self
    }
    pub(crate) const fn essential(mut self) -> Row {
        self.essential = true;
        self
    }
    pub(crate) const fn narrow(mut self) -> Row {
        self.narrow = true;
        self
    }
    pub(crate) const fn per_thread(mut self) -> Row {
        self.per_thread_stream = true;
        self
    }
    pub(crate) const fn since(mut self, version: u32) -> Row {
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
