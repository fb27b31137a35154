//! A journal whose older part is gone: a moment is as it was, or it is refused; a recording answers as the daemon did.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::limits::Met;
use memscope_tests::{
    Asking, Daemon, LONG, Said, Torch, Value, assert_totals, coverage, find, number, scratch, until,
};

/// A journal that rotates after some ten thousand events, and a ring that holds all that comes between two questions: no
/// record is lost however busy the machine is.
const SMALL: [&str; 6] = [
    "--journal-mib",
    "2",
    "--trace-entries",
    "2000",
    "--ring-mib",
    "64",
];

/// What a moment was like.
struct Moment {
    event: u64,
    unix_ns: u64,
    then: Value,
}

impl Moment {
    /// The moment that this snapshot, taken live, shows.
    fn of(then: Value) -> Self {
        Self {
            event: number(&then["header"]["as_of_event"]["sequence"]),
            unix_ns: number(&then["header"]["as_of"]),
            then,
        }
    }
}

/// Segments with their blocks, and the trace.
fn picture(snapshot: &Value) -> (&Value, &Value) {
    (&snapshot["segments"], &snapshot["trace"])
}

/// Since when the journal knows the process, in nanoseconds since 1970.
fn known_from(daemon: &Daemon, pid: u32) -> u64 {
    let all = daemon.json(&["ps"]);
    let row = find(&all["processes"], "pid", pid);
    number(&row.unwrap_or(&all)["known_from_unix_ns"])
}

fn snapshot_at(pid: &str, at: &str, ask: &dyn Fn(&[&str]) -> Said) -> Said {
    ask(&["snapshot", "--pid", pid, "--format", "json", "--at", at])
}

/// Each moment is as it was, or refused; the refused ones are the oldest. Gives how many there were of each.
fn look_back(pid: &str, moments: &[Moment], ask: &dyn Fn(&[&str]) -> Said) -> (usize, usize) {
    let mut refused = 0;
    let mut answered: Vec<(u64, String)> = Vec::new();
    for moment in moments {
        for at in [
            format!("event:{}", moment.event),
            moment.unix_ns.to_string(),
        ] {
            let said = snapshot_at(pid, &at, ask);
            if said.code == 0 {
                let again = said.document();
                assert_eq!(picture(&again), picture(&moment.then), "at {at}");
                assert!(!coverage(&again["header"]).contains(&"journal_begins_late"));
                assert!(!coverage(&again["header"]).contains(&"recording_damaged"));
                answered.push((moment.event, at));
            } else {
                said.refused(2, &["no longer in the journal", "known from"]);
                // A checkpoint that was still being written may have let the oldest part go since an older moment was answered: then
                // that one is refused now as well.
                // The event right before the journal begins is known from the checkpoint there, but not when it was: only by its number
                // the moment can be answered.
                let older = answered.extract_if(.., |(event, _)| *event != moment.event);
                for (_, older) in older {
                    let now = snapshot_at(pid, &older, ask);
                    assert_eq!(now.code, 2, "an older moment is answered: {now} {said}");
                    refused += 1;
                }
                refused += 1;
            }
        }
    }
    (refused, answered.len())
}

fn run(late: bool) {
    let mut daemon = Daemon::with(&SMALL);
    let mut torch = Torch::start(&[]);
    let pid = torch.pid_text();
    // What is held all the time: a fold that does not begin at the beginning does not know it.
    torch.ask("allocs held 300 70000");
    if late {
        torch.ask("train");
        daemon.attach(torch.pid(), "trace");
    } else {
        daemon.attach(torch.pid(), "trace");
        torch.ask("train");
    }
    let mut moments: Vec<Moment> = Vec::new();
    // Until the oldest moments are no longer in the journal: how much it holds is the daemon's affair.
    let mut lost = 0;
    while lost < 3 {
        let round = moments.len();
        assert!(
            round < 100,
            "the journal has lost {lost} of {round} moments"
        );
        torch.ask(&format!("allocs round{round} {} 3000", round % 14 + 5));
        let told = torch.churn(&daemon, 30000);
        let stats = daemon.stats(torch.pid());
        assert!(!coverage(&stats).contains(&"records_lost"), "{stats}");
        assert_totals(&stats, &told);
        let words = ["snapshot", "--pid", &pid, "--format", "json"];
        moments.push(Moment::of(daemon.ctl(&words).document()));
        let from = known_from(&daemon, torch.pid());
        lost = moments.iter().filter(|m| m.unix_ns < from).count();
    }
    // A recording ends with its last record: this one lies behind all moments.
    daemon.ctl(&["mark", "--pid", &pid, "asked"]).text();
    let (refused, equal) = look_back(&pid, &moments, &|words| daemon.ctl(words));
    println!("live: {equal} moments equal, {refused} refused");
    assert!(
        refused >= 4 && equal >= 4,
        "{refused} refused, {equal} equal"
    );
    for words in [["diff", "--from", "-1h"], ["pool", "--from", "-1h"]] {
        let mut words = words.to_vec();
        words.extend(["--pid", &pid]);
        let said = daemon.ctl(&words);
        said.refused(2, &["known from"]);
    }

    // The same from a recording, and from what the daemon leaves behind.
    let questions: [&[&str]; 5] = [
        &["stats"],
        &["leaks", "--all-groups", "--limit", "0"],
        &["steps", "--last", "0"],
        &["stacks", "--limit", "50"],
        &["snapshot", "--format", "json"],
    ];
    let mut answers = Vec::new();
    for question in questions {
        let mut words = vec!["--json"];
        words.extend(question);
        words.extend(["--pid", &pid]);
        let said = daemon.ctl(&words);
        let text = said.text().to_owned();
        let document: Value = serde_json::from_str(&text).unwrap();
        answers.push((words.join(" "), text, document));
    }
    let folder = scratch();
    let file = folder.path().join("run.mscope");
    let path = file.to_str().unwrap();
    daemon.ctl(&["record", "-o", path]).text();
    torch.finish();
    daemon.stop();
    for recording in [path, daemon.recording().to_str().unwrap()] {
        let ask =
            |words: &[&str]| Asking::new(["--recording", recording].iter().chain(words)).ask();
        let (refused, equal) = look_back(&pid, &moments, &ask);
        println!("recorded: {equal} moments equal, {refused} refused");
        assert!(
            refused >= 4 && equal >= 4,
            "{refused} refused, {equal} equal"
        );
    }
    for (words, text, document) in &answers {
        let header = document.get("header").unwrap_or(document);
        let as_of = format!(
            "{}@{}",
            header["as_of_event"]["sequence"], header["as_of_boot_ns"]
        );
        let mut asked = vec!["--recording", path, "--as-of", &as_of];
        asked.extend(words.split(' '));
        assert_eq!(Asking::new(&asked).ask().text(), text, "{words}");
    }
    // msMemScope's files of it: what is left, and from when on.
    let output = folder.path().join("dumps");
    let words = [
        "export",
        "--format",
        "msmemscope-csv",
        "-o",
        output.to_str().unwrap(),
    ];
    let made = Asking::new(["--recording", path, "--json"].iter().chain(&words)).ask();
    let made = made.document();
    assert!(
        number(&made["known_from_unix_ns"]) > moments[0].unix_ns,
        "{made}"
    );
    assert!(number(&made["rows"]) > 10_000, "{made}");
    // A moment that the recording no longer has is refused here as well.
    let first = format!("1@{}", number(&moments[0].then["header"]["as_of_boot_ns"]));
    Asking::new(["--recording", path, "--as-of", &first, "stats"])
        .ask()
        .refused(1, &["can be asked from"]);
}

#[test]
fn attached_early() {
    run(false);
}

#[test]
fn attached_late() {
    run(true);
}

/// A process that makes a thousand times as many events does not push out the past of a quiet one.
#[test]
fn a_quiet_process_keeps_its_past() {
    let words = ["--journal-mib", "16", "--trace-entries", "2000"];
    let daemon = Daemon::with(&[&words[..], &["--ring-mib", "64"]].concat());
    let mut quiet = Torch::start(&[]);
    let mut loud = Torch::start(&[]);
    let pid = quiet.pid_text();
    daemon.attach(quiet.pid(), "trace");
    daemon.attach(loud.pid(), "trace");
    loud.ask("allocs held 300 70000");
    let mut moments = Vec::new();
    let mut rounds = 0;
    // Until the loud one has lost two thirds of its past.
    while rounds < 400 {
        quiet.ask(&format!("allocs round{rounds} {} 3000", rounds % 5 + 5));
        let words = ["snapshot", "--pid", &pid, "--format", "json"];
        moments.push(Moment::of(daemon.ctl(&words).document()));
        loud.churn(&daemon, 30000);
        // Built for tests, the daemon writes parts of its journal anew more slowly than this process fills it.
        until(LONG, "the journal is as it should be", || {
            let files = std::fs::read_dir(daemon.recording()).unwrap();
            let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            let is_being_written = names.into_iter().any(|name| name.ends_with(".new"));
            (!is_being_written).then_some(())
        });
        rounds += 1;
        let from = known_from(&daemon, loud.pid());
        let lost = moments
            .iter()
            .filter(|moment| moment.unix_ns < from)
            .count();
        if lost > 12 && 3 * lost > 2 * rounds {
            break;
        }
    }
    assert!(rounds < 400, "the loud one has lost nothing");
    let known = |of: u32| {
        let from = known_from(&daemon, of);
        moments
            .iter()
            .filter(|moment| moment.unix_ns >= from)
            .count()
    };
    let (quiet_ones, loud_ones) = (known(quiet.pid()), known(loud.pid()));
    assert!(quiet_ones > 2 * loud_ones, "{quiet_ones} {loud_ones}");
    // Each question reads the journal again: every fifth will do.
    let mut number_of = 0;
    moments.retain(|_| {
        number_of += 1;
        number_of % 5 == 1
    });
    let (refused, equal) = look_back(&pid, &moments, &|words| daemon.ctl(words));
    println!("{rounds} rounds: {equal} moments of the quiet process equal, {refused} refused");
    assert!(equal > 2 * refused, "{refused} refused, {equal} equal");
    // The loud one is refused at its beginning, and known at its end.
    let ask = |at: String| daemon.ctl(&["pool", "--pid", &loud.pid_text(), "--at", &at]);
    let from = known_from(&daemon, loud.pid());
    let lost = moments
        .iter()
        .rfind(|moment| moment.unix_ns < from)
        .unwrap();
    ask(lost.unix_ns.to_string()).refused(2, &["no longer in the journal", "known from"]);
    let now = daemon.stats(loud.pid())["as_of_event"]["sequence"].clone();
    assert_eq!(ask(format!("event:{now}")).code, 0);
    let status = daemon.json(&["status"]).to_string();
    assert!(!status.contains("anew"), "{status}");
    // A recording says the same.
    let folder = scratch();
    let file = folder.path().join("run.mscope");
    let path = file.to_str().unwrap();
    daemon.ctl(&["mark", "--pid", &pid, "asked"]).text();
    daemon.ctl(&["record", "-o", path]).text();
    let ask = |words: &[&str]| Asking::new(["--recording", path].iter().chain(words)).ask();
    let (_, equal_again) = look_back(&pid, &moments, &ask);
    assert!(equal_again >= equal, "{equal} {equal_again}");
    quiet.finish();
    loud.finish();
}

/// A state that is larger than half of the journal cannot be at the beginning of each segment: then only the whole
/// journal can be read, and when its beginning is gone, nothing. That is a refusal with its reason, no fault.
#[test]
fn a_journal_that_is_too_small_for_the_state_refuses() {
    let words = ["--journal-mib", "1", "--trace-entries", "1000000"];
    let daemon = Daemon::with(&[&words[..], &["--ring-mib", "64"]].concat());
    let mut torch = Torch::start(&[]);
    let pid = torch.pid_text();
    daemon.attach(torch.pid(), "trace");
    torch.ask("allocs held 300 70000");
    let event = daemon.stats(torch.pid())["as_of_event"]["sequence"].clone();
    let at = format!("event:{event}");
    let ask = || daemon.ctl(&["pool", "--pid", &pid, "--at", &at]);
    let mut said = ask();
    assert_eq!(said.code, 0, "{said}");
    for _ in 0..40 {
        torch.churn(&daemon, 30000);
        said = ask();
        if said.code != 0 {
            // The last checkpoint that fitted may still be there: then it is the moment that is too old.
            said.refused(2, &["--journal-mib"]);
        }
        if said.errors.contains("too small") {
            break;
        }
    }
    said.refused(2, &["too small", "--journal-mib"]);
    let status = daemon.json(&["status"]).to_string();
    assert!(status.contains("too small"), "{status}");
    let folder = scratch();
    let file = folder.path().join("run.mscope");
    let said = daemon.ctl(&["record", "-o", file.to_str().unwrap()]);
    said.refused(
        2,
        &["nothing can be recorded", "too small", "--journal-mib"],
    );
    assert!(!file.exists());
    torch.finish();
    Met {
        what: "what is known of the processes, beside the journal",
        most: "half of `--journal-mib`".to_owned(),
        beyond: "earlier moments and recordings are refused",
        told: "error `invalid` with the setting, a problem of the journal in `status`",
        test: "a_journal_that_is_too_small_for_the_state_refuses",
    }
    .is_told();
}
