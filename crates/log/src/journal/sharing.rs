//! Makes room in a journal that is full, so that each process keeps its share (see `share`).

use crate::journal::checkpoint::Shares;
use crate::journal::retain;
use crate::journal::segment::{CHECKPOINT, ENDING, UNFINISHED};
use crate::journal::share::{Content, MakeRoom, next_step};
use crate::journal::tally::Tally;
use crate::journal::thin::Thinning;
use std::collections::BTreeMap;
use std::path::Path;

/// What the segments of a journal have, and which of them is being written anew.
#[derive(Default)]
pub(crate) struct Sharing {
    contents: BTreeMap<u64, Content>,
    thinning: Option<Thinning>,
    /// Why a segment that is still there was not written anew.
    problem: Option<String>,
    /// There may be something to do.
    is_due: bool,
}

/// Room that is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The journal's directory, and the one of the epoch.
    pub(crate) dir: &'a Path,
    pub(crate) epoch_dir: &'a Path,
    /// The newest segment that can be read without those before it: it stays.
    pub(crate) newest: u64,
    /// Bytes that the next segments and their checkpoints will take.
    pub(crate) needed: u64,
    /// Most bytes of the journal.
    pub(crate) most: u64,
    /// Segments up to this size are joined.
    pub(crate) small: u64,
}

impl Sharing {
    /// Records were written to a segment, and took so many bytes there.
    pub(crate) fn written(&mut self, index: u64, tally: &Tally, packed: u64) {
        self.contents.entry(index).or_default().add(tally, packed);
    }

    /// A segment has got its checkpoint.
    pub(crate) fn got_checkpoint(&mut self, index: u64, shares: Shares) {
        self.contents.entry(index).or_default().checkpoint = shares;
        self.is_due = true;
    }

    /// Segments were removed.
    pub(crate) fn removed(&mut self, indexes: &[u64]) {
        for index in indexes {
            self.contents.remove(index);
        }
        let mut left = self.contents.values();
        if !left.any(|content| content.is_kept_as_it_is) {
            self.problem = None;
        }
    }

    /// Why a segment that is still there was not written anew, if one was not.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Puts a segment that has been written anew in its place, and begins with the next one until there is room. Waits for all of it if it must.
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

    /// Waits for the segment that is being written anew, and begins with no other.
    pub(crate) fn finish(&mut self, epoch_dir: &Path) {
        if let Some(thinning) = self.thinning.take() {
            self.put_in_place(epoch_dir, thinning);
        }
    }

    /// Begins with what makes room next.
    fn next(&mut self, wanted: Wanted<'_>) -> std::io::Result<()> {
        let bytes = retain::bytes(wanted.dir, wanted.epoch_dir, wanted.most)?;
        let most = wanted.most.saturating_sub(bytes.earlier_kept);
        let own = bytes.own;
        // Earlier runs of the daemon go first, but for their share.
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
                // It goes when the room is needed, and can be asked until then.
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
                    // What is older is of no use to those who are left out of this one.
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
        // The bound may have taken one of them away meanwhile; then nothing may come back.
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
            // The error that counts is the first one.
            let _ = std::fs::remove_file(&new);
            for index in &sources {
                if let Some(content) = self.contents.get_mut(index) {
                    content.is_kept_as_it_is = true;
                }
            }
        }
    }

    /// The new segment takes the place of the first of those that it is made of; the others go.
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
        // The state is in the new file now.
        retain::remove_if_there(&placed.with_extension(CHECKPOINT))?;
        self.contents.insert(*first, content);
        for index in others {
            self.contents.remove(index);
            retain::remove(&epoch_dir.join(format!("{index:06}.{ENDING}")))?;
        }
        Ok(())
    }
}
