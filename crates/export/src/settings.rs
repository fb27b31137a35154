//! `allocator_settings`: the values that PyTorch's allocator derives from the text of its settings.
//!
//! If a script changes the settings more than once, only the last text is known. The maximum split size, the
//! divisions and the threshold of the garbage collection are read from the process and so are right in any case. All
//! other values (`expandable_segments` and the like) that only an earlier text named are shown with their defaults.
//!
//! Owns: the words of `PYTORCH_CUDA_ALLOC_CONF` and their defaults. Refuses: to check the text. PyTorch has accepted
//! it, or the process would have ended. Unknown words are ignored.

use memscope_ledger::report::SnapshotReport;
use std::io;

use crate::sink::Sink;

/// Key of the text in the dictionary.
const KEY: &str = "PYTORCH_CUDA_ALLOC_CONF";
/// Environment variables that may have the text, in the order in which they are tried.
const NAMES: [&str; 3] = [KEY, "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"];
/// Keys of the divisions: sizes in MiB.
const SIZES: [&str; 16] = [
    "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192",
    "16384", "32768",
];

/// Where the text of the settings is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// The process's own memory.
    Process,
    /// The environment that it was started with.
    Environment,
    /// Neither has a text, so that PyTorch's defaults hold.
    Defaults,
}

impl From {
    /// The value of `memscope.settings_from` in the dictionary.
    pub(crate) fn word(self) -> &'static str {
        match self {
            From::Process => "process",
            From::Environment => "environment",
            From::Defaults => "defaults",
        }
    }
}

/// The text of the settings, and where it is from.
pub(crate) fn text(report: &SnapshotReport) -> (&str, From) {
    if let Some(settings) = &report.allocator.settings {
        return (&settings.text, From::Process);
    }
    let environment = &report.process.facts.environment;
    let found = NAMES
        .iter()
        .find_map(|name| environment.iter().find(|(set, _)| set == name));
    match found {
        Some((_, value)) => (value, From::Environment),
        None => ("", From::Defaults),
    }
}

/// The values, as far as PyTorch's own snapshot shows them.
#[derive(Clone, Debug, PartialEq)]
struct Settings {
    max_split_size: i64,
    garbage_collection_threshold: f64,
    expandable_segments: bool,
    pinned_num_register_threads: u64,
    release_lock_on_cudamalloc: bool,
    pinned_use_cuda_host_register: bool,
    graph_capture_record_stream_reuse: bool,
    max_round_threshold: i64,
    max_cached_size: i64,
    divisions: [u64; SIZES.len()],
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_split_size: -1,
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            pinned_num_register_threads: 1,
            release_lock_on_cudamalloc: false,
            pinned_use_cuda_host_register: false,
            graph_capture_record_stream_reuse: false,
            max_round_threshold: -1,
            max_cached_size: -1,
            divisions: [0; SIZES.len()],
        }
    }
}

impl Settings {
    fn of(text: &str) -> Settings {
        let mut settings = Settings::default();
        for pair in pairs(text) {
            let Some((name, value)) = pair.split_once(':') else {
                continue;
            };
            let mib = || {
                let mib: Option<i64> = value.parse().ok();
                mib.and_then(|mib| mib.checked_mul(1 << 20)).unwrap_or(-1)
            };
            let flag = value == "True";
            match name {
                "max_split_size_mb" => settings.max_split_size = mib(),
                "garbage_collection_threshold" => {
                    settings.garbage_collection_threshold = value.parse().unwrap_or(0.0);
                }
                "expandable_segments" => settings.expandable_segments = flag,
                "pinned_num_register_threads" => {
                    settings.pinned_num_register_threads = value.parse().unwrap_or(1);
                }
                "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
                    settings.release_lock_on_cudamalloc = flag;
                }
                "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
                    settings.pinned_use_cuda_host_register = flag;
                }
                "graph_capture_record_stream_reuse" => {
                    settings.graph_capture_record_stream_reuse = flag;
                }
                "pinned_max_round_threshold_mb" => settings.max_round_threshold = mib(),
                "pinned_max_cached_size_mb" => settings.max_cached_size = mib(),
                "roundup_power2_divisions" => settings.divide(value),
                _ => {}
            }
        }
        settings
    }

    /// Reads `4` or `[256:1,512:2,>:8]` as PyTorch does since 2.10. Before 2.10, `>` held from the last named size on
    /// and not only for the sizes after it. Where the process's own memory was read, the divisions are taken from
    /// there.
    fn divide(&mut self, value: &str) {
        let list = value.strip_prefix('[').and_then(|v| v.strip_suffix(']'));
        let Some(list) = list else {
            self.divisions = [value.parse().unwrap_or(0); SIZES.len()];
            return;
        };
        let (mut last, mut first) = (0, true);
        for (size, divisions) in list.split(',').filter_map(|one| one.split_once(':')) {
            let divisions = divisions.parse().unwrap_or(0);
            if size == ">" {
                for later in self.divisions.iter_mut().skip(last + 1) {
                    *later = divisions;
                }
                continue;
            }
            let exponent = size.parse::<u64>().ok().and_then(u64::checked_ilog2);
            let at = (exponent.unwrap_or(0) as usize).min(SIZES.len() - 1);
            if first {
                for earlier in self.divisions.iter_mut().take(at) {
                    *earlier = divisions;
                }
                first = false;
            }
            if let Some(here) = self.divisions.get_mut(at) {
                *here = divisions;
            }
            last = at;
        }
    }
}

/// Splits the text into pairs `name:value`, without spaces. A value in brackets may contain commas.
fn pairs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut inside = false;
    for letter in text.chars().filter(|letter| *letter != ' ') {
        match letter {
            ',' if !inside => found.push(String::new()),
            _ => {
                inside = match letter {
                    '[' => true,
                    ']' => false,
                    _ => inside,
                };
                if let Some(last) = found.last_mut() {
                    last.push(letter);
                }
            }
        }
    }
    found
}

/// Writes the dictionary.
pub(crate) fn write(report: &SnapshotReport, out: &mut impl Sink) -> io::Result<()> {
    let (text, _) = text(report);
    let mut settings = Settings::of(text);
    if let Some(told) = &report.allocator.settings {
        // The text is only the last one that was set; these values are the result of all of them.
        settings.max_split_size = i64::try_from(told.max_split_bytes).unwrap_or(-1);
        settings.garbage_collection_threshold = told.collection_threshold;
        for (into, from) in settings.divisions.iter_mut().zip(&told.divisions) {
            *into = *from;
        }
    }
    out.begin_dict()?;
    out.key(KEY)?;
    out.text(text)?;
    out.key("max_split_size")?;
    out.signed(settings.max_split_size)?;
    out.key("garbage_collection_threshold")?;
    out.float(settings.garbage_collection_threshold)?;
    out.key("expandable_segments")?;
    out.flag(settings.expandable_segments)?;
    out.key("pinned_num_register_threads")?;
    out.int(settings.pinned_num_register_threads)?;
    out.key("release_lock_on_cudamalloc")?;
    out.flag(settings.release_lock_on_cudamalloc)?;
    out.key("pinned_use_cuda_host_register")?;
    out.flag(settings.pinned_use_cuda_host_register)?;
    out.key("graph_capture_record_stream_reuse")?;
    out.flag(settings.graph_capture_record_stream_reuse)?;
    out.key("max_round_threshold")?;
    out.signed(settings.max_round_threshold)?;
    out.key("max_cached_size")?;
    out.signed(settings.max_cached_size)?;
    out.key("roundup_power2_divisions")?;
    out.begin_dict()?;
    for (size, divisions) in SIZES.into_iter().zip(settings.divisions) {
        out.key(size)?;
        out.int(divisions)?;
    }
    out.end_dict()?;
    out.end_dict()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are what PyTorch 2.15.0 answered.
    #[test]
    fn every_word() {
        let text = "max_split_size_mb:30, garbage_collection_threshold:0.25,expandable_segments:True,\
                    pinned_num_register_threads:8,release_lock_on_cudamalloc:True,\
                    pinned_use_cuda_host_register:True,graph_capture_record_stream_reuse:True,\
                    pinned_max_round_threshold_mb:16,pinned_max_cached_size_mb:64,\
                    roundup_power2_divisions:[8:2,64:4],large_segment_size_mb:32,backend:native";
        let mut divisions = [0; 16];
        divisions[..4].fill(2);
        divisions[6] = 4;
        assert_eq!(
            Settings::of(text),
            Settings {
                max_split_size: 31_457_280,
                garbage_collection_threshold: 0.25,
                expandable_segments: true,
                pinned_num_register_threads: 8,
                release_lock_on_cudamalloc: true,
                pinned_use_cuda_host_register: true,
                graph_capture_record_stream_reuse: true,
                max_round_threshold: 16_777_216,
                max_cached_size: 67_108_864,
                divisions,
            }
        );
        for nothing in [
            "",
            ",",
            "backend:native",
            "expandable_segments:False",
            ":::",
        ] {
            assert_eq!(Settings::of(nothing), Settings::default(), "{nothing:?}");
        }
    }

    #[test]
    fn divisions_as_since_2_10() {
        let divisions =
            |value: &str| Settings::of(&format!("roundup_power2_divisions:{value}")).divisions;
        assert_eq!(divisions("4"), [4; 16]);
        assert_eq!(
            divisions(" [ 256:1 , 512:2,1024:4, >:8 ]"),
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]
        );
        assert_eq!(
            divisions("[8:2,>:4]"),
            [2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
        );
        assert_eq!(divisions("[>:4]")[..3], [0, 4, 4]);
        assert_eq!(divisions("[9999999:3]"), [3; 16]);
        assert_eq!(divisions("nonsense"), [0; 16]);
    }
}
