//! `stacks` and `flamegraph`.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Server, one_process, two_processes};
use memscope_rpc::fake::{self, FakeDaemon};
use serde_json::json;
use std::fs;

fn with_stacks(plain: usize) -> Server {
    let mut process = fake::process(4242, 0);
    process.stacks = plain;
    Server::start(FakeDaemon::with([process]))
}

#[track_caller]
fn assert_has(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(
            text.lines().any(|l| l.trim_end() == *line),
            "no {line:?} in:\n{text}"
        );
    }
}

#[test]
fn top_names_the_frames_innermost_first() {
    let server = Server::start(one_process());
    let answer = server.ctl(&["stacks", "--limit", "2"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    assert_has(
        &answer.out,
        &[
            "python (pid 4242), exited  as of 2025-06-15 15:06:40 UTC, event 4711, no records lost",
            "Device 0: live 58.18 GiB, at the peak 58.18 GiB, allocated since the attach 174.64 GiB; 36 stacks",
            "  of live memory: 10.00 MiB without a stack",
            "  of live memory: 5.00 MiB in stacks that were cut off, 1.00 MiB without a stack",
            " DEVICE      LIVE  BLOCKS  SHARE  STACK",
            " and 36 more with 54.29 GiB in 55,588 blocks",
            "What these numbers do not show",
        ],
    );
    let begin = answer.out.find("      0  1.95 GiB   2,000  3.4 %").unwrap();
    let stack: Vec<_> = answer.out[begin..]
        .lines()
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>())
        .collect();
    assert_eq!(stack[0], ["[native]", "torch/lib/libtorch_cuda.so"]);
    assert_eq!(stack[1], ["torch/nn/modules/linear.py:125", "forward"]);
    assert_eq!(stack[4], ["/home/ada/model.py:1", "forward"]);
    assert_eq!(stack[6], ["/home/ada/train.py:99", "<module>"]);
    assert_eq!(stack.len(), 7);
}

#[test]
fn long_stacks_are_shortened_and_those_cut_off_say_so() {
    let server = with_stacks(1);
    let short = server.ctl(&["stacks", "--device", "1"]).out;
    assert!(short.contains("… 33 more\n"), "{short}");
    assert!(short.contains("… [cut off here]\n"), "{short}");
    assert!(short.contains("[stack not taken]\n"), "{short}");
    let whole = server
        .ctl(&["stacks", "--device", "1", "--frames", "0"])
        .out;
    assert_eq!(whole.matches("/home/ada/tree.py:").count(), 40);
    assert!(!whole.contains(" more\n"), "{whole}");
    // Runs of library frames become a line.
    let folded = server.ctl(&["stacks", "--limit", "1", "--frames", "6"]).out;
    assert!(folded.contains("… 2 in torch\n"), "{folded}");
    assert!(folded.contains("/home/ada/model.py:1\n"), "{folded}");
}

#[test]
fn growth_is_the_default_where_there_is_something_to_compare_with() {
    let server = with_stacks(2);
    let growth = server.ctl(&["stacks", "--from", "-1m", "--limit", "0"]).out;
    assert_has(
        &growth,
        &[
            "Compared with 2025-06-15 15:05:40 UTC, 1 m before",
            "  DEVICE       GROWTH  BLOCKS      LIVE  STACK",
        ],
    );
    assert!(
        growth.contains("+1.46 GiB  +1,500  1.95 GiB  at::"),
        "{growth}"
    );
    assert!(
        growth.contains("-8.00 MiB      -8       0 B  warm_up"),
        "{growth}"
    );
    assert!(!growth.contains("temporary"), "{growth}");
    let live = server
        .ctl(&[
            "stacks", "--from", "-1m", "--metric", "live", "--limit", "1",
        ])
        .out;
    assert_has(
        &live,
        &[" DEVICE      LIVE  BLOCKS   SHARE     CHANGE  STACK"],
    );
    assert!(live.contains("  +1.46 GiB  at::"), "{live}");

    for args in [
        &["stacks", "--metric", "growth"][..],
        &["flamegraph", "--diff"],
    ] {
        let answer = server.ctl(args);
        assert_eq!(answer.code, 2);
        assert!(answer.err.contains("--from"), "{}", answer.err);
    }
}

#[test]
fn sums_by_function_file_and_line() {
    let server = Server::start(one_process());
    let function = server
        .ctl(&["stacks", "--by", "function", "--limit", "3"])
        .out;
    assert_has(
        &function,
        &[
            " DEVICE  EXCLUSIVE    SHARE  INCLUSIVE    SHARE  STACKS  FUNCTION",
            "      0  58.17 GiB  100.0 %  58.17 GiB  100.0 %      30  \
             at::native::empty_cuda(c10::ArrayRef<long>)  torch/lib/libtorch_cuda.so [native]",
            "      0   7.00 MiB    0.0 %   7.00 MiB    0.0 %       1  [no Python frames]",
        ],
    );
    let file = server
        .ctl(&[
            "stacks",
            "--by",
            "file",
            "--cumulative",
            "--from",
            "-1m",
            "--limit",
            "5",
        ])
        .out;
    assert_has(
        &file,
        &[
            " DEVICE   EXCLUSIVE       LIVE   INCLUSIVE       LIVE  STACKS  FILE",
            "      0   -8.00 MiB        0 B  +43.62 GiB  58.17 GiB      32  /home/ada/train.py",
        ],
    );
    let line = server
        .ctl(&[
            "stacks",
            "--by",
            "any-line",
            "--unit",
            "count",
            "--metric",
            "allocated",
        ])
        .out;
    assert_has(
        &line,
        &[
            "       0        100   0.1 %        100   0.1 %       1  temporary  /home/ada/train.py:50",
        ],
    );
}

#[test]
fn json_has_frames_where_they_stand() {
    let server = Server::start(one_process());
    let document = server.ctl(&["stacks", "--limit", "1", "--json"]).json();
    assert_eq!(document["pid"], 4242);
    assert_eq!(document["metric"], "live");
    assert_eq!(document["unit"], "bytes");
    assert_eq!(document["by"], "stack");
    assert_eq!(document["omitted"], 37);
    assert_eq!(document["from_unix_ns"], json!(null));
    let row = &document["rows"][0];
    assert_eq!(row["device"], 0);
    assert_eq!(row["truncated"], false);
    assert_eq!(row["missing"], json!(null));
    assert_eq!(
        row["amounts"],
        json!({
            "live": {"count": 2000, "bytes": 2000_u64 << 20},
            "peak": {"count": 2000, "bytes": 2000_u64 << 20},
            "allocated": {"count": 6000, "bytes": 6000_u64 << 20},
            "before": null,
        })
    );
    assert_eq!(row["frames"].as_array().unwrap().len(), 7);
    assert_eq!(
        row["frames"][1],
        json!({
            "kind": "python",
            "name": "forward",
            "file": "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py",
            "line": 125,
        })
    );
    assert_eq!(row["frames"][0]["kind"], "native");
    assert_eq!(row["frames"][0]["line"], json!(null));
    assert!(document.get("strings").is_none());

    let document = server
        .ctl(&[
            "stacks", "--by", "file", "--limit", "1", "--json", "--from", "-1m",
        ])
        .json();
    assert_eq!(document["metric"], "growth");
    let group = &document["groups"][0];
    assert_eq!(group["frame"]["name"], json!(null));
    assert_eq!(
        group["frame"]["file"],
        "/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so"
    );
    assert!(group["own"]["before"]["bytes"].is_u64());
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let server = with_stacks(0);
    for args in [
        &["stacks", "--limit", "0", "--frames", "0"][..],
        &["stacks", "--limit", "0", "--by", "line"],
        &["flamegraph", "--format", "folded"],
        &["flamegraph", "--format", "svg"],
    ] {
        let answer = server.ctl(args);
        assert_eq!(answer.code, 0, "{}", answer.err);
        let bad = |c: char| c.is_control() && c != '\n' && !(c == '\t' && args.contains(&"svg"));
        assert!(!answer.out.contains(bad), "{args:?}: {}", answer.out);
        assert!(!answer.out.contains('\u{202e}'), "{args:?}");
        assert!(answer.out.contains("größe_日本語"), "{args:?}");
    }
}

#[test]
fn files_in_every_format() {
    let server = Server::start(one_process());
    let folder = tempfile::tempdir().unwrap();
    for (name, begins, says) in [
        ("live.svg", &b"<?xml"[..], "Open it in a browser.\n"),
        ("live.folded", b"[device 0];", ""),
        ("heap.pb.gz", &[0x1f, 0x8b, 8], "go tool pprof -http=: "),
        (
            "s.speedscope.json",
            b"{\"$schema\"",
            "https://www.speedscope.app\n",
        ),
    ] {
        let path = folder.path().join(name);
        let answer = server.ctl(&["flamegraph", "-o", path.to_str().unwrap()]);
        assert_eq!((answer.code, answer.err.as_str()), (0, ""));
        assert!(answer.out.starts_with("Wrote /"), "{}", answer.out);
        assert!(answer.out.contains(says), "{}", answer.out);
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.starts_with(begins), "{name}");
        let json = server
            .ctl(&["flamegraph", "-o", path.to_str().unwrap(), "--json"])
            .json();
        assert_eq!(json["bytes"], bytes.len());
    }
    // The option counts more than the file's name; without a file the output goes to standard output.
    let path = folder.path().join("odd.svg");
    let odd = [
        "flamegraph",
        "--format",
        "folded",
        "-o",
        path.to_str().unwrap(),
    ];
    assert_eq!(server.ctl(&odd).code, 0);
    assert!(fs::read(&path).unwrap().starts_with(b"[device 0];"));
    let svg = server.ctl(&["flamegraph"]).out;
    assert!(
        svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"),
        "{svg}"
    );
    assert!(svg.contains("Live bytes of python (pid 4242)"));
}

#[test]
fn growth_and_differences_are_drawn() {
    let server = Server::start(one_process());
    let growth = server.ctl(&["flamegraph", "--from", "-1m"]).out;
    assert!(
        growth.contains("Growth of python (pid 4242) in 60.0 s, in bytes"),
        "{growth}"
    );
    assert!(growth.contains("not drawn: 8.00 MiB that went"));
    assert!(!growth.contains("warm_up"));
    let diff = server.ctl(&["flamegraph", "--from", "-1m", "--diff"]).out;
    assert!(diff.contains("red grew, blue shrank"), "{diff}");
    assert!(diff.contains("gone altogether: 8.00 MiB"), "{diff}");
    let text = server
        .ctl(&[
            "flamegraph",
            "--from",
            "-1m",
            "--diff",
            "--format",
            "folded",
            "--unit",
            "count",
        ])
        .out;
    assert!(
        text.contains("\n[device 0];warm_up (/home/ada/train.py:7) 8 0\n"),
        "{text}"
    );
    for format in ["pprof", "speedscope"] {
        let answer = server.ctl(&["flamegraph", "--from", "-1m", "--diff", "--format", format]);
        assert_eq!(answer.code, 2);
        assert!(
            answer.err.contains("--diff is drawn in a flame graph only"),
            "{}",
            answer.err
        );
    }
}

#[test]
fn what_cannot_be_asked() {
    let server = Server::start(two_processes());
    assert_eq!(server.ctl(&["stacks"]).code, 0, "all are shown");
    assert_eq!(server.ctl(&["flamegraph"]).code, 2);
    assert_eq!(server.ctl(&["stacks", "--pid", "7"]).code, 4);
    assert_eq!(server.ctl(&["flamegraph", "--pid", "7"]).code, 4);
    assert_eq!(
        server.ctl(&["stacks", "--pid", "99", "--by", "moon"]).code,
        2
    );
    let empty = server.ctl(&["stacks", "--pid", "99", "--device", "5"]);
    assert_eq!(empty.code, 0);
    assert!(
        empty
            .out
            .contains("Nothing was allocated on any device since the attach."),
        "{}",
        empty.out
    );
    let empty = server.ctl(&["flamegraph", "--pid", "99", "--device", "5"]);
    assert_eq!(empty.code, 0);
    assert!(empty.out.contains("Nothing to draw"), "{}", empty.out);
}

/// On a terminal `top` is a view; scripts go on getting the table that it was.
#[test]
fn top_answers_as_stacks_where_nobody_looks_at_it() {
    let server = with_stacks(20);
    for words in [
        &[][..],
        &["--json"],
        &["--by", "line", "--limit", "3"],
        &["4242", "--cumulative", "--by", "function"],
    ] {
        let top = server.ctl(&[&["top"], words].concat());
        let stacks = server.ctl(&[&["stacks"], words].concat());
        assert_eq!((top.code, top.err.as_str()), (0, ""), "{words:?}");
        assert_eq!(top.out, stacks.out, "{words:?}");
    }
}
