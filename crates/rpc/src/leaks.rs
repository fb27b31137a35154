//! How much of an answer to `leaks` has room in one message.

use memscope_proto::v1;
use prost::Message;

/// Largest number of bytes that lines and groups may take, so that an answer stays below gRPC's limit of 4 MiB. Holders, processes and notes
/// come on top.
const MOST_BYTES_OF_LEAKS: usize = 3 << 20;
/// Lines may take so many of them: they say less of each block than groups do, but there are fewer of them.
const BYTES_OF_LINES: usize = MOST_BYTES_OF_LEAKS / 2;
/// Largest number of bytes of a row's tag and length.
const ROW: usize = 6;

/// Leaves out the last lines and groups of an answer that has no room for all.
pub(crate) fn bounded(answer: &mut v1::LeaksResponse) {
    let (lines, taken) = fitting(&answer.lines, BYTES_OF_LINES);
    answer.omitted_lines += (answer.lines.len() - lines) as u64;
    answer.lines.truncate(lines);
    let (groups, _) = fitting(&answer.groups, MOST_BYTES_OF_LEAKS - taken);
    answer.omitted_groups += (answer.groups.len() - groups) as u64;
    answer.groups.truncate(groups);
}

/// How many of the first rows fit into so many bytes, and how many bytes these take.
fn fitting(rows: &[impl Message], room: usize) -> (usize, usize) {
    let mut taken = 0;
    let fits = |row: &&_| {
        let then = taken + Message::encoded_len(*row) + ROW;
        let fits = then <= room;
        taken = if fits { then } else { taken };
        fits
    };
    let kept = rows.iter().take_while(fits).count();
    (kept, taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memscope_tests::limits::{Met, constant};

    const FILE: &str = "crates/rpc/src/leaks.rs";

    /// Two thousand groups, each with a stack of 64 frames in files of an installed PyTorch.
    #[test]
    fn an_answer_fits_into_a_message() {
        let frame = |line| v1::CodeLine {
            file: "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py".to_owned(),
            line,
            name: format!("function_{line}"),
        };
        let mut answer = v1::LeaksResponse {
            groups: (0..2_000)
                .map(|size_bytes| v1::LeakGroup {
                    size_bytes,
                    frames: (0..64).map(frame).collect(),
                    ..v1::LeakGroup::default()
                })
                .collect(),
            lines: (0..2_000)
                .map(|growth_bytes| v1::LeakLine {
                    growth_bytes,
                    reason: "x".repeat(2_000),
                    ..v1::LeakLine::default()
                })
                .collect(),
            omitted_groups: 7,
            ..v1::LeaksResponse::default()
        };
        bounded(&mut answer);
        let bytes = answer.encoded_len();
        assert!(bytes <= MOST_BYTES_OF_LEAKS && bytes > MOST_BYTES_OF_LEAKS / 10 * 9);
        assert_eq!(answer.groups.len() as u64 + answer.omitted_groups, 2_007);
        assert_eq!(answer.lines.len() as u64 + answer.omitted_lines, 2_000);
        assert!(answer.lines.len() > 500 && answer.groups.len() > 200);
        let last = answer.groups.last().map(|one| one.size_bytes);
        assert_eq!(last, Some(answer.groups.len() as u64 - 1));
        Met {
            what: "bytes of lines and groups in an answer about leaks",
            most: format!(
                "{}, of which lines at most half",
                constant(FILE, "MOST_BYTES_OF_LEAKS")
            ),
            beyond: "those that leak least are left out",
            told: "`omitted_lines`, `omitted_groups`",
            test: "an_answer_fits_into_a_message",
        }
        .is_told();

        let mut small = v1::LeaksResponse {
            groups: answer.groups.drain(..3).collect(),
            ..v1::LeaksResponse::default()
        };
        let same = small.clone();
        bounded(&mut small);
        assert_eq!(small, same);
    }
}
