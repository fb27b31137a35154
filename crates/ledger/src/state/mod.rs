//! What is known of each traced process: its pools, the memory that runtime and driver gave, and everything that is
//! counted with them.
//!
//! Owns: the state that events change. Refuses: to judge whether memory grows (`growth`), to say where a step ends
//! (`steps`), and to answer questions (`questions`). Only two files here know of `growth` and `steps`: `process` owns
//! one of each, and `scene` carries them to where a block comes or goes.

pub(crate) mod columns;
pub(crate) mod device;
pub(crate) mod distribution;
pub(crate) mod driver;
pub(crate) mod given_back;
pub(crate) mod gone;
pub(crate) mod hardware;
pub(crate) mod labels;
pub(crate) mod loss;
pub(crate) mod marks;
pub(crate) mod membership;
pub(crate) mod pool;
pub(crate) mod process;
pub(crate) mod regions;
pub(crate) mod scene;
pub(crate) mod series;
pub(crate) mod shed;
pub(crate) mod stacks;
pub(crate) mod step_levels;
