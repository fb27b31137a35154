//! What a trace itself proves to be wrong with it.
//!
//! Owns: the one judgement of whether a peak and a course follow from a trace, for reports and for what is imported. It is made by undoing
//! the trace from the snapshot on and doing it again.

use crate::pool::{Pool, Rules};
use crate::reader::Pickle;
use crate::snapshot::NotASnapshot;
use crate::whole::Snapshot;

/// A kind of entries that is never in a trace, although other entries or the snapshot prove that there was something to tell. PyTorch
/// leaves out the kinds that `skip_actions` of `_record_memory_history` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// Blocks that were handed out.
    Allocations,
    /// Frees, requested and completed.
    Frees,
    /// Frees that were completed.
    Completions,
    /// Frees that were requested. A block counts until its free is complete, so nothing else is missing.
    Requests,
    /// Segments that came and went.
    Segments,
}

impl LeftOut {
    /// What the entries tell, for a sentence that begins "the trace has no entries of".
    const fn words(self) -> &'static str {
        match self {
            LeftOut::Allocations => "allocations",
            LeftOut::Frees => "frees",
            LeftOut::Completions => "completed frees",
            LeftOut::Requests => "requested frees",
            LeftOut::Segments => "segments",
        }
    }
}

/// Kinds without which the levels of blocks are known all the same.
const HARMLESS: [LeftOut; 2] = [LeftOut::Requests, LeftOut::Segments];

/// What is wrong with the trace of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Number of entries whose time is before that of an entry before them: the order is not that in which things happened.
    pub moved: u64,
    /// How often entries do not fit the segments and blocks of the snapshot, or each other. What is left out does not count.
    pub contradictions: u64,
    /// Kinds of entries that are left out.
    pub left_out: Vec<LeftOut>,
    /// The trace, done from its beginning, ends with what the snapshot has.
    pub(crate) leads_to_end: bool,
    /// It tells of blocks that came and of no segments, and nothing proves that there were any.
    pub may_lack_segments: bool,
    /// A note of memscope's in the file says already that its trace has no segments.
    pub(crate) lacks_segments_as_said: bool,
}

impl Doubts {
    /// The levels of blocks follow from the trace, and the peak with them.
    #[must_use]
    pub fn is_course_known(&self) -> bool {
        self.moved == 0
            && self.contradictions == 0
            && self.left_out.iter().all(|kind| HARMLESS.contains(kind))
    }

    /// What was reserved follows from it, too.
    #[must_use]
    pub fn is_reserved_known(&self) -> bool {
        self.is_course_known() && !self.left_out.contains(&LeftOut::Segments)
    }

    /// The kinds of entries without which levels are not known, as words: `allocations and frees`.
    fn missed(&self) -> Option<String> {
        let missed = self.left_out.iter();
        let missed = missed.filter(|kind| !HARMLESS.contains(kind));
        let words: Vec<&str> = missed.map(|kind| kind.words()).collect();
        (!words.is_empty()).then(|| words.join(" and "))
    }
}

/// A coverage note of what is wrong with traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The code by which programs tell kinds of notes apart.
    pub code: &'static str,
    /// What it says.
    pub text: String,
    /// Kinds of numbers that are not certain, by their words: `history` are peaks and the course of levels. If there are none, the note
    /// only explains something.
    pub affects: &'static [&'static str],
}

/// What is to be said of the traces of one snapshot.
pub fn notes(all: &[Doubts]) -> impl Iterator<Item = Doubt> {
    let sum = |of: fn(&Doubts) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
    let doubt = |code, affects: &'static [&'static str], text| Doubt {
        code,
        text,
        affects,
    };
    let moved = sum(|one| one.moved);
    let moved = (moved > 0).then(|| {
        let text = format!(
            "{moved} entries have an earlier time than an entry before them: their order is not that in which things happened. PyTorch \
             writes over older entries where a recording goes on with another max_entries; clear_history=True begins anew"
        );
        doubt("import_times_moved", &["history"], text)
    });
    let contradictions = sum(|one| one.contradictions);
    let contradictions = (contradictions > 0).then(|| {
        let text = format!(
            "{contradictions} times the trace does not fit the segments and blocks of the snapshot: the end is as the snapshot says, and the way \
             to it is not certain"
        );
        doubt("import_contradictions", &["history"], text)
    });
    let missed = all.iter().find_map(Doubts::missed);
    let missed = missed.map(|missed| {
        let text = format!(
            "the trace has no entries of {missed}, although there were some: the end is as the snapshot says, and the way to it is not known. \
             skip_actions of _record_memory_history leaves them out"
        );
        doubt("import_actions_left_out", &["history"], text)
    });
    let unchanged = |one: &Doubts| one.may_lack_segments && one.is_course_known();
    let unchanged = all.iter().any(unchanged);
    let unchanged = unchanged.then(|| {
        let text = "the trace has no entry of a segment, so what is reserved counts as unchanged: where skip_actions of _record_memory_history \
                    left these entries out, it was not"
            .to_owned();
        doubt("import_no_segments", &[], text)
    });
    let segments =
        |one: &Doubts| one.left_out.contains(&LeftOut::Segments) && !one.lacks_segments_as_said;
    let segments = all.iter().any(segments).then(|| {
        let text = "the trace has no entries of segments, although there were some: what was reserved is not known before the end. \
                    skip_actions of _record_memory_history leaves them out"
            .to_owned();
        doubt("import_segments_left_out", &["layout", "segments"], text)
    });
    let requests = |one: &Doubts| one.left_out.contains(&LeftOut::Requests);
    let requests = all.iter().any(requests).then(|| {
        let text = "the trace has no entries of requested frees: a block counts as allocated until its free is complete".to_owned();
        doubt("import_requests_left_out", &[], text)
    });
    let of_levels = [moved, contradictions, missed];
    let others = [segments, unchanged, requests];
    of_levels.into_iter().chain(others).flatten()
}

/// Judges the traces of all devices that have one.
///
/// # Errors
/// The pickle is no snapshot.
pub fn doubts(pickle: &Pickle) -> Result<Vec<(i32, Doubts)>, NotASnapshot> {
    let snapshot = Snapshot::read(pickle, 0)?;
    let rules = Rules::of(&snapshot);
    let traced = snapshot.devices.iter();
    let traced = traced.filter(|(_, device)| !device.trace.is_empty());
    let judged = traced.map(|(ordinal, device)| {
        let undone = Pool::of(device).undo(&device.trace, &rules);
        (*ordinal, undone.judge(device, &rules))
    });
    Ok(judged.collect())
}
