//! The course of a pool, from its trace and what was there at the end.

use crate::picture::{Action, Block, Entry, Known, Picture, State, Trace};
use crate::room::Room;
use std::collections::HashMap;

/// To what PyTorch's pool rounds up: the size of a block that is gone is not in the trace.
const ROUNDED_TO: u64 = 512;

/// One block, from its coming to its going.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) address: u64,
    /// Bytes that were asked for.
    pub(crate) requested: u64,
    /// Bytes that were handed out.
    pub(crate) size: u64,
    pub(crate) stack: Option<u32>,
    /// The entry of its coming; `None`: it was there before.
    pub(crate) born: Option<usize>,
    /// The entry of its going; `None`: it is still there.
    pub(crate) gone: Option<usize>,
}

impl Life {
    /// Whether it is there after this entry; `None` stands for the time before the first.
    pub(crate) fn is_at(&self, moment: Option<usize>) -> bool {
        let has_come = self.born.is_none() || self.born <= moment;
        let has_gone = self
            .gone
            .is_some_and(|gone| moment.is_some_and(|now| gone <= now));
        has_come && !has_gone
    }
}

/// The levels after an entry, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    /// Microseconds since 1970.
    pub(crate) time_us: Option<u64>,
    /// Sum of what was asked for of what is handed out.
    pub(crate) requested: u64,
    /// Sum of what is handed out.
    pub(crate) in_use: u64,
    /// Sum of the segments.
    pub(crate) reserved: u64,
    /// What is free, as gaps between blocks.
    pub(crate) free: u64,
    /// The largest of these gaps.
    pub(crate) largest_free: u64,
}

/// The course of one device.
#[derive(Debug)]
pub(crate) struct Course<'p> {
    pub(crate) device: i32,
    pub(crate) entries: &'p [Entry],
    pub(crate) lives: Vec<Life>,
    /// Which life each entry is the beginning or the end of.
    of_entry: Vec<Option<usize>>,
    room: Room,
    first: Levels,
    /// What was reserved follows from the trace.
    has_reserved: bool,
}

impl<'p> Course<'p> {
    /// Puts the trace of a device and its blocks together.
    pub(crate) fn of(picture: &'p Picture, trace: &'p Trace) -> Course<'p> {
        let entries = &trace.entries[..];
        let here = picture
            .segments
            .iter()
            .filter(|segment| segment.device == trace.device);
        let is_there = |block: &&Block| block.state != State::Inactive;
        let at_end: HashMap<u64, &Block> = here
            .clone()
            .flat_map(|segment| segment.blocks.iter().filter(is_there))
            .map(|block| (block.address, block))
            .collect();
        let mut course = Course {
            device: trace.device,
            entries,
            lives: Vec::new(),
            of_entry: vec![None; entries.len()],
            room: Room::default(),
            first: Levels::default(),
            has_reserved: trace.known == Known::All,
        };
        course.follow(&at_end);
        let sizes = here.clone().map(|segment| segment.size);
        let mut reserved = sizes.fold(0, u64::saturating_add);
        for segment in here {
            if !segment.expandable {
                course.room.fence(segment.address, segment.size);
            }
            course.room.give(segment.address, segment.size);
        }
        for entry in entries.iter().rev() {
            let undone = match entry.action {
                Action::Grow => Action::Shrink,
                Action::Shrink => Action::Grow,
                Action::Map => Action::Unmap,
                Action::Unmap => Action::Map,
                Action::Alloc | Action::Free | Action::Other => continue,
            };
            course.reserve(undone, entry, &mut reserved);
        }
        for life in course.lives.iter().filter(|life| life.born.is_none()) {
            course.room.take(life.address, life.size);
            course.first.requested = course.first.requested.saturating_add(life.requested);
            course.first.in_use = course.first.in_use.saturating_add(life.size);
        }
        course.first.reserved = reserved;
        course.first.time_us = entries.first().and_then(|entry| entry.time_us);
        course
    }

    /// The pool took memory from the driver, or gave it back.
    fn reserve(&mut self, action: Action, entry: &Entry, reserved: &mut u64) {
        let (address, size) = (entry.address, entry.size);
        match action {
            Action::Grow | Action::Map => {
                if action == Action::Grow {
                    self.room.fence(address, size);
                }
                self.room.give(address, size);
                *reserved = reserved.saturating_add(size);
            }
            Action::Shrink | Action::Unmap => {
                self.room.take(address, size);
                if action == Action::Shrink {
                    self.room.unfence(address, size);
                }
                *reserved = reserved.saturating_sub(size);
            }
            Action::Alloc | Action::Free | Action::Other => {}
        }
    }

    /// Finds the lives of all blocks.
    fn follow(&mut self, at_end: &HashMap<u64, &Block>) {
        let rounded = |size: u64| {
            size.max(1)
                .checked_next_multiple_of(ROUNDED_TO)
                .unwrap_or(size)
        };
        let mut open: HashMap<u64, usize> = HashMap::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let life = Life {
                address: entry.address,
                requested: entry.size,
                size: rounded(entry.size),
                stack: entry.stack,
                born: Some(at),
                gone: None,
            };
            match entry.action {
                Action::Alloc => {
                    let place = self.lives.len();
                    if let Some(before) = open.insert(entry.address, place) {
                        // Its free was not recorded: it was over before this one came.
                        self.end(before, at);
                    }
                    self.lives.push(life);
                    self.mark(at, place);
                }
                Action::Free => match open.remove(&entry.address) {
                    Some(place) => {
                        self.end(place, at);
                        self.mark(at, place);
                    }
                    None => {
                        let place = self.lives.len();
                        // The frames of a free may be those of whoever freed it.
                        self.lives.push(Life {
                            born: None,
                            gone: Some(at),
                            stack: None,
                            ..life
                        });
                        self.mark(at, place);
                    }
                },
                _ => {}
            }
        }
        let mut lasting: Vec<&&Block> = at_end.values().collect();
        lasting.sort_unstable_by_key(|block| block.address);
        for block in lasting {
            match open.remove(&block.address) {
                Some(place) => {
                    if let Some(life) = self.lives.get_mut(place) {
                        life.size = block.size;
                        life.stack = life.stack.or(block.stack);
                    }
                }
                None => self.lives.push(Life {
                    address: block.address,
                    requested: block.requested.unwrap_or(block.size),
                    size: block.size,
                    stack: block.stack,
                    born: None,
                    gone: None,
                }),
            }
        }
        // What the trace says is there, and the blocks do not have: its end was not recorded.
        for place in open.into_values() {
            self.end(place, self.entries.len());
        }
    }

    fn end(&mut self, place: usize, at: usize) {
        if let Some(life) = self.lives.get_mut(place) {
            life.gone = Some(at);
        }
    }

    fn mark(&mut self, at: usize, place: usize) {
        if let Some(of) = self.of_entry.get_mut(at) {
            *of = Some(place);
        }
    }

    /// The life that an entry is the beginning or the end of.
    pub(crate) fn life_of(&self, at: usize) -> Option<&Life> {
        let place = self.of_entry.get(at).copied().flatten()?;
        self.lives.get(place)
    }

    /// Calls `tell` with the levels before the first entry (`None`) and after each one, and returns the highest.
    pub(crate) fn walk(
        mut self,
        mut tell: impl FnMut(&Self, Option<usize>, &Levels),
    ) -> Walked<'p> {
        let mut levels = self.first;
        let free = |course: &mut Self, levels: &mut Levels| {
            levels.free = course.room.total();
            levels.largest_free = course.room.largest();
        };
        free(&mut self, &mut levels);
        tell(&self, None, &levels);
        let mut peak = (None, levels);
        let mut rounded_peak = (None, levels);
        let mut reserved_is_known = self.has_reserved && levels.in_use <= levels.reserved;
        // Lives whose end was not recorded end with the entry that shows it.
        let mut silent: Vec<(usize, usize)> = self
            .lives
            .iter()
            .enumerate()
            .filter_map(|(place, life)| Some((life.gone?, place)))
            .filter(|(at, place)| {
                !self
                    .entries
                    .get(*at)
                    .is_some_and(|entry| entry.action == Action::Free)
                    || self.of_entry.get(*at).copied().flatten() != Some(*place)
            })
            .collect();
        silent.sort_unstable();
        let mut silent = silent.into_iter().peekable();
        for (at, entry) in self.entries.iter().enumerate() {
            levels.time_us = entry.time_us.or(levels.time_us);
            let mut ended = Vec::new();
            while let Some((_, place)) = silent.next_if(|(gone, _)| *gone <= at) {
                ended.extend(self.lives.get(place).copied());
            }
            let life = self.life_of(at).copied();
            if entry.action == Action::Free {
                ended.extend(life);
            }
            self.reserve(entry.action, entry, &mut levels.reserved);
            for life in ended {
                self.room.give(life.address, life.size);
                levels.requested = levels.requested.saturating_sub(life.requested);
                levels.in_use = levels.in_use.saturating_sub(life.size);
            }
            if let (Action::Alloc, Some(life)) = (entry.action, life) {
                self.room.take(life.address, life.size);
                levels.requested = levels.requested.saturating_add(life.requested);
                levels.in_use = levels.in_use.saturating_add(life.size);
            }
            free(&mut self, &mut levels);
            if levels.requested > peak.1.requested {
                peak = (Some(at), levels);
            }
            if levels.in_use > rounded_peak.1.in_use {
                rounded_peak = (Some(at), levels);
            }
            // More than was reserved cannot have been in use: entries of segments are missing.
            reserved_is_known &= levels.in_use <= levels.reserved;
            tell(&self, Some(at), &levels);
        }
        Walked {
            course: self,
            peak_at: peak.0,
            peak: peak.1,
            rounded_peak_at: rounded_peak.0,
            rounded_peak: rounded_peak.1,
            reserved_is_known,
        }
    }
}

/// A course that was walked to its end.
#[derive(Debug)]
pub(crate) struct Walked<'p> {
    pub(crate) course: Course<'p>,
    /// The entry after which most was handed out, the first of several; `None`: before the first entry.
    pub(crate) peak_at: Option<usize>,
    pub(crate) peak: Levels,
    /// The entry after which most was in use, with what the pool rounds up.
    pub(crate) rounded_peak_at: Option<usize>,
    pub(crate) rounded_peak: Levels,
    /// What was reserved follows from the trace. Otherwise the levels' `reserved` and what is free of it mean nothing.
    pub(crate) reserved_is_known: bool,
}

impl Walked<'_> {
    /// What was there at the peak.
    pub(crate) fn at_peak(&self) -> impl Iterator<Item = &Life> {
        let at = self.peak_at;
        self.course.lives.iter().filter(move |life| life.is_at(at))
    }
}
