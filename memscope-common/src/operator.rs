//! What the programs tell of PyTorch's operators: which one is entered and left, and the memory of which tensors it is
//! given and returns.

use crate::record::{RecordHeader, record};

/// `OperatorRecord::what`: an operator was entered that no other one of the thread has called. What it is given follows.
pub const OPERATOR_BEGIN: u16 = 1;
/// `OperatorRecord::what`: what an operator is given, also one that another one has called.
pub const OPERATOR_GIVEN: u16 = 2;
/// `OperatorRecord::what`: what an operator returns that is new.
pub const OPERATOR_RETURNED: u16 = 3;
/// `OperatorRecord::what`: the thread has left the operator that began. `storages` has what it returns that is new.
pub const OPERATOR_END: u16 = 4;

/// Addresses in one [`OperatorRecord`].
pub const STORAGES_TOLD: usize = 16;

record! {
    /// An operator of PyTorch was entered or left, or more of the memory that it is given.
    #[kind(KIND_OPERATOR = 16)]
    #[first_len(192)]
    pub struct OperatorRecord {
        /// Header that all records have.
        pub header: RecordHeader,
        /// Number that the daemon gave to the operator's function.
        pub site: u32,
        /// One of the `OPERATOR_*` constants.
        pub what: u16,
        /// Number of addresses in `storages`.
        pub count: u16,
        /// Bit n says that the operator may write to the n-th of them; it only reads others.
        pub writes: u32,
        /// Tensors of which the memory is not told, because they are too many, or cannot be read.
        pub untold: u32,
        /// Addresses of the memory that belongs to the tensors. Memory of the CPU is left out.
        pub storages: [u64; STORAGES_TOLD],
    }
}

/// Signatures that the programs can be told of: functions whose tensors are at the same places share one. Number 0 is that of a
/// function without tensors.
pub const SIGNATURES: u32 = 4096;
/// Most arguments with tensors of a signature.
pub const OPERANDS: usize = 16;

/// How an argument holds tensors, as in [`operand`].
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperandForm {
    /// The word is the address of a tensor.
    Tensor = 0,
    /// The word is the address of a tensor that may be missing: a tensor, and behind it whether it is there.
    Maybe = 1,
    /// Two words: the address of the first tensor, and how many there are.
    Array = 2,
    /// The word is the address of a `c10::IListRef<at::Tensor>`.
    ListRef = 3,
    /// The word is the address of a `c10::List`, whose elements are `c10::IValue`s.
    List = 4,
}

/// An argument with tensors: where its word is (0 to 5: a register; from 6 on: a word of the stack above the return address), how
/// it holds them, and whether the operator may write to them.
pub const fn operand(place: u8, form: OperandForm, writes: bool) -> u32 {
    place as u32 | (form as u32) << 8 | (writes as u32) << 16
}

/// First place that is a word of the stack.
pub const OPERAND_STACK: u32 = 6;

/// `Signature::returns`: nothing that is new.
pub const RETURNS_NOTHING: u32 = 0;
/// `Signature::returns`: a vector of tensors. Any other number is that of the tensors that lie one behind the other.
pub const RETURNS_VECTOR: u32 = u32::MAX;

/// What the programs must know of an operator's function.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature {
    /// Number of entries of `operands` that are in use.
    pub count: u32,
    /// New tensors that the function returns, at the address that it returns.
    pub returns: u32,
    /// The arguments with tensors: [`operand`].
    pub operands: [u32; OPERANDS],
}

/// Most libraries with a table of virtual functions of `c10::StorageImpl`.
pub const STORAGE_TABLES: usize = 4;

/// What the programs must know of a process's PyTorch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageEntry {
    /// Addresses of tables of virtual functions of `c10::StorageImpl`. One of them is the first word of the memory of a tensor: before
    /// PyTorch 2.9 several libraries had such a table, and which one is used is the dynamic linker's choice. 0: there is no further one.
    pub tables: [u64; STORAGE_TABLES],
    /// First address of torch_npu's library, and the one behind it. It has a class of its own for the memory of tensors, whose table
    /// is somewhere in it.
    pub npu: [u64; 2],
}

/// The operator that a thread has entered and not yet left, and that no other one has called.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorCall {
    /// Stack pointer at the entry.
    pub sp: u64,
    /// Where it returns to. When an exception has ended the operator, something else will be there.
    pub returns_to: u64,
}

const _: () = {
    assert!(core::mem::size_of::<Signature>() == 72);
    assert!(STORAGES_TOLD <= 32);
};
