//! The attach cookie: 64 bits that say which site was hit and where its arguments are, so that one
//! BPF program serves every function of a family without a table lookup.

/// Position of an argument that means "there is none".
pub const NO_ARG: u8 = 15;

/// What an allocator call does. The numbers are part of the record format.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// Allocates device memory (`cudaMalloc`, `cuMemAlloc`, pitched, …).
    Alloc = 1,
    /// Frees device memory.
    Free = 2,
    /// Allocates stream-ordered device memory (`cudaMallocAsync`, pools).
    AsyncAlloc = 3,
    /// Frees stream-ordered memory.
    AsyncFree = 4,
    /// Allocates managed (unified) memory.
    ManagedAlloc = 5,
    /// Allocates page-locked host memory.
    HostAlloc = 6,
    /// Frees page-locked host memory.
    HostFree = 7,
    /// Page-locks memory that the program owns.
    HostRegister = 8,
    /// Undoes `HostRegister`.
    HostUnregister = 9,
    /// Reserves addresses (`cuMemAddressReserve`).
    Reserve = 10,
    /// Gives addresses back.
    ReserveFree = 11,
    /// Allocates physical memory (`cuMemCreate`); `handle` is the result.
    Create = 12,
    /// Gives a physical handle back (`cuMemRelease`).
    Release = 13,
    /// Maps the physical memory `handle` at the addresses given by `ptr` and `size`.
    Map = 14,
    /// Unmaps the addresses given by `ptr` and `size`.
    Unmap = 15,
    /// Takes another reference to the handle mapped at `ptr`.
    Retain = 16,
    /// Imports physical memory of another process; `handle` is the result.
    Import = 17,
    /// Opens an IPC handle: `ptr` is the result; the size of the memory is not known.
    IpcOpen = 18,
    /// Closes an IPC mapping.
    IpcClose = 19,
    /// Asks for the memory of the device (`cudaMemGetInfo`): `extra` is the number of free bytes, `size` that of all
    /// bytes.
    MemInfo = 20,
    /// Frees what belongs to a device's primary context (`cudaDeviceReset`), or to the context `handle`, which is destroyed.
    Reset = 21,
    /// Selects the thread's device. No record is sent for this call.
    SetDevice = 22,
    /// Selects the thread's context, `handle`. No record is sent for this call.
    SetContext = 23,
    /// Pushes a context. No record is sent for this call.
    PushContext = 24,
    /// Pops a context. No record is sent for this call.
    PopContext = 25,
    /// Retains a device's primary context: `handle` is the result, `size` the device. No record is sent for this call.
    PrimaryContext = 26,
    /// Allocates an array: `handle` is the result; the size is not among the arguments.
    ArrayAlloc = 27,
    /// Frees an array.
    ArrayFree = 28,
    /// Makes a stream, `handle`, on the thread's device. No record is sent for this call.
    NewStream = 29,
    /// Makes or names a pool of stream-ordered memory, `handle`: its memory is on the device `size`, or where the location says to which
    /// `ptr` points, or the one in the properties to which `extra` points. No record is sent for this call.
    PoolOf = 30,
}

impl Op {
    /// The operation with this number, if there is one.
    pub const fn from_u16(n: u16) -> Option<Op> {
        Some(match n {
            1 => Op::Alloc,
            2 => Op::Free,
            3 => Op::AsyncAlloc,
            4 => Op::AsyncFree,
            5 => Op::ManagedAlloc,
            6 => Op::HostAlloc,
            7 => Op::HostFree,
            8 => Op::HostRegister,
            9 => Op::HostUnregister,
            10 => Op::Reserve,
            11 => Op::ReserveFree,
            12 => Op::Create,
            13 => Op::Release,
            14 => Op::Map,
            15 => Op::Unmap,
            16 => Op::Retain,
            17 => Op::Import,
            18 => Op::IpcOpen,
            19 => Op::IpcClose,
            20 => Op::MemInfo,
            21 => Op::Reset,
            22 => Op::SetDevice,
            23 => Op::SetContext,
            24 => Op::PushContext,
            25 => Op::PopContext,
            26 => Op::PrimaryContext,
            27 => Op::ArrayAlloc,
            28 => Op::ArrayFree,
            29 => Op::NewStream,
            30 => Op::PoolOf,
            _ => return None,
        })
    }
}

/// How the pointer of a call is found.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtrMode {
    /// The call has no pointer.
    None = 0,
    /// The argument is the pointer.
    Value = 1,
    /// The argument is an address to which the call writes the pointer.
    Out = 2,
}

/// How the size of a call is found.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeMode {
    /// Argument `size` is the number of bytes; 0 where the call has no such argument.
    Value = 0,
    /// The size is the pitch, which the call writes through argument `extra`, × the rows in argument `size`.
    Pitch = 1,
    /// For `cudaMalloc3D`: the size is the pitch in the resulting structure × height × depth of the extent, which is
    /// passed by value.
    Extent = 2,
    /// The call has two results: it writes `size` through argument `size` and `extra` through argument `extra`.
    Out = 3,
}

/// What an allocating function of Ascend's is given beside pointer and size, and where it lies. The numbers are used in
/// the cookie only, not in records.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AscendExtra {
    /// Nothing. So it is with functions of other vendors, and with functions of Ascend's that leave this to the driver
    /// below them.
    #[default]
    Nothing = 0,
    /// Argument `extra` is the driver's word of flags ([`crate::hal`]).
    Flags = 1,
    /// Argument 2 points to the driver's `drv_mem_prop`.
    Properties = 2,
    /// Argument 2 points to the runtime's `aclrtPhysicalMemProp`, which names the device.
    Location = 3,
}

/// Variant of PyTorch's `record_trace` that a site is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorchAbi {
    /// The sixth register argument is the device (2.4 and later).
    pub device: bool,
    /// The pool's id is passed by value behind the first six arguments (2.8 and later).
    pub pool: bool,
}

/// How a function is given a mark. The numbers are used in the cookie only, not in records.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkForm {
    /// For memscope's own library: kind, range, name and length of the name are the arguments.
    Library = 0,
    /// The argument is a name that ends with NUL.
    Text = 1,
    /// The argument is the number of a range.
    Range = 2,
    /// No argument matters; that the function is entered is the mark.
    Bare = 3,
    /// The argument is a name, as a reference to a `std::string`.
    String = 4,
    /// The argument is a name, as a reference to a reference-counted `std::string` (libstdc++ before its new ABI).
    OldString = 5,
}

/// Who makes a mark. The numbers are part of the record format.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkSource {
    /// The program, through memscope's library.
    Memscope = 0,
    /// The program, through mstx.
    Mstx = 1,
    /// The program, through NVTX.
    Nvtx = 2,
    /// PyTorch's `record_function`.
    RecordFunction = 3,
    /// PyTorch's autograd engine.
    Backward = 4,
}

/// How a function makes a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkAbi {
    /// How the function is given the mark.
    pub form: MarkForm,
    /// Position of the argument with the name or the range.
    pub arg: u8,
    /// Kind of the mark: one of the `MARK_*` constants of the records.
    pub kind: u16,
    /// Who makes the mark.
    pub source: MarkSource,
}

/// The attach cookie. Bits, from the least: site 20, op 6, ptr 4, ptr mode 2, size 4, size mode 2,
/// stream 4, handle 4, handle-is-result 1, extra 4, torch device 1, torch pool 1, usage component 1, told 2, apart 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Largest site number that fits.
    pub const MAX_SITE: u32 = (1 << 20) - 1;

    /// A cookie with the number of the site and that of the operation, and without any argument.
    pub const fn new(site: u32, op: u16) -> Cookie {
        let none = NO_ARG as u64;
        Cookie(
            (site as u64 & 0xf_ffff)
                | ((op as u64 & 63) << 20)
                | (none << 26)
                | (none << 32)
                | (none << 38)
                | (none << 42)
                | (none << 47),
        )
    }
    const fn put(self, at: u32, bits: u32, value: u64) -> Cookie {
        let mask = ((1u64 << bits) - 1) << at;
        Cookie((self.0 & !mask) | ((value << at) & mask))
    }
    const fn get(self, at: u32, bits: u32) -> u64 {
        (self.0 >> at) & ((1u64 << bits) - 1)
    }
    /// Adds the position of the pointer argument, and how the pointer is found by it.
    pub const fn with_ptr(self, arg: u8, mode: PtrMode) -> Cookie {
        self.put(26, 4, arg as u64).put(30, 2, mode as u64)
    }
    /// Adds the position of the size argument, and how the size is found by it.
    pub const fn with_size(self, arg: u8, mode: SizeMode) -> Cookie {
        self.put(32, 4, arg as u64).put(36, 2, mode as u64)
    }
    /// Adds the position of the stream argument.
    pub const fn with_stream(self, arg: u8) -> Cookie {
        self.put(38, 4, arg as u64)
    }
    /// Adds the position of the handle argument, and whether the call writes the handle through it (`is_result`) or is
    /// given it as a value.
    pub const fn with_handle(self, arg: u8, is_result: bool) -> Cookie {
        self.put(42, 4, arg as u64).put(46, 1, is_result as u64)
    }
    /// Adds the position of the extra argument (offset, flags or second result, depending on the operation).
    pub const fn with_extra(self, arg: u8) -> Cookie {
        self.put(47, 4, arg as u64)
    }
    /// Adds the variant of `record_trace`.
    pub const fn with_torch(self, abi: TorchAbi) -> Cookie {
        self.put(51, 1, abi.device as u64)
            .put(52, 1, abi.pool as u64)
    }
    /// Adds the variant of torch_npu's report: whether its structure says which allocator reports.
    pub const fn with_usage(self, component: bool) -> Cookie {
        self.put(53, 1, component as u64)
    }
    /// Adds what an allocating function of Ascend's is given beside pointer and size.
    pub const fn with_told(self, told: AscendExtra) -> Cookie {
        self.put(54, 2, told as u64)
    }
    /// What an allocating function of Ascend's is given beside pointer and size: [`AscendExtra`] as a number.
    pub const fn told(self) -> u8 {
        self.get(54, 2) as u8
    }
    /// Says that the function gets a record of its own even if it is called inside a call that only selects or resets a
    /// device: Ascend's runtime allocates for itself in such calls.
    pub const fn with_apart(self) -> Cookie {
        self.put(56, 1, 1)
    }
    /// Whether the function gets a record of its own inside a call that only selects or resets a device.
    pub const fn apart(self) -> bool {
        self.get(56, 1) == 1
    }
    /// Adds how the function makes a mark. This uses the bits of operation, pointer, size and stream, which a mark does
    /// not have.
    pub const fn with_mark(self, abi: MarkAbi) -> Cookie {
        self.put(20, 6, abi.form as u64)
            .put(26, 4, abi.arg as u64)
            .put(32, 4, abi.kind as u64)
            .put(38, 4, abi.source as u64)
    }
    /// How the function is given the mark: [`MarkForm`] as a number.
    pub const fn mark_form(self) -> u8 {
        self.get(20, 6) as u8
    }
    /// Position of the argument with the mark's name or range.
    pub const fn mark_arg(self) -> u8 {
        self.get(26, 4) as u8
    }
    /// Kind of the mark: one of the `MARK_*` constants of the records.
    pub const fn mark_kind(self) -> u16 {
        self.get(32, 4) as u16
    }
    /// Who makes the mark: [`MarkSource`] as a number.
    pub const fn mark_source(self) -> u16 {
        self.get(38, 4) as u16
    }
    /// Adds the number of an operator's signature. This uses the bits of operation, pointer and pointer mode, which an operator
    /// does not have.
    pub const fn with_signature(self, signature: u16) -> Cookie {
        self.put(20, 12, signature as u64)
    }
    /// Number of an operator's signature.
    pub const fn signature(self) -> u32 {
        self.get(20, 12) as u32
    }
    /// Number of the site.
    pub const fn site(self) -> u32 {
        self.get(0, 20) as u32
    }
    /// Number of the operation: an [`Op`], or a [`crate::RegionOp`].
    pub const fn op(self) -> u16 {
        self.get(20, 6) as u16
    }
    /// Position of the pointer argument.
    pub const fn ptr(self) -> u8 {
        self.get(26, 4) as u8
    }
    /// How the pointer is found: [`PtrMode`] as a number.
    pub const fn ptr_mode(self) -> u8 {
        self.get(30, 2) as u8
    }
    /// Position of the size argument.
    pub const fn size(self) -> u8 {
        self.get(32, 4) as u8
    }
    /// How the size is found: [`SizeMode`] as a number.
    pub const fn size_mode(self) -> u8 {
        self.get(36, 2) as u8
    }
    /// Position of the stream argument.
    pub const fn stream(self) -> u8 {
        self.get(38, 4) as u8
    }
    /// Position of the handle argument.
    pub const fn handle(self) -> u8 {
        self.get(42, 4) as u8
    }
    /// Whether the call writes the handle through its argument, as a result.
    pub const fn handle_is_result(self) -> bool {
        self.get(46, 1) == 1
    }
    /// Position of the extra argument (offset, flags or second result, depending on the operation).
    pub const fn extra(self) -> u8 {
        self.get(47, 4) as u8
    }
    /// Whether the sixth register argument of `record_trace` is the device.
    pub const fn torch_device(self) -> bool {
        self.get(51, 1) == 1
    }
    /// Whether the pool's id is passed by value behind the first six arguments of `record_trace`.
    pub const fn torch_pool(self) -> bool {
        self.get(52, 1) == 1
    }
    /// Whether the structure of torch_npu's report says which allocator reports.
    pub const fn usage_component(self) -> bool {
        self.get(53, 1) == 1
    }
}

const _: () = {
    let c = Cookie::new(0xabcde, 28)
        .with_ptr(3, PtrMode::Out)
        .with_size(1, SizeMode::Out)
        .with_stream(2)
        .with_handle(4, true)
        .with_extra(5)
        .with_torch(TorchAbi {
            device: true,
            pool: true,
        })
        .with_told(AscendExtra::Location)
        .with_apart();
    assert!(c.told() == 3 && c.apart());
    assert!(c.site() == 0xabcde && c.op() == 28 && c.ptr() == 3 && c.ptr_mode() == 2);
    assert!(c.size() == 1 && c.size_mode() == 3 && c.stream() == 2 && c.handle() == 4);
    assert!(c.handle_is_result() && c.extra() == 5 && c.torch_device() && c.torch_pool());
    assert!(!c.usage_component() && c.with_usage(true).usage_component());
    let m = Cookie::new(7, 0).with_mark(MarkAbi {
        form: MarkForm::OldString,
        arg: 1,
        kind: 3,
        source: MarkSource::Backward,
    });
    assert!(m.site() == 7 && m.mark_form() == 5 && m.mark_arg() == 1);
    assert!(m.mark_kind() == 3 && m.mark_source() == 4);
    let o = Cookie::new(9, 0).with_signature(4095);
    assert!(o.site() == 9 && o.signature() == 4095 && o.size() == NO_ARG);
    let n = Cookie::new(1, 2);
    assert!(n.ptr() == NO_ARG && n.size() == NO_ARG && n.stream() == NO_ARG);
    assert!(n.handle() == NO_ARG && n.extra() == NO_ARG && !n.torch_pool());
    assert!(n.told() == AscendExtra::Nothing as u8 && !n.apart());
};
