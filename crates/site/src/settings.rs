//! The settings of PyTorch's allocator, read from the process's memory: the text of the settings, and the divisions
//! that PyTorch has computed from it. The environment at the start of the process is not enough: a script may set
//! variables before it imports PyTorch, and may change the settings while it runs.
//!
//! The object with the settings is recognised by its contents: the largest size that is split, a vector of 16 small
//! numbers (the divisions; they are read because the way in which PyTorch computes them from the text has changed
//! between versions), a share below 1, and the text.

use memscope_ledger::event::AllocatorSettings;
use serde::{Deserialize, Serialize};

use memscope_memory::Memory;

/// The vector lies within this many bytes from the beginning of the object, and the text at an offset in this range
/// behind the vector's beginning. The search must be limited, since memory behind the object does not belong to it.
const VECTOR: u64 = 64;
const TEXT: std::ops::Range<u64> = 32..112;
/// Number of divisions: one for each power of two from 1 MiB on.
const DIVISIONS: u64 = 16;
/// Largest value that is accepted as a division.
const MOST_DIVISIONS: u64 = 1 << 20;
/// Longest text that is accepted, and largest capacity of its string, both in bytes.
const MOST_TEXT: u64 = 4096;
const MOST_ROOM: u64 = 1 << 20;

/// Where the object with the settings may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SettingsPlace {
    /// Address of the object itself.
    Object(u64),
    /// Address of a pointer to the object, which is null until the object is made.
    Pointer(u64),
}

/// Reads the settings from the first of these places that has them. `None` if there are no settings yet, or if nothing
/// there looks like settings.
pub fn read(memory: &impl Memory, places: &[SettingsPlace]) -> Option<AllocatorSettings> {
    places.iter().find_map(|place| {
        let object = match place {
            SettingsPlace::Object(address) => *address,
            SettingsPlace::Pointer(slot) => memory.read_u64(*slot).ok()?,
        };
        // The program changes the settings under a lock that we cannot take. So they are read twice: if both results
        // are equal, no change was under way.
        let settings = object_at(memory, object)?;
        (object_at(memory, object)? == settings).then_some(settings)
    })
}

fn object_at(memory: &impl Memory, object: u64) -> Option<AllocatorSettings> {
    let word = |at: u64| memory.read_u64(object.checked_add(at)?).ok();
    if object < 0x1_0000 || !object.is_multiple_of(8) {
        return None;
    }
    for at in (0..VECTOR).step_by(8) {
        let (begin, end) = (word(at)?, word(at + 8)?);
        if begin < 0x1_0000 || end.checked_sub(begin) != Some(DIVISIONS * 8) || word(at + 16)? < end
        {
            continue;
        }
        let share = f64::from_bits(word(at + 24)?);
        let divisions: Option<Vec<u64>> = (0..DIVISIONS)
            .map(|i| memory.read_u64(begin + i * 8).ok())
            .collect();
        let divisions = divisions?;
        if !(0.0..1.0).contains(&share) || divisions.iter().any(|d| *d > MOST_DIVISIONS) {
            continue;
        }
        // The largest size that is split is the word before the vector, or in later versions the second word before it.
        let split = word(if at == 8 { 0 } else { at.checked_sub(16)? })?;
        let places = || {
            TEXT.step_by(8)
                .filter_map(|more| object.checked_add(at + more))
        };
        // Words that are not a string may look like an empty string of the old kind, so any other string is preferred.
        let text = places()
            .find_map(|at| new_string(memory, at))
            .or_else(|| {
                places()
                    .filter_map(|at| old_string(memory, at))
                    .find(|text| !text.is_empty())
            })
            .or_else(|| places().find_map(|at| old_string(memory, at)))?;
        return Some(AllocatorSettings {
            text,
            max_split_bytes: split,
            collection_threshold: share,
            divisions,
        });
    }
    None
}

/// Reads a `std::string` of libstdc++: a pointer, the length, then the text itself or the capacity.
fn new_string(memory: &impl Memory, at: u64) -> Option<String> {
    let word = |address: u64| memory.read_u64(address).ok();
    let (pointer, len, room) = (word(at)?, word(at + 8)?, word(at + 16)?);
    let fits = if pointer == at + 16 {
        len < 16
    } else {
        pointer > 0x1_0000 && (16..=room).contains(&len) && room < MOST_ROOM
    };
    fits.then(|| text(memory, pointer, len)).flatten()
}

/// Reads a `std::string` of libstdc++'s ABI before C++11: a pointer to the text, before which lie the length, the
/// capacity, and the number of other users of the text.
fn old_string(memory: &impl Memory, at: u64) -> Option<String> {
    let word = |address: u64| memory.read_u64(address).ok();
    let pointer = word(at).filter(|pointer| *pointer > 0x1_0000)?;
    let (len, room) = (word(pointer - 24)?, word(pointer - 16)?);
    let users = word(pointer - 8)? as u32 as i32;
    let fits = len <= room && room < MOST_ROOM && (-1..1 << 16).contains(&users);
    fits.then(|| text(memory, pointer, len)).flatten()
}

fn text(memory: &impl Memory, address: u64, len: u64) -> Option<String> {
    if len > MOST_TEXT {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()? + 1];
    memory.read(address, &mut bytes).ok()?;
    let whole = bytes.pop() == Some(0);
    let text = whole.then(|| String::from_utf8(bytes).ok()).flatten()?;
    is_settings(&text).then_some(text)
}

/// Whether this text may be the value of `PYTORCH_CUDA_ALLOC_CONF`. The check is needed since other strings lie near
/// the settings.
fn is_settings(text: &str) -> bool {
    let text = text.replace(' ', "");
    let mut depth = 0;
    let mut pairs = text.split(|letter| {
        depth += i32::from(letter == '[') - i32::from(letter == ']');
        letter == ',' && depth == 0
    });
    text.is_empty()
        || pairs.all(|pair| {
            let Some((name, value)) = pair.split_once(':') else {
                return pair.is_empty();
            };
            let of_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            let of_value = |b: u8| b.is_ascii_alphanumeric() || b"_.<>[]:,-".contains(&b);
            // Every option but `backend` has several words.
            (name.contains('_') || name == "backend")
                && name.bytes().all(of_name)
                && !value.starts_with(':')
                && value.bytes().all(of_value)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::io;

    /// Memory as words by their addresses; other addresses cannot be read.
    struct Words(HashMap<u64, u64>);

    impl Memory for Words {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
            for (i, byte) in buffer.iter_mut().enumerate() {
                let at = address + i as u64;
                let word = self.0.get(&(at & !7)).ok_or(io::ErrorKind::NotFound)?;
                *byte = word.to_le_bytes()[(at & 7) as usize];
            }
            Ok(())
        }
    }

    const OBJECT: u64 = 0x50_0000;
    const HEAP: u64 = 0x60_0000;

    impl Words {
        /// An object with words at offsets; the rest of it is zero.
        fn new(words: &[(u64, u64)]) -> Words {
            let mut map: HashMap<u64, u64> = (0..VECTOR + TEXT.end + 64)
                .step_by(8)
                .map(|at| (OBJECT + at, 0))
                .collect();
            map.extend(words.iter().map(|(at, word)| (OBJECT + at, *word)));
            let heap = (0..DIVISIONS).map(|i| (HEAP + 8 * i, 1 << (i % 4)));
            map.extend(heap);
            Words(map)
        }

        fn put(&mut self, address: u64, text: &[u8]) {
            let mut bytes = text.to_vec();
            bytes.push(0);
            for (i, chunk) in bytes.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                self.0
                    .insert(address + 8 * i as u64, u64::from_le_bytes(word));
            }
        }
    }

    fn vector(at: u64) -> [(u64, u64); 4] {
        let end = HEAP + 8 * DIVISIONS;
        [
            (at, HEAP),
            (at + 8, end),
            (at + 16, end),
            (at + 24, 0.5f64.to_bits()),
        ]
    }

    fn divisions() -> Vec<u64> {
        (0..DIVISIONS).map(|i| 1 << (i % 4)).collect()
    }

    /// The layouts seen in 2.4.1, 2.9.1 and 2.15.0.
    #[test]
    fn every_shape_seen() {
        let text = b"max_split_size_mb:111,garbage_collection_threshold:0.5";
        let len = text.len() as u64;
        let mut old = Words::new(&vector(8));
        old.0.insert(OBJECT, 30 << 20);
        let far = HEAP + 0x1000;
        old.0.insert(OBJECT + 56, far + 24);
        for (at, word) in [(0, len), (8, len), (16, 0)] {
            old.0.insert(far + at, word);
        }
        old.put(far + 24, text);
        let mut middle = Words::new(&vector(16));
        let mut new = Words::new(&vector(24));
        middle.0.insert(OBJECT, 30 << 20);
        new.0.insert(OBJECT + 8, 30 << 20);
        for (words, at) in [(&mut middle, 72), (&mut new, 120)] {
            for (at, word) in [(at, far), (at + 8, len), (at + 16, len)] {
                words.0.insert(OBJECT + at, word);
            }
            words.put(far, text);
        }
        // Seen once in 2.9.1: earlier contents of the memory are still there between the fields.
        let garbage = HEAP + 0x2000;
        for at in (0..40).step_by(8) {
            middle.0.insert(garbage - 24 + at, 0);
            old.0.insert(garbage - 24 + at, 0);
        }
        middle.0.insert(OBJECT + 64, garbage);
        old.0.insert(OBJECT + 48, garbage);
        // Seen in 2.6.0: a string that has nothing to do with the settings.
        let other = HEAP + 0x3000;
        for (at, word) in [(0, 15), (8, 15), (16, 0)] {
            old.0.insert(other - 24 + at, word);
        }
        old.put(other, b"aten::nanmedian");
        old.0.insert(OBJECT + 40, other);
        let mut short = Words::new(&vector(24));
        short.0.insert(OBJECT + 120, OBJECT + 136);
        short.0.insert(OBJECT + 128, 9);
        short.put(OBJECT + 136, b"backend:x");
        let mut empty = Words::new(&vector(24));
        empty.0.insert(OBJECT + 120, OBJECT + 136);
        for (words, wanted) in [
            (old, &text[..]),
            (middle, &text[..]),
            (new, &text[..]),
            (short, b"backend:x"),
            (empty, b""),
        ] {
            let found = read(&words, &[SettingsPlace::Object(OBJECT)]).unwrap();
            assert_eq!(found.text.as_bytes(), wanted);
            assert_eq!(found.divisions, divisions());
            assert_eq!(found.collection_threshold, 0.5);
            let split = if wanted == text { 30 << 20 } else { 0 };
            assert_eq!(found.max_split_bytes, split);
        }
    }

    #[test]
    fn what_may_be_settings() {
        for text in [
            "",
            "backend:native",
            "expandable_segments:True,",
            " roundup_power2_divisions : [ 256:1 , 512:2, >:8 ] , max_split_size_mb:30",
            "expandable_segments_reserve:0.5,graph_capture_record_stream_reuse:True",
        ] {
            assert!(is_settings(text), "{text:?}");
        }
        for text in [
            "aten::nanmedian",
            "x:y",
            "a_b",
            "a_b::c",
            "max_split_size_mb:30;rm",
            "/a_b:c",
        ] {
            assert!(!is_settings(text), "{text:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        // The object is not made yet, or is of another kind, or the address is wrong. Below: the string is missing.
        let mut words = Words::new(&[]);
        words.0.insert(0x70_0000, 0);
        let places = [
            SettingsPlace::Pointer(0x70_0000),
            SettingsPlace::Object(OBJECT),
            SettingsPlace::Object(3),
            SettingsPlace::Pointer(0x99_0000),
        ];
        assert_eq!(read(&words, &places), None);
        assert_eq!(read(&Words::new(&vector(16)), &places), None);
        // The second place has the settings.
        let mut words = Words::new(&vector(24));
        words.0.insert(OBJECT + 120, OBJECT + 136);
        words.0.insert(0x70_0000, 0);
        assert!(read(&words, &places).is_some());
        words.0.insert(0x70_0000, OBJECT);
        assert!(read(&words, &places[..1]).is_some());
    }
}
