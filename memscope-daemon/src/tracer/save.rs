//! Writes down what is traced, when it has changed.

use std::time::{Duration, Instant};

use memscope_site::FileIdentity;

use super::Tracer;
use super::kept::{FILE, FORMAT, Kept, KeptProcess, write};
use crate::probe::calibrate::Layout;

/// Longest time for which a change is not on disk that nobody waits for.
const SAVE: Duration = Duration::from_secs(1);

impl Tracer {
    /// Writes what has changed since the last time, at most once a second.
    pub(super) fn save_sometimes(&mut self) {
        if self.keeping.looked.elapsed() >= SAVE {
            self.save();
        }
    }

    /// Writes what has changed. After an attach or a detach this comes before the answer.
    pub(super) fn save(&mut self) {
        self.keeping.looked = Instant::now();
        let kept = self.kept();
        let bytes = match serde_json::to_vec(&kept) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(%error, "what is traced could not be put into words");
                return;
            }
        };
        if bytes == self.keeping.written {
            return;
        }
        match write(&self.keeping.state_dir, &bytes) {
            Ok(()) => {
                self.keeping.written = bytes;
                self.keeping.failed = false;
            }
            Err(error) => {
                if !self.keeping.failed {
                    tracing::error!(
                        %error,
                        path = %self.keeping.state_dir.join(FILE).display(),
                        "what is traced could not be written down: after a crash memscoped would not know of it"
                    );
                }
                self.keeping.failed = true;
            }
        }
    }

    fn kept(&self) -> Kept {
        let mut sites: Vec<(FileIdentity, u64, String, u32)> = self
            .sites
            .iter()
            .map(|((file, offset, name), number)| (file.clone(), *offset, name.clone(), *number))
            .collect();
        // The same content is to give the same bytes.
        sites.sort_by_key(|(_, _, _, number)| *number);
        let mut layouts: Vec<(FileIdentity, Layout)> = self
            .layouts
            .iter()
            .map(|(file, layout)| (file.clone(), *layout))
            .collect();
        layouts.sort_by(|(one, _), (other, _)| one.cmp(other));
        Kept {
            format: FORMAT,
            boot_id: self.keeping.boot_id.clone(),
            epoch: self.keeping.epoch,
            stopped: self.keeping.stopped,
            pins: self.kernel.pins().map(|pins| pins.dir().to_owned()),
            shapes: self.keeping.shapes.clone(),
            next_handle: self.next_handle,
            next_rule: self.next_rule,
            rules: self.rules.clone(),
            sites,
            layouts,
            processes: self.traced.values().map(KeptProcess::of).collect(),
        }
    }
}
