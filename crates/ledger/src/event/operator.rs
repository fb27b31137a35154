//! What an operator of the framework does, and the kernels that are launched.

use std::sync::Arc;

/// Which part of an operator's work an event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperatorPart {
    /// The thread has entered an operator that no other one has called.
    Begin,
    /// The operator, or one that it has called, is given this memory.
    Given,
    /// An operator that another one has called returns this memory, which is new.
    Returned,
    /// The thread has left the operator that began. It returns this memory, which is new.
    End,
}

/// Memory that a tensor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Address at which the memory begins.
    pub ptr: u64,
    /// Whether the operator may write to it; if not, it only reads.
    pub writes: bool,
}

/// An operator of the framework begins, ends, or is told to use memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Name with the overload, as PyTorch writes it: `add.Tensor`.
    pub name: Arc<str>,
    /// The part of its work.
    pub part: OperatorPart,
    /// Memory of a device that belongs to tensors of the operator.
    pub memory: Vec<Touched>,
    /// Tensors of which the memory is not known.
    pub unknown: u32,
}

/// A kernel or a graph is launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The driver's function that launches.
    pub function: Arc<str>,
    /// Name of the kernel, as it stands in its program. `None` for a graph, and where it is not known.
    pub kernel: Option<Arc<str>>,
}
