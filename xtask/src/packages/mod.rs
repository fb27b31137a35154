//! `cargo xtask packages`: tries what users install, as users do. The .deb in clean roots of Debian with systemd in charge,
//! installed, upgraded while a process is traced, removed and purged; the .rpm in a root; the image with the capabilities of the chart.

mod container;
mod deb;
mod image;
mod rpm;
mod trial;

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::setup::mode::Mode;
use crate::setup::{self, toolchain};
use crate::{dist, live, process};
use trial::{Trial, base};

/// What to try.
#[derive(Args, Clone, Default)]
pub struct Options {
    /// Only the trials whose name contains this: `bookworm`, `trixie`, `rpm`, `image`
    #[arg(long, value_name = "WORD")]
    pub only: Option<String>,

    /// Programs that are built already, in this folder
    #[arg(long, value_name = "FOLDER")]
    pub programs: Option<PathBuf>,

    /// Leave the roots there for the next time
    #[arg(long)]
    pub keep: bool,
}

/// Releases of Debian in which the .deb is tried.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// Runs the task.
pub fn run(options: &Options) -> Result<()> {
    live::need_root()?;
    toolchain::ensure_debootstrap(Mode::Install)?;
    toolchain::ensure_podman(Mode::Install)?;
    setup::run(&setup::Options {
        packages: true,
        torch: Some(Vec::new()),
        ..setup::Options::default()
    })?;
    let programs = match &options.programs {
        Some(programs) => programs.clone(),
        None => {
            dist::run(&dist::Options::default())?;
            process::target().join("dist")
        }
    };
    let trial = Trial {
        folder: process::target().join("packages"),
        programs,
    };
    for revision in [1, 2] {
        let stale = trial.folder.join(format!("revision-{revision}"));
        if stale.exists() {
            fs::remove_dir_all(&stale)?;
        }
    }
    let wanted = |name: &str| options.only.as_ref().is_none_or(|word| name.contains(word));
    let mut tried = 0;
    for release in RELEASES.into_iter().filter(|release| wanted(release)) {
        deb::try_in(release, &trial)?;
        tried += 1;
    }
    if wanted("rpm") {
        rpm::try_in(RELEASES[0], &trial)?;
        tried += 1;
    }
    if wanted("image") {
        image::try_from(RELEASES[1], &trial)?;
        tried += 1;
    }
    if tried == 0 {
        bail!("there is no such trial: bookworm, trixie, rpm and image are");
    }
    if !options.keep {
        for release in RELEASES {
            crate::roots::remove(&base(&trial.folder, release))?;
        }
        fs::remove_dir_all(&trial.folder)?;
    }
    println!("packages: {tried} trials passed");
    Ok(())
}
