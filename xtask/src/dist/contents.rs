//! What is in the archive and in the packages: the one list of the programs, and the one list of the files beside them.

/// A program that users get.
pub struct Program {
    /// Name of its file.
    pub file: &'static str,
    /// The cargo package that builds it.
    pub package: &'static str,
}

/// The programs. Each writes its own man pages and completions (`memscope_pages`).
pub const PROGRAMS: [Program; 3] = [
    Program {
        file: "memscoped",
        package: "memscope-daemon",
    },
    Program {
        file: "memscope-ctl",
        package: "memscope-ctl",
    },
    Program {
        file: "memscope-archive",
        package: "memscope-archive",
    },
];

/// What a package manager must know of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It belongs to the package alone.
    Plain,
    /// It is a program or a script that is started.
    Executable,
    /// It belongs to the administrator once it is installed: an upgrade keeps what was changed in it.
    Setting,
    /// It is documentation.
    Document,
}

/// A file that is not built.
pub struct Item {
    /// Path in the repository.
    pub from: &'static str,
    /// Path on the machine on which it is installed, without the leading slash.
    pub to: &'static str,
    /// What it is.
    pub kind: Kind,
}

const fn item(from: &'static str, to: &'static str, kind: Kind) -> Item {
    Item { from, to, kind }
}

/// Files beside the programs.
pub const ITEMS: &[Item] = &[
    item(
        "deploy/memscoped.service",
        "usr/lib/systemd/system/memscoped.service",
        Kind::Plain,
    ),
    item(
        "deploy/packages/memscope-generator",
        "usr/lib/systemd/system-generators/memscope-generator",
        Kind::Executable,
    ),
    item(
        "deploy/memscope.sysusers.conf",
        "usr/lib/sysusers.d/memscope.conf",
        Kind::Plain,
    ),
    item(
        "deploy/memscope-archive.service",
        "usr/lib/systemd/system/memscope-archive.service",
        Kind::Plain,
    ),
    item(
        "deploy/memscope-archive.sysusers.conf",
        "usr/lib/sysusers.d/memscope-archive.conf",
        Kind::Plain,
    ),
    item(
        "deploy/memscoped.toml",
        "etc/memscope/memscoped.toml",
        Kind::Setting,
    ),
    item(
        "deploy/memscoped-before-6.6.conf",
        "usr/share/memscope/systemd/memscoped-before-6.6.conf",
        Kind::Plain,
    ),
    item(
        "deploy/memscoped-network.conf",
        "usr/share/memscope/systemd/memscoped-network.conf",
        Kind::Plain,
    ),
    item(
        "deploy/prometheus/memscope.rules.yml",
        "usr/share/memscope/prometheus/memscope.rules.yml",
        Kind::Plain,
    ),
    item(
        "deploy/grafana/node.json",
        "usr/share/memscope/grafana/node.json",
        Kind::Plain,
    ),
    item(
        "deploy/grafana/job.json",
        "usr/share/memscope/grafana/job.json",
        Kind::Plain,
    ),
    item(
        "deploy/grafana/rank.json",
        "usr/share/memscope/grafana/rank.json",
        Kind::Plain,
    ),
    item(
        "README.md",
        "usr/share/doc/memscope/README.md",
        Kind::Document,
    ),
    item(
        "CHANGELOG.md",
        "usr/share/doc/memscope/changelog",
        Kind::Document,
    ),
    item(
        "SECURITY.md",
        "usr/share/doc/memscope/SECURITY.md",
        Kind::Document,
    ),
    item(
        "docs/install.md",
        "usr/share/doc/memscope/install.md",
        Kind::Document,
    ),
    item(
        "docs/troubleshooting.md",
        "usr/share/doc/memscope/troubleshooting.md",
        Kind::Document,
    ),
];

/// The licences, which the two kinds of packages keep in different places.
pub const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
