//! Man pages and shell completions of memscope's programs, made from the very definitions of their command lines.
//!
//! Owns: the layout of the pages, and where each file belongs below `/usr/share`. Refuses: to know any option. A program
//! calls [`asked`] first of all in its `main`; `cargo xtask dist` starts it with [`ARGUMENT`] and packs what it writes. So a
//! page cannot say anything else than `--help`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;
use roff::{Roff, roman};

pub use clap_complete::Shell;

/// The first word of a command line that asks a program for its pages. Two more words follow: the folder in which a tree like that
/// of `/usr/share` is made, and the date that the pages bear, such as `2026-11-26`. It is for those who make packages, and no option
/// of the program.
pub const ARGUMENT: &str = "--write-pages";

/// The sections of the manual that memscope's programs are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Commands of users.
    Commands,
    /// Programs that run as services.
    Daemons,
}

impl Section {
    /// The number of the section, with which the names of its files end.
    pub fn number(self) -> &'static str {
        match self {
            Section::Commands => "1",
            Section::Daemons => "8",
        }
    }
}

/// Writes the pages of a program if its command line asks for them; then the program must end with what is returned.
pub fn asked(command: impl FnOnce() -> Command, section: Section) -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [word, folder, date] = words.as_slice() else {
        return None;
    };
    if word != ARGUMENT {
        return None;
    }
    let folder = PathBuf::from(folder);
    match write(command(), section, &folder, &date.to_string_lossy()) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!(
                "the pages cannot be written to {}: {error}",
                folder.display()
            );
            Some(ExitCode::FAILURE)
        }
    }
}

/// Writes man pages, one for each command, and completions for three shells below `share`, which stands for `/usr/share`.
///
/// # Errors
/// If a file cannot be written.
pub fn write(command: Command, section: Section, share: &Path, date: &str) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let text = completions(command.clone(), shell);
        let file = share.join(completions_file(command.get_name(), shell));
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, text)?;
    }
    let folder = share.join(format!("man/man{}", section.number()));
    fs::create_dir_all(&folder)?;
    let version = command.get_version().unwrap_or_default().to_owned();
    let page = Page {
        section,
        date,
        source: format!("memscope {version}"),
    };
    // Without the command `help`, which would get a page for each other command.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    page.write_all(&command, &folder)
}

/// What a shell reads to complete a program's options and commands.
pub fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, &name, &mut text);
    if shell != Shell::Bash {
        return text;
    }
    // In a program's name with a hyphen clap_complete 4.6.11 writes the hyphen in two ways, and then finds none of its commands.
    let ours = name.replace('-', "__");
    let other = name.replace('-', "__subcmd__");
    String::from_utf8_lossy(&text)
        .replace(&other, &ours)
        .into_bytes()
}

/// Where a shell looks for the completions of a program, below `/usr/share`.
fn completions_file(program: &str, shell: Shell) -> PathBuf {
    PathBuf::from(match shell {
        Shell::Zsh => format!("zsh/vendor-completions/_{program}"),
        Shell::Fish => format!("fish/vendor_completions.d/{program}.fish"),
        _ => format!("bash-completion/completions/{program}"),
    })
}

/// What all pages of a program have in common.
struct Page<'a> {
    section: Section,
    date: &'a str,
    source: String,
}

impl Page<'_> {
    fn write_all(&self, command: &Command, folder: &Path) -> io::Result<()> {
        for each in command.get_subcommands().filter(|each| !each.is_hide_set()) {
            self.write_all(each, folder)?;
        }
        let man = Man::new(command.clone())
            .section(self.section.number())
            .date(self.date)
            .source(&self.source)
            .manual("memscope");
        let mut text = Vec::new();
        self.write_one(command, &man, &mut text)?;
        fs::write(folder.join(man.get_filename()), text)
    }

    /// The sections of one page. What stands after the options in `--help` has its own lines and columns, which clap_mangen would
    /// run together.
    fn write_one(&self, command: &Command, man: &Man, to: &mut Vec<u8>) -> io::Result<()> {
        man.render_title(to)?;
        man.render_name_section(to)?;
        man.render_synopsis_section(to)?;
        man.render_description_section(to)?;
        man.render_options_section(to)?;
        if command.get_subcommands().any(|each| !each.is_hide_set()) {
            man.render_subcommands_section(to)?;
        }
        let after = command
            .get_after_long_help()
            .or_else(|| command.get_after_help());
        if let Some(after) = after {
            notes(&after.to_string()).to_writer(to)?;
        }
        Ok(())
    }
}

/// The section of what stands after the options, line by line.
fn notes(text: &str) -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["NOTES"]);
    for (number, paragraph) in text.split("\n\n").enumerate() {
        if number > 0 {
            roff.control("PP", []);
        }
        roff.control("nf", []);
        for line in paragraph.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
    }
    roff
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use clap::Arg;

    fn program() -> Command {
        Command::new("memscope-try")
            .version("1.2.3")
            .about("Tries pages.")
            .after_help("Examples:\n  memscope-try one     what it does\n\n.dots begin no request")
            .subcommand(Command::new("one").about("The first command."))
            .subcommand(Command::new("secret").hide(true))
            .arg(Arg::new("dir").long("state-dir").help("Where state is."))
    }

    #[test]
    fn each_shown_command_has_a_page_and_each_shell_a_file() {
        let folder = tempfile::tempdir().unwrap();
        write(program(), Section::Commands, folder.path(), "2026-11-26").unwrap();
        let mut pages: Vec<String> = fs::read_dir(folder.path().join("man/man1"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        pages.sort();
        assert_eq!(pages, ["memscope-try-one.1", "memscope-try.1"]);
        for file in [
            "bash-completion/completions/memscope-try",
            "zsh/vendor-completions/_memscope-try",
            "fish/vendor_completions.d/memscope-try.fish",
        ] {
            let text = fs::read_to_string(folder.path().join(file)).unwrap();
            assert!(text.contains("state-dir"), "{file}: {text}");
        }
    }

    #[test]
    fn lines_of_notes_stay_lines() {
        let folder = tempfile::tempdir().unwrap();
        write(program(), Section::Daemons, folder.path(), "2026-11-26").unwrap();
        let page = fs::read_to_string(folder.path().join("man/man8/memscope-try.8")).unwrap();
        assert!(
            page.contains(".TH memscope-try 8 2026-11-26 \"memscope 1.2.3\" memscope"),
            "{page}"
        );
        let notes = page.split(".SH NOTES").nth(1).unwrap();
        assert!(
            notes.contains(".nf\nExamples:\n  memscope\\-try one     what it does\n.fi"),
            "{notes}"
        );
        // A line of text that begins with a dot must not be taken for a request of roff.
        assert!(
            !notes.lines().any(|line| line.starts_with(".dots")),
            "{notes}"
        );
    }
}
