//! Development tasks: `cargo xtask <task>`.
//!
//! Each task is a module with an `Options` type (its command line) and a `run` function. Messages of a
//! task go to standard error; standard output is for results and for the programs that the task starts.
//!
//! Each task has a file or a folder of its name here, but for three: `cross` is in `aarch64`, `fresh` and `pythons` are in
//! `roots`. What several tasks use is in `process` (starting programs), `live` (a daemon and a Python program),
//! `elf` (what libraries export), `debian` (packages that are unpacked, not installed), `setup` (what has to be installed, `setup::torch` for PyTorch) and `sim`.

mod aarch64;
mod bench;
mod chaos;
mod chart;
mod clients;
mod conformance;
mod dashboards;
mod debian;
mod demo;
mod differential;
mod dist;
mod elf;
mod fuzz;
mod generated;
mod live;
mod packages;
mod process;
mod roots;
mod setup;
mod sim;
mod soak;
mod test;
mod ui;
mod verdicts;
mod viewers;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of memscope.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Find or install what building and testing need
    Setup(setup::Options),
    /// Run a program on a simulated CUDA device or NPU
    Sim(sim::Options),
    /// Make the BPF objects that are committed, or check them
    Ebpf(generated::Options),
    /// Make the code, of Rust and of Python, that comes from the .proto files, or check it
    Clients(clients::Options),
    /// Make the dashboards for Grafana from their description, or check them
    Dashboards(dashboards::Options),
    /// Make the page of memscope-ctl ui, or check it
    Ui(ui::Options),
    /// Render the Helm chart into the plain manifests, or check them
    Chart(chart::Options),
    /// Run README's two commands in fresh Debian roots, as a new user would
    Fresh(roots::fresh::Options),
    /// Build for 64-bit Arm on another machine
    Cross(aarch64::Options),
    /// Boot Debian's kernels in simulated machines, trace programs there, and compare with what they say
    Vm(vm::Options),
    /// Check the rules of the house: what may use what, and no circles of files
    House,
    /// Show it: a training loop leaks, memscope attaches while it runs and names the leak
    Demo(demo::Options),
    /// Build the programs as users get them: small, in a folder and an archive
    Dist(dist::Options),
    /// Try what users install: packages in clean Debian roots, the image
    Packages(packages::Options),
    /// Run everything that a change must pass
    Test(test::Options),
    /// Compare with PyTorch's own numbers, over versions of PyTorch
    Conformance(conformance::Options),
    /// Compare with PyTorch's own numbers on random programs
    Differential(differential::Options),
    /// Look for foreign bytes that make a reader panic, hang or take too much memory
    Fuzz(fuzz::Options),
    /// Compare with what CPython of several releases says of itself
    Pythons(roots::pythons::Options),
    /// Open exports in the viewers they are made for
    Viewers(viewers::Options),
    /// Try the verdicts on leaks with scripts of which it is known what leaks
    Verdicts(verdicts::Options),
    /// Run for a long time: memory must be flat, and moments that have passed must be right
    Soak(soak::Options),
    /// End the daemon at random moments: the next one must know what PyTorch knows
    Chaos(chaos::Options),
    /// Measure what tracing costs, as ratios in one run
    Bench(bench::Options),
}

fn main() -> ExitCode {
    // What the tasks build is looked for below the root, where cargo puts it if nobody names another folder.
    for name in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR"] {
        // SAFETY: no other thread has been started that could read the environment.
        unsafe { std::env::remove_var(name) };
    }
    let result = match Arguments::parse().task {
        Task::Setup(options) => setup::run(&options),
        Task::Sim(options) => sim::run(&options),
        Task::Ebpf(options) => generated::run("ebpf", &options),
        Task::Clients(options) => clients::run(&options),
        Task::Dashboards(options) => dashboards::run(&options),
        Task::Ui(options) => ui::run(&options),
        Task::Chart(options) => chart::run(&options),
        Task::Fresh(options) => roots::fresh::run(&options),
        Task::Cross(options) => aarch64::run(&options),
        Task::Vm(options) => vm::run(&options),
        Task::House => process::run(
            process::command("cargo").args(["test", "--locked", "-p", "xtask", "--test", "house"]),
        ),
        Task::Demo(options) => demo::run(&options),
        Task::Dist(options) => dist::run(&options),
        Task::Packages(options) => packages::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Conformance(options) => conformance::run(&options),
        Task::Differential(options) => differential::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Pythons(options) => roots::pythons::run(&options),
        Task::Viewers(options) => viewers::run(&options),
        Task::Verdicts(options) => verdicts::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::Chaos(options) => chaos::run(&options),
        Task::Bench(options) => bench::run(&options),
    };
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    // The error is not returned from `main`, because that would add a backtrace, which does not help a user.
    eprintln!("error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("caused by: {cause}");
    }
    ExitCode::FAILURE
}
