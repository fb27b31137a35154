//! The configuration file: options of the command line, by their names, in TOML.
//!
//! Owns: which file is read, and how a setting in it becomes the option of the same name. So whatever is an option is a setting, and is
//! checked by the same code. Entries `[[attach]]` are the policy, which only the file has. What the command line or the environment gives goes before the file. Refuses: options that ask for
//! something else than to run (`--replay`, `--cleanup` and so on).

use crate::config::Config;
use crate::policy::Policy;
use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _};
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The file that is read, if it is there and no other one is named.
pub const USUAL: &str = "/etc/memscope/memscoped.toml";
/// The word for no file.
const NO_FILE: &str = "none";
/// Settings that also say where a daemon leaves something.
const LEFT_BEHIND: [&str; 3] = ["state-dir", "pin-dir", "log"];
/// Largest size of the file in bytes.
const LARGEST: u64 = 1 << 20;
/// Options that are no settings.
const NO_SETTINGS: &[&str] = &[
    "config",
    "check-config",
    "replay",
    "as-of",
    "earlier",
    "cleanup",
    "import",
    "output",
    "dump",
    "pid",
    "help",
    "version",
];

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error(
        "the configuration {path} cannot be read — name another one with --config FILE, or `--config none`"
    )]
    Unreadable {
        /// Path of the configuration file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is no TOML.
    #[error("the configuration {path} is no TOML")]
    NoToml {
        /// Path of the configuration file.
        path: PathBuf,
        /// Where, and what was expected there.
        source: Box<toml::de::Error>,
    },
    /// A setting is none, or has a value of the wrong kind.
    #[error("the configuration {path}: {what}")]
    Setting {
        /// Path of the configuration file.
        path: PathBuf,
        /// Which setting, and what is wrong with it.
        what: String,
    },
    /// The command line is wrong, or asks for help.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The settings of the file are wrong, by themselves or together with the command line.
    #[error("the configuration {path}:\n{source}")]
    Wrong {
        /// Path of the configuration file.
        path: PathBuf,
        /// What is wrong.
        source: clap::Error,
    },
}

/// The options, and the file that some of them come from.
#[derive(Debug)]
pub struct Settings {
    /// All options.
    pub config: Config,
    /// The file that was read, with the number of settings in it; `None`: no file.
    pub file: Option<(PathBuf, usize)>,
}

impl Settings {
    /// Reads the command line, and the configuration file that it names or the usual one.
    ///
    /// # Errors
    /// If either is wrong. An error of the command line is also the wish for help.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Settings, SettingsError> {
        Settings::read_with(arguments, Path::new(USUAL))
    }

    fn read_with(
        arguments: impl IntoIterator<Item = OsString>,
        usual: &Path,
    ) -> Result<Settings, SettingsError> {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        // The command line alone may lack what the file gives, so its errors do not count yet.
        let given = Config::command()
            .ignore_errors(true)
            .try_get_matches_from(&arguments)?;
        let named = given.get_one::<PathBuf>("config").cloned();
        let works_on_a_file = given.contains_id("replay") || given.contains_id("import");
        let path = match named {
            Some(named) if named.as_os_str() == NO_FILE => None,
            Some(named) => Some(named),
            None => Some(usual.to_owned()).filter(|path| !works_on_a_file && path.exists()),
        };
        let Some(path) = path else {
            let matches = Config::command().try_get_matches_from(&arguments)?;
            let config = Config::from_arg_matches(&matches)?;
            return Ok(Settings { config, file: None });
        };
        let goes_before = |name: &str| {
            let source = given.value_source(&name.replace('-', "_"));
            matches!(
                source,
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            )
        };
        let mut table = table(&path)?;
        if goes_before("cleanup") || goes_before("earlier") {
            // These look at what a daemon has left. The rest of its settings is for a daemon that runs, and has no place beside them.
            table.retain(|name, _| LEFT_BEHIND.contains(&name));
        }
        let attach = table.remove("attach");
        let (words, count) = words(&path, &table, goes_before)?;
        let policy = attach.map(|attach| Policy::read(&attach)).transpose();
        let policy = policy.map_err(|error| SettingsError::Setting {
            path: path.clone(),
            what: error.to_string(),
        })?;
        let program = arguments
            .first()
            .cloned()
            .unwrap_or_else(|| "memscoped".into());
        let rest = arguments.into_iter().skip(1);
        let all: Vec<OsString> = std::iter::once(program).chain(words).chain(rest).collect();
        let read = Config::command().try_get_matches_from(all);
        let read = read.and_then(|matches| Config::from_arg_matches(&matches));
        match read {
            Ok(config) => Ok(Settings {
                config: Config {
                    policy: policy.unwrap_or_default(),
                    ..config
                },
                file: Some((path, count)),
            }),
            Err(error) if !error.use_stderr() => Err(error.into()),
            Err(source) => Err(SettingsError::Wrong { path, source }),
        }
    }
}

/// What is in the file.
fn table(path: &Path) -> Result<toml::Table, SettingsError> {
    let unreadable = |source| SettingsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(LARGEST + 1)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 > LARGEST {
        return Err(SettingsError::Setting {
            path: path.to_owned(),
            what: format!("it has more than {LARGEST} bytes — is it the right file?"),
        });
    }
    text.parse().map_err(|source| SettingsError::NoToml {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

/// The words of a command line that the file stands for, without those that something else `goes_before`; and how many settings it has.
fn words(
    path: &Path,
    table: &toml::Table,
    goes_before: impl Fn(&str) -> bool,
) -> Result<(Vec<OsString>, usize), SettingsError> {
    let wrong = |what: String| SettingsError::Setting {
        path: path.to_owned(),
        what,
    };
    let command = Config::command();
    let mut words = Vec::new();
    for (name, value) in table {
        let option = command
            .get_arguments()
            .find(|option| option.get_long() == Some(name));
        let Some(option) = option.filter(|_| !NO_SETTINGS.contains(&name.as_str())) else {
            let hint = if NO_SETTINGS.contains(&name.as_str()) {
                "it belongs on the command line"
            } else {
                "`memscoped --help` lists the options, which are the settings without the dashes"
            };
            return Err(wrong(format!("{name:?} is no setting — {hint}")));
        };
        if goes_before(name) {
            continue;
        }
        let is_list = matches!(option.get_action(), ArgAction::Append);
        match value {
            toml::Value::Boolean(on) if option.get_action().takes_values() => {
                return Err(wrong(format!(
                    "{name} = {on}: it wants a value, as in `memscoped --help`"
                )));
            }
            toml::Value::Boolean(true) => words.push(format!("--{name}").into()),
            toml::Value::Boolean(false) => {}
            _ if !option.get_action().takes_values() => {
                return Err(wrong(format!("{name} is true or false")));
            }
            toml::Value::Array(all) if is_list => {
                for one in all {
                    let one =
                        scalar(one).ok_or_else(|| wrong(format!("{name} is a list of texts")))?;
                    words.push(format!("--{name}={one}").into());
                }
            }
            other => {
                let one =
                    scalar(other).ok_or_else(|| wrong(format!("{name} is one text or number")))?;
                words.push(format!("--{name}={one}").into());
            }
        }
    }
    Ok((words, table.len()))
}

/// A text or a number, as it stands on a command line.
fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

/// What is wrong with a configuration, in one line: without the picture of the place in the file.
pub fn one_line(text: &str) -> String {
    let is_told = |line: &&str| {
        let behind_number = line.trim_start_matches(|one: char| one.is_ascii_digit());
        !line.is_empty() && !behind_number.trim_start().starts_with('|')
    };
    let lines = text.lines().map(str::trim).filter(is_told);
    let parts: Vec<&str> = lines.map(|line| line.trim_end_matches(':')).collect();
    parts.join(": ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// What is read from a command line and a file with this text.
    fn read(line: &[&str], text: &str) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memscoped.toml");
        std::fs::write(&file, text).unwrap();
        let line = ["memscoped"].iter().chain(line).map(OsString::from);
        Settings::read_with(line, &file).map_err(|error| {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(error) = source {
                text.push_str(&format!(": {error}"));
                source = error.source();
            }
            text
        })
    }

    #[test]
    fn settings_are_options() {
        let text = r#"
            # A comment.
            state-dir = "/srv/memscope"
            journal-mib = 1024
            memory = "1GiB"
            no-oom-snapshots = true
            probe-user-mounts = false
            snapshot-when = ["allocated > 20GiB", "growth > 2GiB in 10m"]
            metrics = "127.0.0.1:9464"
        "#;
        let settings = read(&[], text).unwrap();
        let config = settings.config;
        assert_eq!(config.state_dir, Path::new("/srv/memscope"));
        assert_eq!((config.journal_mib, config.memory), (1024, 1 << 30));
        assert!(config.no_oom_snapshots && !config.probe_user_mounts);
        assert_eq!(config.snapshot_when.len(), 2);
        assert_eq!(config.metrics.unwrap().port(), 9464);
        assert_eq!(settings.file.unwrap().1, 7);
        // The command line goes before the file.
        let both = read(
            &["--journal-mib", "8", "--snapshot-when", "reserved > 1GiB"],
            text,
        )
        .unwrap();
        assert_eq!(
            (both.config.journal_mib, both.config.snapshot_when.len()),
            (8, 1)
        );
        assert_eq!(both.config.memory, 1 << 30);
    }

    #[test]
    fn a_file_is_read_only_to_run() {
        for line in [
            &["--replay", "x"][..],
            &["--import", "x", "--output", "y"],
            &["--config", "none"],
        ] {
            let settings = read(line, "no TOML").unwrap();
            assert!(settings.file.is_none(), "{line:?}");
        }
        let running = "state-dir = \"/x\"\notlp-endpoint = \"http://127.0.0.1:4318\"\nlisten = [\"127.0.0.1:0\"]\n\
                       tls-cert = \"a\"\ntls-key = \"b\"\ntls-client-ca = \"c\"\n[[attach]]\nuser = \"ada\"";
        for word in ["--cleanup", "--earlier"] {
            for file in ["state-dir = \"/x\"", running] {
                let settings = read(&[word], file).unwrap();
                assert_eq!(
                    settings.config.state_dir,
                    Path::new("/x"),
                    "that of the daemon that left something"
                );
            }
        }
        let missing = read(&["--config", "/no/such/file"], "").unwrap_err();
        assert!(
            missing.contains("/no/such/file") && missing.contains("--config none"),
            "{missing}"
        );
    }

    #[test]
    fn what_the_command_line_lacks_may_be_in_the_file() {
        let tls = "tls-cert = \"a\"\ntls-key = \"b\"\ntls-client-ca = \"c\"";
        let settings = read(&["--listen", "127.0.0.1:0"], tls).unwrap();
        assert_eq!(settings.config.tls_cert.as_deref(), Some(Path::new("a")));
        let lacking = read(&[], "listen = [\"127.0.0.1:0\"]").unwrap_err();
        assert!(
            lacking.contains("memscoped.toml") && lacking.contains("--tls-cert"),
            "{lacking}"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            (
                "journal-mb = 3",
                &["\"journal-mb\" is no setting", "memscoped --help"][..],
            ),
            ("journal_mib = 3", &["\"journal_mib\" is no setting"]),
            (
                "replay = \"x\"",
                &["\"replay\" is no setting", "command line"],
            ),
            ("config = \"x\"", &["\"config\" is no setting"]),
            (
                "journal-mib = \"many\"",
                &["memscoped.toml", "--journal-mib", "many"],
            ),
            ("journal-mib = true", &["journal-mib = true", "a value"]),
            (
                "journal-mib = [1, 2]",
                &["journal-mib is one text or number"],
            ),
            (
                "no-oom-snapshots = 1",
                &["no-oom-snapshots is true or false"],
            ),
            (
                "snapshot-when = [[1]]",
                &["snapshot-when is a list of texts"],
            ),
            ("snapshot-when = [\"often\"]", &["--snapshot-when", "often"]),
            ("memory = \"1MiB\"", &["--memory", "64MiB"]),
            ("a = ", &["is no TOML", "line 1"]),
            ("[memory]\nlimit = 3", &["memory is one text or number"]),
        ] {
            let said = read(&[], text).unwrap_err();
            for word in words {
                assert!(said.contains(word), "{text}: {word}: {said}");
            }
        }
        let large = format!("# {}", "x".repeat(LARGEST as usize));
        assert!(read(&[], &large).unwrap_err().contains("more than"));
    }

    #[test]
    fn the_example_has_no_mistake() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/memscoped.toml");
        let text = std::fs::read_to_string(example).unwrap();
        assert_eq!(
            read(&[], &text).unwrap().file.unwrap().1,
            0,
            "everything is a comment"
        );
        let lines = text.lines().map(|line| match line.strip_prefix('#') {
            Some(setting)
                if setting
                    .starts_with(|first: char| first.is_ascii_lowercase() || first == '[') =>
            {
                setting
            }
            _ => line,
        });
        let all: String = lines.map(|line| format!("{line}\n")).collect();
        let settings = read(&[], &all).unwrap();
        assert!(settings.file.unwrap().1 > 12);
        assert_eq!(settings.config.policy.entries.len(), 2);
    }

    #[test]
    fn what_is_wrong_has_one_line_in_messages() {
        let picture = read(&[], "metrics = \"127.0.0.1:9\"\nmemory = = 3\n").unwrap_err();
        assert!(picture.lines().count() > 2, "{picture}");
        let said = one_line(&picture);
        let has = |what: &str| said.contains(what);
        assert!(
            has("line 2, column 10") && !has("\n") && !has(" | ") && !has("= ="),
            "{said}"
        );
        let last = picture.trim_end().lines().last().unwrap();
        assert!(said.ends_with(last), "{said}");
        let said = one_line(&read(&[], "memory = \"lots\"").unwrap_err());
        assert!(
            said.contains("lots") && !said.contains('\n') && !said.contains("::"),
            "{said}"
        );
    }

    #[test]
    fn help_is_help() {
        let Err(error) = Settings::read_with(
            ["memscoped", "--help"].map(OsString::from),
            Path::new("/no/file"),
        ) else {
            panic!("no help");
        };
        assert!(matches!(&error, SettingsError::CommandLine(error) if !error.use_stderr()));
    }
}
