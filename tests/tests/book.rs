//! The book is true: every command in README.md and docs/ is run, what they show as printed is printed, the messages that
//! they quote exist, and their links lead somewhere.
//!
//! `MEMSCOPE_BOOK=write cargo test -p memscope-tests --test book` writes what is printed into the pages: after a change of a
//! table's layout, run it and read the difference. `MEMSCOPE_BOOK_DEMO=FILE` besides takes the answers of the demonstration
//! from its own output (`COLUMNS=100 cargo xtask demo > FILE`).

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use memscope_tests::book::{
    Block, Command, Scene, Sources, Stage, broken_links, masked, pages, pages_without_one_place,
    shell_words, shortened, shows, words_of_ours,
};
use memscope_tests::{Asking, Daemon, root, tool, xtask};

/// Lines that README may have.
const LINES: usize = 150;
/// Columns that README's lines may have. Answers that are written into pages fit into them.
const COLUMNS: usize = 100;
/// So wide that no answer is broken or shortened: what a page shows is compared with the whole of it.
const WHOLE: usize = 2000;

/// What is not run, and why. What can be checked of it without running it is checked by [`check_not_run`].
const NOT_RUN: [(&str, &str); 4] = [
    (
        "cargo xtask",
        "the tasks build, download, and run tests, this one among them, for minutes to hours",
    ),
    (
        "cargo install",
        "it builds both programs anew, and puts them into the home of whoever runs this test",
    ),
    (
        "pip install",
        "the tests of the Python package install it, into an environment of their own",
    ),
    ("install", "it puts programs into /usr/bin of this machine"),
];

/// A command as it is run here, as root.
fn plain(text: &str) -> &str {
    text.strip_prefix("sudo ").unwrap_or(text)
}

/// The reason why a command is not run, by how it begins.
fn not_run(text: &str) -> Option<&'static str> {
    let fits = |beginning: &str| {
        plain(text)
            .strip_prefix(beginning)
            .is_some_and(|rest| rest.starts_with(' '))
    };
    NOT_RUN
        .iter()
        .map(|(beginning, _)| *beginning)
        .find(|beginning| fits(beginning))
}

fn is_daemon(text: &str) -> bool {
    plain(text).split(' ').next() == Some("memscoped")
}

/// Listed commands of all pages, in blocks as the pages have them; a page's tables are one more block.
fn listed() -> Vec<Vec<Command>> {
    let mut blocks = Vec::new();
    for page in pages() {
        for block in page.blocks() {
            let mut commands = block.commands();
            commands.retain(|command| command.output.is_none());
            blocks.push(commands);
        }
        blocks.push(page.commands_of_tables());
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// The blocks that show output.
fn shown() -> Vec<Block> {
    let blocks = pages().into_iter().flat_map(|page| page.blocks());
    blocks
        .filter(|block| {
            block
                .commands()
                .iter()
                .any(|command| command.output.is_some())
        })
        .collect()
}

#[test]
fn every_command_is_accounted_for() {
    let mut used = BTreeSet::new();
    let mut count = 0;
    for command in listed().into_iter().flatten() {
        count += 1;
        let Command { place, text, .. } = &command;
        if words_of_ours(text).is_some() || is_daemon(text) {
            continue;
        }
        let beginning = not_run(text).unwrap_or_else(|| {
            panic!("{place}: nothing here runs `{text}`, and it is no exception with a reason; a block without commands begins with ```text")
        });
        used.insert(beginning);
        check_not_run(place, beginning, plain(text));
    }
    assert!(count > 70, "{count} commands are found");
    let exceptions: BTreeSet<&str> = NOT_RUN.iter().map(|(beginning, _)| *beginning).collect();
    assert_eq!(used, exceptions, "an exception of which there is no case");
    for block in shown() {
        for command in block.commands() {
            let output = command.output.unwrap_or_default();
            let says = |line: &String| !line.trim().is_empty() && line.trim() != "…";
            let (place, text) = (&command.place, &command.text);
            assert!(
                output.iter().any(says),
                "{place}: nothing of what `{text}` prints is shown"
            );
        }
        let place = format!("{}:{}", block.page, block.first);
        let known = Scene::ALL.map(Scene::name);
        let program = block.program.unwrap_or_default();
        assert!(
            known.contains(&program.as_str()),
            "{place}: the block shows output; `<!-- program: NAME -->` above it must name one of {known:?}, not {program:?}"
        );
    }
}

/// What can be said of a command that is not run: what it names exists.
#[track_caller]
fn check_not_run(place: &str, beginning: &str, text: &str) {
    let words = shell_words(text);
    match beginning {
        "cargo xtask" => check_options(place, text),
        "cargo install" => {
            let at = words.iter().position(|word| word == "--path").expect(place);
            let manifest = root().join(&words[at + 1]).join("Cargo.toml");
            assert!(manifest.exists(), "{place}: {}", manifest.display());
        }
        "pip install" => {
            // `./clients/python[grpc]`: a folder, and an extra of the project in it.
            let (folder, extra) = words[2].split_once('[').expect(place);
            let project = root().join(folder).join("pyproject.toml");
            let project = std::fs::read_to_string(project).expect(place);
            let extra = extra.trim_end_matches(']');
            assert!(project.contains(&format!("\n{extra} = [")), "{place}");
        }
        _ => {
            for word in words.iter().filter(|word| word.contains(".cargo/bin/")) {
                let name = word.rsplit('/').next().unwrap();
                assert!(tool(name).exists(), "{place}: {name}");
            }
        }
    }
}

/// What the help of a command says, by its subcommands.
fn help(program: &str, subcommands: &[&str]) -> Option<String> {
    type Known = BTreeMap<Vec<String>, Option<String>>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let key: Vec<String> = [&[program], subcommands]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect();
    let mut known = KNOWN.lock().unwrap_or_else(|broken| broken.into_inner());
    let found = known.entry(key).or_insert_with(|| {
        let words = [subcommands, &["--help"]].concat();
        if program == "cargo xtask" {
            let (output, said, _) = xtask(&words);
            return output.status.success().then_some(said);
        }
        let program = tool(program);
        let said = Asking::raw(&[program.to_str().unwrap()], words).ask();
        (said.code == 0).then_some(said.output)
    });
    found.clone()
}

/// The program, its subcommands and its options exist, by their help. Words behind `--` are another program's.
#[track_caller]
fn check_options(place: &str, text: &str) {
    let programs = ["cargo xtask", "memscope-ctl", "memscoped"];
    let program = programs
        .into_iter()
        .find(|program| plain(text).starts_with(program));
    let program = program.unwrap_or_else(|| panic!("{place}: {text}"));
    let words = shell_words(&plain(text)[program.len()..]);
    let words: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .take_while(|word| !matches!(*word, "--" | "||"))
        .collect();
    let mut helps = vec![help(program, &[]).expect("a program has help")];
    let mut chain: Vec<&str> = Vec::new();
    for word in &words {
        if word.starts_with('-') || program == "memscoped" {
            continue;
        }
        let longer = [&chain[..], &[*word]].concat();
        // A word that is no subcommand is an argument or an option's value.
        let lists = |text: &str| {
            text.lines()
                .any(|line| line.starts_with("  ") && line.split_whitespace().next() == Some(word))
        };
        if !lists(helps.last().unwrap()) {
            continue;
        }
        if let Some(text) = help(program, &longer) {
            helps.push(text);
            chain = longer;
        }
    }
    let words_in_capitals = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_uppercase());
    assert!(
        program == "memscoped"
            || !chain.is_empty()
            || words.iter().all(|word| word.starts_with('-'))
            || words.iter().any(|word| words_in_capitals(&word)),
        "{place}: {program} has no such subcommand: {text}"
    );
    for option in words.iter().filter(|word| word.starts_with("--")) {
        let name: &str = option.split('=').next().unwrap();
        let name = name.trim_end_matches(|letter: char| !letter.is_alphanumeric());
        let known = helps.iter().any(|help| {
            let mut words = help.split(|letter: char| !(letter.is_alphanumeric() || letter == '-'));
            words.any(|word| word == name)
        });
        assert!(known, "{place}: {text}: no option {name} in the help");
    }
}

#[test]
fn commands_that_the_text_mentions_exist() {
    let mut count = 0;
    for page in pages() {
        for (line, _, text) in page.spans() {
            let place = format!("{}:{line}", page.name);
            let programs = ["memscope-ctl --", "memscoped --", "cargo xtask "];
            let begins = |program: &&str| plain(&text).starts_with(*program);
            let subcommand = format!("memscope-ctl {text}");
            if words_of_ours(&text).is_some() || programs.iter().any(begins) {
                check_options(&place, &text);
            } else if text.contains(" --") && is_subcommand(&text) {
                check_options(&place, &subcommand);
            } else {
                continue;
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count} mentions are found");
}

/// Whether a text begins with a subcommand of memscope-ctl.
fn is_subcommand(text: &str) -> bool {
    let first = text.split(' ').next().unwrap_or_default();
    subcommands(&help("memscope-ctl", &[]).unwrap()).contains(&first.to_owned())
}

/// The subcommands that a help lists.
fn subcommands(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| line.starts_with("  "));
    // What a long description needs besides stands further in.
    let names = list.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Options of programs that are not ours, by the beginnings of the pieces of code that name them.
const OF_OTHERS: [&str; 5] = [
    "cargo build --no-default-features",
    "strip --strip-all",
    "--pid=host",
    "--cgroupns=host",
    "sudo systemctl ",
];

#[test]
fn options_that_the_text_mentions_exist() {
    let own = ["memscoped", "memscope-archive"];
    let mut helps: Vec<String> = own.iter().map(|it| help(it, &[]).unwrap()).collect();
    for program in ["memscope-ctl", "cargo xtask"] {
        let mut chains = vec![Vec::new()];
        while let Some(chain) = chains.pop() {
            let words: Vec<&str> = chain.iter().map(String::as_str).collect();
            let text =
                help(program, &words).unwrap_or_else(|| panic!("{program} {chain:?} has no help"));
            for name in subcommands(&text) {
                chains.push([&chain[..], &[name]].concat());
            }
            helps.push(text);
        }
    }
    let letter = |letter: char| letter.is_alphanumeric() || letter == '-';
    let known: BTreeSet<&str> = helps
        .iter()
        .flat_map(|help| help.split(|other| !letter(other)))
        .collect();
    let mut count = 0;
    for page in pages() {
        for (line, _, text) in page.spans() {
            if OF_OTHERS.iter().any(|other| text.starts_with(other)) {
                continue;
            }
            let words = text.split(|other| !letter(other));
            for option in words.filter(|word| word.len() > 2 && word.starts_with("--")) {
                assert!(
                    known.contains(option),
                    "{}:{line}: no program has {option} (`{text}`)",
                    page.name
                );
                count += 1;
            }
        }
    }
    assert!(count > 150, "{count} options are found");
}

#[test]
fn the_daemons_options_have_the_defaults_that_the_book_says() {
    let help = help("memscoped", &[]).unwrap();
    let page = pages()
        .into_iter()
        .find(|page| page.name == "docs/install.md")
        .unwrap();
    let mut count = 0;
    for line in page.lines.iter().filter(|line| line.starts_with("| `--")) {
        // An escaped bar is part of a cell.
        let line = line.replace("\\|", "/");
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let option = cells[1].trim_matches('`').split(' ').next().unwrap();
        let default = cells[3].trim_matches('`').replace(',', "");
        if default.contains(' ') {
            continue;
        }
        let about = help
            .split(&format!("  {option} "))
            .nth(1)
            .unwrap_or_else(|| panic!("no {option}"));
        let said = about
            .split("[default: ")
            .nth(1)
            .and_then(|rest| rest.split(']').next());
        assert_eq!(said, Some(default.as_str()), "{option}");
        count += 1;
    }
    assert!(count > 5, "{count} defaults are found");
}

#[test]
fn every_listed_command_does_what_its_page_says() {
    let mut stage = Stage::start();
    let mut count = 0;
    for block in listed() {
        stage.begin();
        for Command { place, text, .. } in &block {
            if is_daemon(text) {
                let words = shell_words(plain(text));
                let options = words[1..]
                    .iter()
                    .map(String::as_str)
                    .filter(|word| *word != "&");
                Daemon::with(&options.collect::<Vec<_>>());
            } else if words_of_ours(text).is_some() {
                stage.run(place, text);
            } else {
                continue;
            }
            count += 1;
        }
    }
    assert!(count > 60, "{count} commands were run");
}

#[test]
fn what_the_demonstration_prints() {
    as_shown(Scene::Demo);
}

#[test]
fn what_a_process_prints_that_runs_out_of_memory() {
    as_shown(Scene::OutOfMemory);
}

#[test]
fn what_a_process_on_an_npu_prints() {
    as_shown(Scene::Npu);
}

#[test]
fn what_pools_print_that_tell_of_themselves() {
    as_shown(Scene::Pools);
}

#[test]
fn what_is_said_of_a_program_that_wastes_memory() {
    as_shown(Scene::Wasteful);
}

/// What the pages show of a situation is what is printed in it, but for what varies; or it is written into them.
#[track_caller]
fn as_shown(scene: Scene) {
    let mut blocks = shown();
    blocks.retain(|block| block.program.as_deref() == Some(scene.name()));
    assert!(!blocks.is_empty(), "no page shows {scene:?}");
    let commands: Vec<Command> = blocks.iter().flat_map(Block::commands).collect();
    // The same command in several blocks is asked once, so that all pages show one run.
    let mut texts: Vec<&str> = Vec::new();
    for command in &commands {
        let general = general(&command.text);
        if !texts.iter().any(|text| self::general(text) == general) {
            texts.push(&command.text);
        }
    }
    let write = std::env::var("MEMSCOPE_BOOK").is_ok_and(|what| what == "write");
    let demo = std::env::var("MEMSCOPE_BOOK_DEMO")
        .ok()
        .filter(|_| scene == Scene::Demo && write);
    let answers = match demo {
        Some(file) => {
            let mut answers = from_a_demonstration(&file);
            let is_there = |text: &&str| {
                answers
                    .iter()
                    .any(|(asked, _)| general(asked) == general(text))
            };
            let (_, others): (Vec<&str>, Vec<&str>) = texts.iter().partition(|text| is_there(text));
            // What it does not ask is asked in a run of this test's own.
            answers.extend(scene.play(&others, COLUMNS));
            answers
        }
        None => scene.play(&texts, if write { COLUMNS } else { WHOLE }),
    };
    let answer = |text: &str| {
        let found = answers
            .iter()
            .find(|(asked, _)| general(asked) == general(text));
        found.unwrap_or_else(|| panic!("no answer to {text}"))
    };
    if write {
        return write_pages(scene, &answer);
    }
    for command in &commands {
        let Command {
            place,
            text,
            output,
        } = command;
        let (_, lines) = answer(text);
        let page = output.as_deref().unwrap();
        if let Err(difference) = shows(page, lines) {
            panic!(
                "{place}: `{text}` prints something else than the page shows. {difference}\n\nThe page:\n{}\n\nThe answer:\n{}\n\n\
                 If the answer is right: MEMSCOPE_BOOK=write cargo test -p memscope-tests --test book",
                page.join("\n"),
                lines.join("\n")
            );
        }
    }
    assert_one_run(&commands);
}

/// The pages show one run: of one process, and where two of them show the same line of the same answer, with the same numbers.
#[track_caller]
fn assert_one_run(commands: &[Command]) {
    let pids: BTreeSet<String> = commands
        .iter()
        .filter_map(|command| pid(&command.text))
        .collect();
    assert!(
        pids.len() <= 1,
        "the pages show several runs: processes {pids:?}"
    );
    // By command and masked line: where it was shown first, and how.
    let mut shown: BTreeMap<(&str, Vec<String>), (&str, &str)> = BTreeMap::new();
    for command in commands {
        let lines: Vec<&String> = command.output.iter().flatten().collect();
        let masks: Vec<Vec<String>> = lines.iter().map(|line| masked(line)).collect();
        for (line, mask) in lines.iter().zip(&masks) {
            // A line that looks like another one of the same answer says nothing about other pages.
            let only = masks.iter().filter(|other| *other == mask).count() == 1;
            if !only || line.contains('…') {
                continue;
            }
            let new = (command.place.as_str(), line.as_str());
            let (place, first) = *shown.entry((&command.text, mask.clone())).or_insert(new);
            assert_eq!(
                first,
                line.as_str(),
                "{place} and {} show different runs",
                command.place
            );
        }
    }
}

/// The process that a command names.
fn pid(text: &str) -> Option<String> {
    let words = shell_words(text);
    let at = words.iter().position(|word| word == "--pid")?;
    words.get(at + 1).cloned()
}

/// A command without the number of the process.
fn general(text: &str) -> String {
    pid(text).map_or_else(|| text.to_owned(), |pid| text.replace(&pid, "PID"))
}

/// The questions and answers in the output of `cargo xtask demo`.
fn from_a_demonstration(file: &str) -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let own = format!("{}/", root().display());
    let mut answers: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            answers.push((command.to_owned(), Vec::new()));
        } else if let Some((_, lines)) = answers.last_mut() {
            lines.push(line.replace(&own, "").trim_end().to_owned());
        }
    }
    for (_, lines) in &mut answers {
        let end = lines
            .iter()
            .rposition(|line| !line.is_empty() && !line.starts_with('…'));
        lines.truncate(end.map_or(0, |end| end + 1));
    }
    answers
}

/// Writes the answers into every block of a situation.
fn write_pages<'a>(scene: Scene, answer: &dyn Fn(&str) -> &'a (String, Vec<String>)) {
    // The tests of other situations write pages, too.
    static WRITING: Mutex<()> = Mutex::new(());
    let _one_by_one = WRITING.lock().unwrap_or_else(|broken| broken.into_inner());
    for page in pages() {
        let mut lines = page.lines.clone();
        let mut blocks = page.blocks();
        blocks.retain(|block| block.program.as_deref() == Some(scene.name()));
        // From the end, so that those before keep their places.
        for block in blocks.iter().rev() {
            let begin = block.lines.iter().position(|line| line.starts_with("$ "));
            let mut new = block.lines[..begin.unwrap_or(0)].to_vec();
            for (at, command) in block.commands().iter().enumerate() {
                let (text, said) = answer(&command.text);
                if at > 0 {
                    new.push(String::new());
                }
                new.push(format!("$ {text}"));
                let old = command.output.as_deref().unwrap_or_default();
                new.extend(shortened(old, said, COLUMNS));
            }
            lines.splice(block.first..block.first + block.lines.len(), new);
        }
        if lines != page.lines {
            std::fs::write(root().join(&page.name), lines.join("\n") + "\n").unwrap();
            eprintln!("written: {}", page.name);
        }
    }
}

#[test]
fn what_stands_before_the_first_question_of_a_demonstration_is_printed() {
    let sources = Sources::read();
    let mut count = 0;
    for block in shown() {
        for line in block
            .lines
            .iter()
            .take_while(|line| !line.starts_with("$ "))
        {
            let missing = sources.missing(line);
            assert!(
                missing.is_empty(),
                "{}: no program says {missing:?}",
                block.page
            );
            count += usize::from(!line.is_empty());
        }
    }
    assert!(count > 0, "no demonstration begins with a word");
}

#[test]
fn every_message_that_is_explained_exists() {
    let sources = Sources::read();
    let page = pages()
        .into_iter()
        .find(|page| page.name == "docs/troubleshooting.md")
        .unwrap();
    let prose = page.prose();
    let mut missing = Vec::new();
    let mut count = 0;
    for (line, table, text) in page.spans() {
        let before = &prose[line - 1];
        // Messages are in bold, in lists of reasons, in brackets behind a message, and in the table of what doctor finds.
        let quoted = before.contains(&format!("**`{}", text.split(' ').next().unwrap()))
            || before.contains("**``")
            || (before.starts_with("* `") && !text.starts_with("--"))
            || (table && text.contains(' '));
        let ours = words_of_ours(&text).is_some() || text.starts_with("sysctl ");
        if !quoted || ours {
            continue;
        }
        count += 1;
        for part in sources.missing(&text) {
            missing.push(format!(
                "{}:{line}: no program says {part:?} (of `{text}`)",
                page.name
            ));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(count > 100, "{count} messages are found");
}

/// A restart is a stop and a start: it detaches everything. What loses nothing is a reload.
#[test]
fn who_reads_of_a_restart_reads_that_it_detaches() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let prose = page.prose().join("\n");
        for paragraph in prose.split("\n\n") {
            let words: Vec<&str> = paragraph.split_whitespace().collect();
            let said = words.join(" ");
            if said.contains("systemctl restart memscoped") {
                count += 1;
                if said.contains("loses nothing") || !said.contains("detach") {
                    wrong.push(format!("{}: {said}", page.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 0, "no page tells of a restart");
}

#[test]
fn links_lead_somewhere_and_every_page_is_listed() {
    let broken = broken_links();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let lost = pages_without_one_place();
    assert!(
        lost.is_empty(),
        "docs/SUMMARY.md lists these not at all or twice: {lost:?}"
    );
}

/// A newcomer reads it to its end.
#[test]
fn readme_is_short() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= LINES, "{} lines", lines.len());
    let long = lines.iter().filter(|line| line.chars().count() > COLUMNS);
    assert_eq!(long.collect::<Vec<_>>(), Vec::<&&str>::new());
}
