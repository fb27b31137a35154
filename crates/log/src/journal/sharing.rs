//! Makes room in a full journal so that each process keeps its share (see `share`).

use crate::journal::checkpoint::Shares;
use crate::journal::retain;
use crate::journal::segment::{CHECKPOINT, ENDING, UNFINISHED, remove_if_there};
use crate::journal::share::{Content, MakeRoom, next_step};
use crate::journal::tally::Tally;
use crate::journal::thin::Thinning;
use std::collections::BTreeMap;
use std::path::Path;

/// The contents of the segments of a journal, and the segment that is being rewritten.
#[derive(Default)]
pub(crate) struct Sharing {
    contents: BTreeMap<u64, Content>,
    thinning: Option<Thinning>,
    /// Why a segment that still exists could not be rewritten.
    problem: Option<String>,
    /// Set if a next step may be possible.
    is_due: bool,
}

/// The room that is wanted, and where.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The journal's directory; the next field is the epoch's.
    pub(crate) dir: &'a Path,
    pub(crate) epoch_dir: &'a Path,
    /// Number of the newest segment that can be read without those before it. This segment stays.
    pub(crate) newest: u64,
    /// Bytes that the next segments and their checkpoints will need.
    pub(crate) needed: u64,
    /// Maximum size of the journal in bytes.
    pub(crate) most: u64,
    /// Segments are joined up to this size in bytes.
    pub(crate) small: u64,
}

impl Sharing {
    /// Notes that records were written to a segment, the number of the first of them, and that they take `packed` bytes there.
    pub(crate) fn written(&mut self, index: u64, first: u64, tally: &Tally, packed: u64) {
        let content = self.contents.entry(index).or_default();
        content.add(first, tally, packed);
    }

    /// What segments hold that were written before this journal was opened, and are still there.
    pub(crate) fn learnt(&mut self, segments: Vec<(u64, Content)>) {
        for (index, content) in segments {
            self.contents.entry(index).or_insert(content);
        }
        self.is_due = true;
    }

    /// Notes the checkpoint of a segment.
    pub(crate) fn got_checkpoint(&mut self, index: u64, shares: Shares) {
        self.contents.entry(index).or_default().checkpoint = shares;
        self.is_due = true;
    }

    /// Notes that segments were removed.
    pub(crate) fn removed(&mut self, indexes: &[u64]) {
        for index in indexes {
            self.contents.remove(index);
        }
        let mut left = self.contents.values();
        if !left.any(|content| content.is_kept_as_it_is) {
            self.problem = None;
        }
    }

    /// Why a segment that still exists could not be rewritten, if there is one.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Puts a rewritten segment in its place, and begins with the next one until there is enough room. With `wait`,
    /// waits for all of them.
    pub(crate) fn go_on(&mut self, wanted: Wanted<'_>, wait: bool) {
        while self.is_due || self.thinning.is_some() {
            let is_ready = |thinning: &mut Thinning| wait || thinning.is_finished();
            if let Some(thinning) = self.thinning.take_if(is_ready) {
                self.put_in_place(wanted.epoch_dir, thinning);
                self.is_due = true;
            }
            if self.thinning.is_some() {
                return;
            }
            self.is_due = false;
            if let Err(error) = self.next(wanted) {
                self.problem = Some(format!("{}: {error}", wanted.epoch_dir.display()));
            }
        }
    }

    /// Waits for the segment that is being rewritten, and begins with no other.
    pub(crate) fn finish(&mut self, epoch_dir: &Path) {
        if let Some(thinning) = self.thinning.take() {
            self.put_in_place(epoch_dir, thinning);
        }
    }

    /// Begins the next step that makes room.
    fn next(&mut self, wanted: Wanted<'_>) -> std::io::Result<()> {
        let bytes = retain::bytes(wanted.dir, wanted.epoch_dir, wanted.most)?;
        let most = wanted.most.saturating_sub(bytes.earlier_kept);
        let own = bytes.own;
        // Segments of earlier epochs beyond their share are removed first (see `retain::make_room`).
        if bytes.earlier > 0 || own.saturating_add(wanted.needed) <= most {
            return Ok(());
        }
        let path = |index: u64| wanted.epoch_dir.join(format!("{index:06}.{ENDING}"));
        let mut own = own;
        let mut contents = self.contents.clone();
        let mut oldest = Vec::new();
        while own.saturating_add(wanted.needed) > most {
            match next_step(&contents, wanted.newest, wanted.small) {
                None => break,
                // The segment is only removed when its room is needed, so that questions can use it until then.
                Some(MakeRoom::Remove(index)) => {
                    oldest.push(index);
                    let gone = contents.remove(&index);
                    own = own.saturating_sub(gone.map_or(0, |content| content.bytes()));
                }
                Some(MakeRoom::Thin {
                    index,
                    leave_out,
                    join,
                }) => {
                    // The older segments are of no use to the processes that are left out of this one: a reader can
                    // take these processes up again only in a later segment.
                    for index in oldest {
                        retain::remove(&path(index))?;
                        self.contents.remove(&index);
                    }
                    let sources = join.into_iter().chain([index]);
                    let sources = sources.map(|index| (index, path(index))).collect();
                    let new = path(join.unwrap_or(index)).with_added_extension(UNFINISHED);
                    self.thinning = Some(Thinning::begin(sources, leave_out, new)?);
                    break;
                }
            }
        }
        Ok(())
    }

    fn put_in_place(&mut self, epoch_dir: &Path, thinning: Thinning) {
        let (sources, new) = (thinning.sources.clone(), thinning.new.clone());
        let written = thinning.finish();
        // One of the sources may have been removed in the meantime, to keep the bound. Then the new file must not bring
        // its records back.
        if !sources
            .iter()
            .all(|index| self.contents.contains_key(index))
        {
            let _ = std::fs::remove_file(&new);
            return;
        }
        let placed = written
            .map_err(|error| error.to_string())
            .and_then(|content| {
                self.place(epoch_dir, &sources, &new, content)
                    .map_err(|error| format!("{}: {error}", new.display()))
            });
        if let Err(problem) = placed {
            self.problem = Some(problem);
            // Return the first problem, whether or not this removal succeeds.
            let _ = std::fs::remove_file(&new);
            for index in &sources {
                if let Some(content) = self.contents.get_mut(index) {
                    content.is_kept_as_it_is = true;
                }
            }
        }
    }

    /// Puts the new segment in the place of its first source, and removes the other sources.
    fn place(
        &mut self,
        epoch_dir: &Path,
        sources: &[u64],
        new: &Path,
        content: Content,
    ) -> std::io::Result<()> {
        let Some((first, others)) = sources.split_first() else {
            return Ok(());
        };
        let placed = new.with_extension("");
        std::fs::rename(new, &placed)?;
        // The new file contains the checkpoint.
        remove_if_there(&placed.with_extension(CHECKPOINT))?;
        self.contents.insert(*first, content);
        for index in others {
            self.contents.remove(index);
            retain::remove(&epoch_dir.join(format!("{index:06}.{ENDING}")))?;
        }
        Ok(())
    }
}
