//! Many nodes asked at once.
//!
//! Owns: the list of nodes, how many are asked at a time and for how long, the second question to a slow one, the sizes
//! of answers, and what is told of the nodes that did not answer. Refuses: what is asked, and what is made of the
//! answers; both are a command's.

mod ask;
mod asking;
mod k8s;
mod nodes;
mod pace;
mod processes;
mod program;
mod replies;
mod slurm;
mod stream;

pub(crate) use ask::Fleet;
pub(crate) use asking::Asking;
pub(crate) use processes::{Told, list, of_processes, pid_of};
pub(crate) use replies::{Replies, not_asked, refused, show, show_processes};
pub(crate) use stream::Came;
