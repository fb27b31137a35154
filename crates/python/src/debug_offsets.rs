//! `_Py_DebugOffsets`: from 3.13 on, an interpreter describes the offsets of its own fields at the beginning of
//! `_PyRuntime`.

use crate::layout::{
    BytesLayout, CodeLayout, FrameLayout, INSTRUCTION_ADDRESS, KIND_CURRENT_FRAME, LINES_LOCATIONS,
    Layout, NONE, RuntimeLayout, ThreadLayout,
};
use crate::tables;
use crate::version::Version;

/// Bytes with which a description begins.
pub(crate) const COOKIE: &[u8; 8] = b"xdebugpy";
/// Number of bytes that contain the whole description in every supported version.
pub(crate) const LENGTH: usize = 896;

/// The first words of a description, which are the same fields in all versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// `PY_VERSION_HEX`.
    pub hex: u64,
    /// Whether the interpreter was built without the GIL.
    pub free_threaded: bool,
    /// `sizeof(_PyRuntimeState)`.
    pub runtime_size: u64,
}

/// Reads the first words; `None` where there is no description.
pub(crate) fn head(bytes: &[u8]) -> Option<Head> {
    bytes.starts_with(COOKIE).then_some(())?;
    Some(Head {
        hex: word(bytes, 8)?,
        free_threaded: word(bytes, 16)? != 0,
        runtime_size: word(bytes, 24)?,
    })
}

/// Where a minor version's description has the fields that we need, in bytes from its beginning. Within a minor version
/// the form of the description does not change.
struct Places {
    thread: u32,
    thread_id: u32,
    frame: u32,
    code: u32,
    object_type: u32,
    bytes: u32,
    text: u32,
}

fn places(minor: u8) -> Option<Places> {
    let places = match minor {
        13 => Places {
            thread: 152,
            thread_id: 192,
            frame: 224,
            code: 272,
            object_type: 360,
            bytes: 520,
            text: 536,
        },
        14 => Places {
            thread: 176,
            thread_id: 216,
            frame: 248,
            code: 312,
            object_type: 408,
            bytes: 600,
            text: 616,
        },
        15 => Places {
            thread: 176,
            thread_id: 240,
            frame: 312,
            code: 376,
            object_type: 472,
            bytes: 696,
            text: 712,
        },
        _ => return None,
    };
    Some(places)
}

/// The layout that a description gives.
///
/// # Errors
/// The name of a field that is missing in it, or has an impossible value.
pub(crate) fn layout(version: Version, bytes: &[u8]) -> Result<Layout, &'static str> {
    let places = places(version.minor).ok_or("a description of this version")?;
    let runtime_size = head(bytes).ok_or("the cookie")?.runtime_size;
    let get = |at: u32, below: u64, name: &'static str| {
        word(bytes, at as usize)
            .filter(|offset| *offset < below)
            .and_then(|offset| u32::try_from(offset).ok())
            .ok_or(name)
    };
    // The size of each structure stands before its fields. An offset must be smaller than the size.
    let size = |at: u32, most: u64, name: &'static str| {
        word(bytes, at as usize)
            .filter(|size| (8..=most).contains(size))
            .ok_or(name)
    };
    const LARGE: u64 = 1 << 24;
    const SMALL: u64 = 1 << 16;
    let interpreter_size = size(48, LARGE, "interpreter_state.size")?;
    let thread_size = size(places.thread, SMALL, "thread_state.size")?;
    let frame_size = size(places.frame, SMALL, "interpreter_frame.size")?;
    let code_size = size(places.code, SMALL, "code_object.size")?;
    let text_size = size(places.text, SMALL, "unicode_object.size")?;

    let code = |field: u32, name| get(places.code + field, code_size, name);
    let instructions = code(72, "code_object.co_code_adaptive")?;
    let first_traceable = instructions
        .checked_sub(tables::TRACEABLE_BEFORE_CODE)
        .ok_or("code_object.co_code_adaptive")?;
    let object_type = get(places.object_type, 64, "pyobject.ob_type")?;
    let frame = |field: u32, name| get(places.frame + field, frame_size, name);
    let owner = frame(40, "interpreter_frame.owner")?;
    let fields = [
        frame(8, "interpreter_frame.previous")?,
        frame(16, "interpreter_frame.executable")?,
        frame(24, "interpreter_frame.instr_ptr")?,
    ];
    let [previous, executable, instruction] = fields;
    let last = fields.into_iter().fold(owner, u32::max);
    let ascii_data = get(
        places.text + 24,
        text_size,
        "unicode_object.asciiobject_size",
    )?;
    let mut text = tables::text(ascii_data, ascii_data + 16);
    text.state = get(places.text + 8, text_size, "unicode_object.state")?;
    text.length = get(places.text + 16, text_size, "unicode_object.length")?;
    Ok(Layout {
        kind: KIND_CURRENT_FRAME,
        minor: u32::from(version.minor),
        runtime: RuntimeLayout {
            interpreters: get(40, runtime_size, "runtime_state.interpreters_head")?,
            next: get(64, interpreter_size, "interpreter_state.next")?,
            threads: get(72, interpreter_size, "interpreter_state.threads_head")?,
            thread_key: tables::thread_key(version.minor),
        },
        thread: ThreadLayout {
            next: get(places.thread + 16, thread_size, "thread_state.next")?,
            interpreter: get(places.thread + 24, thread_size, "thread_state.interp")?,
            frame: get(
                places.thread + 32,
                thread_size,
                "thread_state.current_frame",
            )?,
            id: get(places.thread_id, thread_size, "thread_state.thread_id")?,
            native_id: get(
                places.thread_id + 8,
                thread_size,
                "thread_state.native_thread_id",
            )?,
            chunk: get(
                places.thread_id + 16,
                thread_size,
                "thread_state.datastack_chunk",
            )?,
            cframe_frame: NONE,
        },
        frame: FrameLayout {
            // The end of the last field, rounded up to whole words, so that one read gets all fields.
            size: (last + 8) & !7,
            code: executable,
            // From 3.14 on these are the Py_TAG_BITS of builds with the GIL; 3.13 has a plain pointer.
            code_tags: if version.minor >= 14 { 3 } else { 0 },
            previous,
            instruction,
            instruction_is: INSTRUCTION_ADDRESS,
            owner,
            owner_generator: tables::OWNER_GENERATOR,
            owner_internal: tables::OWNER_INTERNAL,
            locals: frame(32, "interpreter_frame.localsplus")?,
        },
        chunk: tables::CHUNK,
        code: CodeLayout {
            size: instructions,
            object_type,
            // `ob_size`, which follows the header of an object.
            units: object_type + 8,
            unit: tables::UNIT,
            first_line: code(40, "code_object.firstlineno")?,
            file_name: code(8, "code_object.filename")?,
            name: code(16, "code_object.name")?,
            qualified_name: code(24, "code_object.qualname")?,
            lines: code(32, "code_object.linetable")?,
            lines_are: LINES_LOCATIONS,
            first_traceable,
            instructions,
        },
        text,
        bytes: BytesLayout {
            length: get(places.bytes, 64, "bytes_object.ob_size")?,
            data: get(places.bytes + 8, 64, "bytes_object.ob_sval")?,
        },
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The description of a release, as it is in the release's file.
    pub fn description(release: &str) -> Vec<u8> {
        let line = include_str!("../tests/facts/descriptions.txt")
            .lines()
            .find_map(|line| line.strip_prefix(release)?.strip_prefix(": "))
            .unwrap();
        line.split(' ')
            .map(|word| match word.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => word.parse(),
            })
            .flat_map(|word| word.unwrap().to_le_bytes())
            .collect()
    }

    fn of(release: &str) -> Layout {
        layout(Version::from_text(release).unwrap(), &description(release)).unwrap()
    }

    /// The same numbers as `offsetof` gives with the headers of these releases.
    #[test]
    fn descriptions_of_releases() {
        let thread = |id, chunk| ThreadLayout {
            next: 8,
            interpreter: 16,
            id,
            native_id: id + 8,
            frame: 72,
            cframe_frame: NONE,
            chunk,
        };
        let frame = |owner, size, code_tags, locals| FrameLayout {
            size,
            code: 0,
            code_tags,
            previous: 8,
            instruction: 56,
            instruction_is: INSTRUCTION_ADDRESS,
            owner,
            owner_generator: 1,
            owner_internal: 3,
            locals,
        };
        let code = |instructions| CodeLayout {
            size: instructions,
            object_type: 8,
            units: 16,
            unit: 2,
            first_line: 68,
            file_name: 112,
            name: 120,
            qualified_name: 128,
            lines: 136,
            lines_are: LINES_LOCATIONS,
            first_traceable: instructions - 16,
            instructions,
        };
        let runtime = |interpreters, next, threads, thread_key| RuntimeLayout {
            interpreters,
            next,
            threads,
            thread_key,
        };
        let expected = [
            (
                "3.13.0",
                runtime(632, 7264, 7344, 2160),
                thread(152, 232),
                frame(70, 72, 0, 72),
                code(200),
            ),
            (
                "3.14.10",
                runtime(808, 7272, 7344, 2336),
                thread(152, 232),
                frame(74, 80, 3, 80),
                code(208),
            ),
            (
                "3.15.2",
                runtime(936, 7264, 7336, NONE),
                thread(176, 256),
                frame(74, 80, 3, 80),
                code(208),
            ),
        ];
        for (release, runtime, thread, frame, code) in expected {
            let found = of(release);
            assert_eq!(found.runtime, runtime, "{release}");
            assert_eq!(found.thread, thread, "{release}");
            assert_eq!(found.frame, frame, "{release}");
            assert_eq!(found.code, code, "{release}");
            assert_eq!(found.text, tables::text(40, 56), "{release}");
            let bytes = BytesLayout {
                length: 16,
                data: 32,
            };
            assert_eq!(found.bytes, bytes, "{release}");
            assert_eq!(found.kind, KIND_CURRENT_FRAME);
        }
    }

    #[test]
    fn a_cut_description() {
        let bytes = description("3.15.2");
        let version = Version::from_text("3.15.2").unwrap();
        for length in 0..bytes.len() {
            let _ = layout(version, &bytes[..length]);
        }
        assert_eq!(layout(version, &bytes[..700]), Err("unicode_object.size"));
        assert_eq!(layout(version, b"xdebugpx"), Err("the cookie"));
    }
}
