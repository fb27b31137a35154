//! The short form of `cargo xtask soak --guests`: programs come and go beside a PyTorch process, and nothing of them is
//! left behind.

use memscope_tests::{need_root, xtask};

#[test]
fn nothing_is_left_of_processes_that_come_and_go() {
    need_root();
    let words = "soak --guests --most 25 --stacks 50 --journal-mib 16 --seed 7";
    let words: Vec<&str> = words.split(' ').collect();
    let (output, said, errors) = xtask(&words);
    assert!(output.status.success(), "{said}\n{errors}");
    // Each way in which a visit ends has come at least once.
    let ends = said.split("| a guest was |").nth(1).unwrap_or_default();
    let ends = ends.lines().skip(2).take_while(|line| !line.is_empty());
    let counts: Vec<&str> = ends
        .filter_map(|line| line.trim_matches('|').split('|').nth(1))
        .map(str::trim)
        .collect();
    assert_eq!(counts.len(), 6, "{said}");
    assert!(!counts.contains(&"0"), "{said}");
    assert!(said.contains("| `snapshot --at` | 1 | 0 | 0 |"), "{said}");
}
