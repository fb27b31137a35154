//! memscope's wire: the protobuf package `memscope.v1` as Rust types.
//!
//! Owns: the `.proto` files, the generated code, the one message that is not generated (`block`), its JSON form, the list of
//! file formats, and the few words that server and client must agree on. Refuses: what the words mean to the ledger
//! (`memscope-rpc`) and how they look to people (`memscope-ctl`).

mod answer;
mod block;
pub mod formats;
mod full;
mod image;
mod json;

pub use full::seconds_to_full;
pub use image::Image;

/// The package `memscope.v1`. What its messages and fields mean stands in `memscope/v1/*.proto`.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    pub use crate::block::Block;
    include!("generated/memscope.v1.rs");
}

/// The package as an encoded `FileDescriptorSet`, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");

/// Metadata entry of an error: its stable word.
pub const ERROR_CODE: &str = "memscope-error";

/// Metadata entry of a request: `1` where an answer that is not exact is to be refused.
pub const STRICT: &str = "memscope-strict";

/// Stands between what happened and what to do in the message of an error.
pub const HINT_SEPARATOR: &str = " — ";

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/memscope/memscoped.sock";

/// Time between two readings at level `read` where none is named.
pub const READ_EVERY: std::time::Duration = std::time::Duration::from_secs(10);

/// Splits the message of an error into what happened and what to do.
#[must_use]
pub fn split_message(message: &str) -> (&str, Option<&str>) {
    match message.split_once(HINT_SEPARATOR) {
        Some((what, hint)) => (what, Some(hint)),
        None => (message, None),
    }
}

impl v1::StatsResponse {
    /// Whether the process has a framework's pool that its level is too low to see into. Counts of what happened there are 0 in the answer,
    /// and not known.
    #[must_use]
    pub fn hides_pool(&self) -> bool {
        let hidden = |note: &v1::CoverageNote| note.code == "level_segments";
        self.coverage.iter().any(hidden)
    }

    /// Whether the process is at level `read`: only readings tell what it holds, and nothing what came and went between them.
    #[must_use]
    pub fn is_only_read(&self) -> bool {
        let read = |note: &v1::CoverageNote| note.code == "level_read";
        self.coverage.iter().any(read)
    }

    /// Whether nothing tells of allocations that failed. How many did is 0 in the answer, and not known.
    #[must_use]
    pub fn hides_ooms(&self) -> bool {
        let hidden = |note: &v1::CoverageNote| matches!(&*note.code, "level_read" | "oom_unseen");
        self.coverage.iter().any(hidden)
    }
}

impl v1::LeaksResponse {
    /// Whether nothing has been read yet that could grow: at level `read`, before the first reading.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        let said = |code: &str| self.coverage.iter().any(|note| note.code == code);
        said("level_read") && said("totals_unknown")
    }

    /// The whole process in one word: lines that grow, else why that cannot be told, else that nothing does.
    #[must_use]
    pub fn process_verdict(&self) -> v1::ProcessVerdict {
        match (self.growing_groups, &self.young) {
            (0, _) if self.is_unread() => v1::ProcessVerdict::NothingRead,
            (0, Some(_)) => v1::ProcessVerdict::TooEarly,
            (0, None) => v1::ProcessVerdict::Steady,
            _ => v1::ProcessVerdict::Growing,
        }
    }

    /// The share of such growths that go on, the highest of the lines that grow; `None` where nothing grows.
    #[must_use]
    pub fn confidence(&self) -> Option<f64> {
        let growing = self.lines.iter();
        let growing = growing.filter(|line| line.verdict() == v1::Verdict::Growing);
        let sure = growing.filter_map(|line| line.confidence);
        sure.max_by(f64::total_cmp)
    }
}

pub use answer::{AnswerError, answer_json};
pub use json::Word;
