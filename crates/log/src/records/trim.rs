//! Makes a daemon's record fit: the length of a record is a 16-bit number, and a command line can be longer.

use crate::records::bytes::Header;
use crate::records::daemon::{DaemonRecord, EncodeError, Stamp};
use memscope_common::{RECORD_VERSION, RecordHeader, STACK_NONE};
use memscope_ledger::event::Backend;
use zerocopy::IntoBytes;

/// Maximum size of the JSON in a record, in bytes.
///
/// Longer JSON is cut until it fits: strings longer than *n* bytes are cut there (at a character's boundary) and end in
/// `…`; lists longer than *m* entries keep the first *m*, and in a list of strings the last of these is replaced by
/// `…`. (*n*, *m*) goes from (8192, 1024) down, halved each time, to (64, 8). So a long command line loses its tail
/// before an ordinary environment loses anything. JSON that fits is not changed. A part of a reading is never cut,
/// because half of it would be wrong; [`crate::records::held_parts`] makes parts that fit.
pub const MAX_JSON: usize = 60 * 1024;

const STEPS: u32 = 8;
const LONGEST: usize = 8192;
const MOST: usize = 1024;
const CUT: &str = "…";

impl DaemonRecord {
    /// Encodes the record. JSON that is longer than [`crate::records::MAX_JSON`] is cut first, by the rules given
    /// there.
    pub fn encode(&self, stamp: Stamp) -> Result<Vec<u8>, EncodeError> {
        self.encode_of(stamp, STACK_NONE)
    }

    /// Like [`Self::encode`], for a record that has a stack.
    pub(crate) fn encode_of(&self, stamp: Stamp, stack: u64) -> Result<Vec<u8>, EncodeError> {
        let json = fit(self)?;
        let len = (Header::SIZE + json.len()).next_multiple_of(8);
        let len_field = u16::try_from(len).map_err(|_| EncodeError::TooLong {
            kind: self.kind(),
            len: json.len(),
        })?;
        let header = RecordHeader {
            len: len_field,
            kind: self.kind(),
            version: RECORD_VERSION,
            flags: 0,
            reserved: 0,
            process: stamp.process.0,
            tid: stamp.tid,
            time_ns: stamp.time_ns,
            sequence: 0,
            lost_before: stamp.lost_before,
            stack,
        };
        let mut record = Vec::with_capacity(len);
        record.extend_from_slice(header.as_bytes());
        record.extend_from_slice(&json);
        record.resize(len, 0);
        Ok(record)
    }
}

/// The JSON of `record`, cut if necessary.
fn fit(record: &DaemonRecord) -> Result<Vec<u8>, EncodeError> {
    let whole = record.json()?;
    let mut len = whole.len();
    if len <= MAX_JSON {
        return Ok(whole);
    }
    if let DaemonRecord::Held(_) = record {
        return Err(EncodeError::TooLong {
            kind: record.kind(),
            len,
        });
    }
    let mut record = record.clone();
    for step in 0..STEPS {
        trim(&mut record, LONGEST >> step, MOST >> step);
        let json = record.json()?;
        len = json.len();
        if len <= MAX_JSON {
            return Ok(json);
        }
    }
    Err(EncodeError::TooLong {
        kind: record.kind(),
        len,
    })
}

fn trim(record: &mut DaemonRecord, longest: usize, most: usize) {
    match record {
        DaemonRecord::SiteDefined(site) => {
            cut(&mut site.function, longest);
            cut(&mut site.library, longest);
        }
        DaemonRecord::Attached(facts) => {
            cut(&mut facts.comm, longest);
            if let Some(cgroup) = &mut facts.cgroup {
                cut(cgroup, longest);
            }
            if let Some(names) = &mut facts.container {
                let all = [&mut names.namespace, &mut names.pod, &mut names.name];
                for name in all.into_iter().flatten() {
                    cut(name, longest);
                }
            }
            cut_list(&mut facts.cmdline, longest, most);
            facts.environment.truncate(most);
            for (name, value) in &mut facts.environment {
                cut(name, longest);
                cut(value, longest);
            }
        }
        DaemonRecord::Placed(placement) => {
            cut_list(&mut placement.ways, longest, most);
            cut_list(&mut placement.libraries, longest, most);
        }
        DaemonRecord::Coverage(note) => {
            cut(&mut note.code, longest);
            cut(&mut note.text, longest);
        }
        DaemonRecord::Backend(Backend::Other(name)) => cut(name, longest),
        DaemonRecord::Allocator(facts) => {
            if let Some(settings) = &mut facts.settings {
                cut(&mut settings.text, longest);
            }
        }
        DaemonRecord::Backend(_)
        | DaemonRecord::Detached
        | DaemonRecord::Exited
        | DaemonRecord::Replaced
        | DaemonRecord::Clock(_)
        | DaemonRecord::DeviceTotal(_)
        | DaemonRecord::RunsOn(_)
        | DaemonRecord::Held(_)
        | DaemonRecord::ReadingCost(_)
        | DaemonRecord::Launches(_)
        | DaemonRecord::Shed(_)
        | DaemonRecord::Lost => {}
        DaemonRecord::Finding(finding) => {
            for text in [&mut finding.file, &mut finding.name, &mut finding.reason] {
                cut(text, longest);
            }
        }
        DaemonRecord::Mark(mark) => {
            if mark.name.len() > longest {
                let mut name = mark.name.to_string();
                cut(&mut name, longest);
                mark.name = name.into();
                mark.cut = true;
            }
        }
        DaemonRecord::Code(name) => {
            // Line tables of generated code can be of any length.
            let most = most.saturating_mul(4);
            name.lines_cut |= name.lines.len() > most;
            name.lines.truncate(most);
        }
        DaemonRecord::Stack(seen) => {
            seen.truncated |= seen.frames.len() > most || seen.natives.len() > most;
            seen.frames.truncate(most);
            seen.natives.truncate(most);
        }
        DaemonRecord::Native(name) => {
            // There may be more inlined functions than anybody would read.
            name.functions.truncate(most.min(64));
        }
    }
}

fn cut_list(list: &mut Vec<String>, longest: usize, most: usize) {
    if list.len() > most {
        list.truncate(most - 1);
        list.push(CUT.to_owned());
    }
    for text in list {
        cut(text, longest);
    }
}

fn cut(text: &mut String, longest: usize) {
    if text.len() > longest {
        text.truncate(text.floor_char_boundary(longest - CUT.len()));
        text.push_str(CUT);
    }
}
