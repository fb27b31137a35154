//! `cargo xtask bench`: what memscope costs, measured on this machine and written to one page, docs/benchmarks.md, with the
//! numbers of each round beside it, in docs/benchmarks.json.
//!
//! Owns: what is measured and in which order. Everything that is compared is measured in turn in the same round of the same
//! run, so that a machine that changes its speed changes both; the page tells the spread of the rounds.

mod examples;
mod export;
mod life;
mod measure;
mod options;
mod page;
mod peers;
mod programs;
mod readings;
mod stacks;
mod step;
mod targets;

use anyhow::{Result, bail};

use crate::setup::mode::Mode;
use crate::setup::toolchain;
use measure::Ground;
pub use options::Options;
use page::{Page, Run, Section};

/// Something that is measured: its word on the command line, and what measures it.
struct Part {
    name: &'static str,
    measure: fn(&Ground<'_>) -> Result<Section>,
}

const PARTS: [Part; 7] = [
    Part {
        name: "process",
        measure: stacks::measure,
    },
    Part {
        name: "step",
        measure: step::measure,
    },
    Part {
        name: "daemon",
        measure: examples::daemon,
    },
    Part {
        name: "questions",
        measure: examples::questions,
    },
    Part {
        name: "life",
        measure: life::measure,
    },
    Part {
        name: "readings",
        measure: readings::measure,
    },
    Part {
        name: "export",
        measure: export::measure,
    },
];

/// Runs the task. With a choice of parts that is not to be written, or against another commit, the page goes to standard output; else
/// into docs/.
pub fn run(options: &Options) -> Result<()> {
    if let Some(unknown) = options
        .only
        .iter()
        .find(|word| PARTS.iter().all(|part| part.name != word.as_str()))
    {
        let names = PARTS.map(|part| part.name).join(", ");
        bail!("there is no part {unknown}; the parts are {names}");
    }
    // It is read first, so that nothing is measured in vain.
    let mut page = match options.write {
        true => Page::read()?,
        false => Page {
            sections: Vec::new(),
        },
    };
    toolchain::ensure_bench(Mode::Install)?;
    let ground = Ground::new(options)?;
    let run = Run::new(&ground)?;
    for part in &PARTS {
        let is_chosen = options.only.is_empty() || options.only.iter().any(|of| of == part.name);
        if is_chosen {
            eprintln!("bench: {}", part.name);
            page.put(&run, (part.measure)(&ground)?);
        }
    }
    if options.against.is_some() {
        print!("{}", page.comparison());
    } else if options.only.is_empty() || options.write {
        let first = format!("\n{}", targets::markdown(&page));
        page.write(&first, &format!("\n{}", peers::markdown()))?;
    } else {
        print!("{}", page.markdown(""));
    }
    Ok(())
}
