//! One function in the tables: how its symbol is recognised, and how it passes its arguments.

use memscope_common::{
    AscendExtra, Cookie, MARK_END, MarkAbi, MarkForm, MarkSource, Op, PtrMode, RegionOp, SizeMode,
    TorchAbi,
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
    /// Libraries for marks (and for pools that programs report), a framework's own marks, and launches of kernels.
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
    /// A mark: the function names a moment, or its call is itself such a moment.
    Mark(MarkAbi),
    /// A launch of a kernel on a device.
    Launch,
    /// A report about a pool that the program has itself.
    Region(RegionOp),
    /// An instruction that calls torch_npu's report, in an allocator other than the caching one.
    Workspace,
}

/// How a row's function is recognised among the symbols of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Match {
    /// By this symbol.
    Exact(&'static str),
    /// By the beginning of its mangled symbol. The rest, the encoding of the parameters, says which
    /// variant it is ([`crate::pytorch`]).
    Mangled(&'static str),
    /// By no symbol: the sites are instructions that call the function of the row with this name.
    Calls(&'static str),
}

/// Where the arguments of a call are. Positions count the integer arguments that are passed in
/// registers, from 0; an argument passed by value in memory has no position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abi {
    /// Position of the pointer, and how it is found there.
    pub ptr: Option<(u8, PtrMode)>,
    /// Position of the size, and how it is found there.
    pub size: Option<(u8, SizeMode)>,
    /// Position of the stream.
    pub stream: Option<u8>,
    /// Position of the handle, and whether the call writes it there as a result.
    pub handle: Option<(u8, bool)>,
    /// Position of the extra argument (offset, flags or second result, depending on the operation).
    pub extra: Option<u8>,
    /// Whether an argument that we need lies on the stack. If so, the probe must stand where the stack pointer is
    /// still the same as at the entry.
    pub stack: bool,
    /// What the function is given beside these arguments, on Ascend.
    pub told: AscendExtra,
    /// Whether the function gets a record of its own inside a call that only selects or resets a device.
    pub apart: bool,
}

/// One function that may get a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name for users; for a C function it is the symbol.
    pub name: &'static str,
    /// How its symbol is recognised.
    pub symbol: Match,
    /// Vendor whose devices the function belongs to; `None` if it belongs to no vendor, as with the dynamic linker.
    pub vendor: Option<Vendor>,
    /// Layer of software that the function belongs to.
    pub layer: Layer,
    /// Beginning of the file name of the library that normally defines the function. Other objects may define
    /// it too (a runtime that was linked statically).
    pub library: &'static str,
    /// What its probe is for.
    pub purpose: Purpose,
    /// Where its arguments are.
    pub abi: Abi,
    /// Whether the function gets a return probe as well, because its result is needed. Only C functions that cannot
    /// throw may have this: an exception that unwinds through a frame with a return probe ends the process.
    pub returns: bool,
    /// Whether users are warned when `library` does not have the function.
    pub essential: bool,
    /// Whether pointers and sizes are 32 bits wide (the driver API of CUDA 3.1 and older, still exported).
    /// Such functions get no probe, since the programs would read 64 bits.
    pub narrow: bool,
    /// Whether stream 0 means the thread's own default stream (`_ptsz`).
    pub per_thread_stream: bool,
    /// First CUDA version that exports the function (major × 1000 + minor × 10, as in `CUDA_VERSION`), if it is
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

    /// Number of the operation for the cookie; 0 for functions that are neither calls nor reports about a program's
    /// pool.
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

    /// Whether a call of the function is the end of one of PyTorch's `record_function`s.
    pub fn ends_record_functions(&self) -> bool {
        matches!(self.purpose, Purpose::Mark(abi) if abi.source == MarkSource::RecordFunction && abi.kind == MARK_END)
    }

    /// The attach cookie for a site of this function, with the site's number and the variant of the function there.
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

/// Variant of a function that a symbol is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The function has one variant only.
    Only,
    /// A variant of `record_trace`, by its parameters.
    Trace(TorchAbi),
    /// The function takes the older, reference-counted kind of `std::string`.
    OldString,
    /// torch_npu's report: one argument, a pointer to its `MemoryUsage`.
    Usage {
        /// Whether the structure says which allocator reports, in a byte before the data's type.
        component: bool,
    },
}
