//! What the devices of a process are.
//!
//! Owns: what follows from where the process runs, and what of NVML's words about an ordinal cannot be true. The environment of the
//! process's start says which device an ordinal means, but a program can set another one before it first uses a device. NVML names the
//! devices on which a process has a context, without ordinals. If the process uses one ordinal that is not known and has a context on one
//! device that is not known, they are the same. Refuses: to guess where there are several.

use super::device::{Device, Devices};
use crate::event::{DeviceTotal, Hardware};

impl Device {
    /// What it is, if that is certain.
    pub(crate) fn hardware(&self) -> Option<&Hardware> {
        let told = self.nvml.as_ref().and_then(|told| told.hardware.as_ref());
        self.proven.as_ref().or(told)
    }

    /// Whether the process certainly has a context on it. Physical memory alone can be on a device without one.
    fn in_use(&self) -> bool {
        self.pool.seen || self.driver.held().bytes > self.driver.physical.bytes
    }
}

impl Devices {
    /// Takes in on which devices the process runs.
    pub(crate) fn run_on(&mut self, places: &[Hardware]) {
        self.runs_on = places.to_vec();
        let elsewhere = |row: &Device| row.ordinal.is_none() && row.driver.held().bytes > 0;
        if self.rows.iter().any(elsewhere) {
            return;
        }
        let known: Vec<&Hardware> = self.rows.iter().flat_map(|row| &row.proven).collect();
        let mut places = places.iter().filter(|place| !known.contains(place));
        let place = places.next().cloned().filter(|_| places.next().is_none());
        let unknown =
            |row: &&mut Device| row.ordinal.is_some() && row.proven.is_none() && row.in_use();
        let mut rows = self.rows.iter_mut().filter(unknown);
        let row = rows.next();
        if let Some(row) = row
            && rows.next().is_none()
        {
            row.proven = place;
        }
        for at in 0..self.rows.len() {
            let told = self.rows[at].nvml.clone();
            if let Some(told) = told.filter(|told| self.contradict(told)) {
                self.disown(&told);
            }
        }
    }

    /// Forgets what NVML said of this ordinal: the numbers are of another device.
    pub(crate) fn disown(&mut self, told: &DeviceTotal) {
        let mut rows = self.rows.iter_mut();
        if let Some(row) = rows.find(|row| row.ordinal == Some(told.device)) {
            (row.nvml, row.context_bytes, row.free_bytes) = (None, None, None);
        }
    }

    /// Whether what NVML says of an ordinal is of another device than the one that the process means by it.
    pub(crate) fn contradict(&self, told: &DeviceTotal) -> bool {
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row.ordinal == Some(told.device));
        let Some((row, hardware)) = row.zip(told.hardware.as_ref()) else {
            return false;
        };
        match &row.proven {
            Some(proven) => proven != hardware,
            None => row.in_use() && !self.runs_on.is_empty() && !self.runs_on.contains(hardware),
        }
    }
}
