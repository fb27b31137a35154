//! What is known of a block.

use serde::Deserialize;

/// A frame of the stack that allocated a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'f> {
    /// The function's name.
    pub function: &'f str,
    /// Its source file, or its library.
    pub file: &'f str,
}

/// How a tensor keeps a block alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// As its own memory.
    Tensor,
    /// As the memory of its gradient.
    Gradient,
    /// Saved by the autograd graph that made it, and by nothing else.
    Graph,
}

/// From where a block is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// From a module.
    Module,
    /// From a local variable of a function that runs.
    Local,
    /// From something that is not Python.
    Outside,
    /// From nowhere: it waits for the garbage collector.
    Garbage,
    /// No object was found.
    None,
    /// What held it is not known: it was freed before the objects were read, or they were not read. No rule asks for it.
    #[serde(skip)]
    Unknown,
}

/// Who allocated a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatedBy {
    /// A thread that runs the program's Python code.
    Program,
    /// A thread of the backward pass: C++ code, or the `backward` of a function in Python.
    Backward,
    /// A checkpoint that a thread of the backward pass computes again.
    Recompute,
    /// Other Python code that a thread of the backward pass called, as hooks are.
    Hook,
}

/// Whose thread freed a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FreedBy {
    /// One that runs the program's Python code.
    Program,
    /// One of the backward pass.
    Backward,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'f> {
    /// The stack that allocated it, innermost first.
    pub frames: &'f [Frame<'f>],
    /// The way on which it is held, with `[*]` for elements; empty where nothing holds it.
    pub holder: &'f str,
    /// The types of the objects on that way.
    pub types: &'f [&'f str],
    /// How it is held; `None` where nothing holds it.
    pub via: Option<Via>,
    /// From where it is held.
    pub origin: Origin,
    /// The labels that the program gave it, the outermost first.
    pub labels: &'f [&'f str],
    /// Whether it is in a private pool, as those of CUDA graphs are.
    pub is_in_private_pool: bool,
    /// Who allocated it, where that is known.
    pub allocated_by: Option<AllocatedBy>,
    /// Whose thread freed it, where it has been freed since and that is known.
    pub freed_by: Option<FreedBy>,
    /// The component of Ascend's software that has it from the driver; empty for memory of a pool.
    pub component: &'f str,
}
