//! Every target over the inputs that are kept, those with which the search begins, and changes of both.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_fuzz::{TARGETS, corpus, target};
use std::sync::Mutex;

/// What is held is counted for the whole program, so one target runs at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Number of changed inputs of each target.
const CHANGED: usize = 2000;

fn run(name: &str) {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let target = target(name).unwrap();
    let mut inputs = (target.seeds)();
    assert!(!inputs.is_empty());
    for (name, input) in corpus::kept(target).unwrap() {
        println!("{name}");
        inputs.push(input);
    }
    let mut most = 0;
    for input in &inputs {
        most = most.max(target.run(input));
    }
    for input in corpus::changed(&inputs, 1, CHANGED, target.longest) {
        most = most.max(target.run(&input));
    }
    println!("{name}: {} inputs, at most {most} bytes held", inputs.len());
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn each_target_has_a_test() {
            let here = [$(stringify!($name)),*];
            let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(all, here);
        }
    };
}

targets! { pickle journal structure python elf unwind records dump questions texts }
