//! The stacks of a file, each once.

use crate::reader::{Pickle, Value};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Most frames that are read of a stack.
pub const MOST_FRAMES: usize = 1024;

/// The different stacks of a file. `F` is what is kept of a frame.
#[derive(Debug)]
pub struct Stacks<F> {
    /// The stacks, innermost frame first. None is empty.
    pub all: Vec<Arc<[F]>>,
    by_frames: HashMap<Arc<[F]>, u32>,
    /// By the number of the list of frames: many blocks refer to one list.
    by_list: HashMap<u32, Option<u32>>,
    /// By the number of the dictionary: many lists refer to one frame, and a dictionary is searched entry by entry.
    by_frame: HashMap<u32, F>,
    room: usize,
}

impl<F> Default for Stacks<F> {
    fn default() -> Stacks<F> {
        Stacks::within(usize::MAX)
    }
}

impl<F> Stacks<F> {
    /// No stacks yet, and room for so many frames of all different ones together: what does not fit is not known.
    pub fn within(room: usize) -> Stacks<F> {
        Stacks {
            all: Vec::new(),
            by_frames: HashMap::new(),
            by_list: HashMap::new(),
            by_frame: HashMap::new(),
            room,
        }
    }
}

impl<F: Clone + Eq + Hash> Stacks<F> {
    /// Index of a stack in [`Stacks::all`], given its frames; `None` if there are none. Outer frames may be cut off.
    pub fn add(&mut self, frames: impl Iterator<Item = F>) -> Option<u32> {
        let most = MOST_FRAMES.min(self.room);
        let frames: Arc<[F]> = frames.take(most).collect();
        if frames.is_empty() {
            return None;
        }
        if let Some(known) = self.by_frames.get(&frames) {
            return Some(*known);
        }
        let place = u32::try_from(self.all.len()).ok()?;
        self.room -= frames.len();
        self.all.push(Arc::clone(&frames));
        self.by_frames.insert(frames, place);
        Some(place)
    }

    /// The same for a list of frames in a pickle. `read` reads a frame.
    pub fn of(
        &mut self,
        pickle: &Pickle,
        frames: Option<Value>,
        mut read: impl FnMut(Value) -> F,
    ) -> Option<u32> {
        let Some(list @ Value::Node(number)) = frames else {
            return None;
        };
        if let Some(known) = self.by_list.get(&number) {
            return *known;
        }
        let mut known = std::mem::take(&mut self.by_frame);
        let list = pickle.list(list).unwrap_or(&[]).iter();
        let place = self.add(list.map(|frame| match frame {
            Value::Node(number) => {
                let known = known.entry(*number).or_insert_with(|| read(*frame));
                known.clone()
            }
            _ => read(*frame),
        }));
        self.by_frame = known;
        self.by_list.insert(number, place);
        place
    }
}
