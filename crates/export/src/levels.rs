//! Walks through a history and reports the level of each device and private pool whenever it changes.

use crate::history::History;
use crate::private_pool::{DEFAULT_POOL, Pool};
use std::collections::BTreeMap;

/// Something that has a level: a device as a whole, or one private pool of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) device: i32,
    /// `None`: the whole device.
    pub(crate) pool: Option<Pool>,
}

/// New levels of a holder at a moment, in bytes. `None` means that this level has not changed, or is not known yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelChange {
    pub(crate) time_ns: u64,
    /// Index into `Levels::holders`.
    pub(crate) holder: usize,
    pub(crate) allocated: Option<u64>,
    pub(crate) reserved: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    allocated: i64,
    reserved: i64,
    changed: (bool, bool),
}

/// The levels of a history.
pub(crate) struct Levels<'a> {
    history: &'a History,
    pub(crate) holders: Vec<Holder>,
    /// For each place of the history: the index of its device's holder and, if the place is a private pool, of that
    /// pool's own holder.
    of_place: Vec<(usize, Option<usize>)>,
    start: Vec<Level>,
}

impl<'a> Levels<'a> {
    pub(crate) fn of(history: &'a History) -> Levels<'a> {
        let mut index = BTreeMap::new();
        let whole = |device| Holder { device, pool: None };
        for device in history.from_ns.keys() {
            index.insert(whole(*device), 0);
        }
        for place in history.places.iter().filter(|p| p.pool != DEFAULT_POOL) {
            let pool = Some(place.pool);
            let device = place.device;
            index.insert(Holder { device, pool }, 0);
        }
        for (at, place) in index.values_mut().enumerate() {
            *place = at;
        }
        let mut start = vec![Level::default(); index.len()];
        let of_place: Vec<(usize, Option<usize>)> = history
            .places
            .iter()
            .map(|place| {
                let own = Holder {
                    device: place.device,
                    pool: Some(place.pool),
                };
                let device = index.get(&whole(place.device)).copied();
                (device.unwrap_or(usize::MAX), index.get(&own).copied())
            })
            .collect();
        for (place, (device, own)) in history.places.iter().zip(&of_place) {
            for holder in [Some(*device), *own].into_iter().flatten() {
                if let Some(level) = start.get_mut(holder) {
                    level.allocated += place.allocated;
                    level.reserved += place.reserved;
                }
            }
        }
        Levels {
            history,
            holders: index.into_keys().collect(),
            of_place,
            start,
        }
    }

    /// Calls `tell` with the levels of each holder at the beginning of its device's trace, whenever they change (once
    /// per moment), and at the end.
    pub(crate) fn walk<E>(
        &self,
        mut tell: impl FnMut(LevelChange) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut levels = self.start.clone();
        let mut touched: Vec<usize> = Vec::new();
        let steps = &self.history.steps;
        for (at, step) in steps.iter().enumerate() {
            let of_place = self.of_place.get(step.place).copied();
            let (device, own) = of_place.unwrap_or((usize::MAX, None));
            for holder in [Some(device), own].into_iter().flatten() {
                let Some(level) = levels.get_mut(holder) else {
                    continue;
                };
                level.allocated += step.allocated;
                level.reserved += step.reserved;
                let nothing = step.allocated == 0 && step.reserved == 0;
                level.changed.0 |= step.allocated != 0 || nothing;
                level.changed.1 |= step.reserved != 0 || nothing;
                if !touched.contains(&holder) {
                    touched.push(holder);
                }
            }
            if steps.get(at + 1).is_some_and(|s| s.time_ns == step.time_ns) {
                continue;
            }
            for holder in touched.drain(..) {
                let Some(level) = levels.get_mut(holder) else {
                    continue;
                };
                let (allocated, reserved) = std::mem::take(&mut level.changed);
                let of = self.holders.get(holder).map(|holder| holder.device);
                let at_end = of.is_some_and(|of| self.history.reserved_at_end.contains(&of));
                let reserved = reserved && (!at_end || step.time_ns >= self.history.as_of_ns);
                // A level can be below zero only after a loss.
                let positive = |level| u64::try_from(level).unwrap_or(0);
                tell(LevelChange {
                    time_ns: step.time_ns,
                    holder,
                    allocated: allocated.then(|| positive(level.allocated)),
                    reserved: reserved.then(|| positive(level.reserved)),
                })?;
            }
        }
        Ok(())
    }
}
