//! `check-leaks`, `inefficient`, `compare` and `import`: msMemScope's files, without a daemon that runs.

use super::interrupted;
use super::snapshot::Target;
use crate::args::Args;
use crate::args::dump::{
    CheckLeaks, Compare, CompareLevel, DumpCommand, Import, Inefficient, InefficientType,
};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::recording::{NOT_MADE, made_by_memscoped};
use crate::render::dump as render;
use memscope_dump::compare::{self, CompareError, Level, Side};
use memscope_dump::inefficient::{self, Kind, Question};
use memscope_dump::leaks::{self, LeaksError};
use memscope_dump::{DumpError, Format, Reader, Writer};
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// What msMemScope gives an alignment.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn run(command: &DumpCommand, args: &Args) -> Result<Exit, Failure> {
    if args.recording.is_some() {
        return Err(Failure::Usage {
            what: "a recording is no dump of msMemScope's".into(),
            hint: "leave out --recording".into(),
        });
    }
    let json = args.json;
    match command {
        DumpCommand::CheckLeaks(request) => check_leaks(request, json),
        DumpCommand::Inefficient(request) => inefficient(request, json).await,
        DumpCommand::Compare(request) => compare(request, json),
        DumpCommand::Import(request) => tokio::select! {
            result = import(request, json) => result,
            // Ends memscoped, too: it is killed when it is dropped.
            code = interrupted() => Ok(code),
        },
    }
}

fn refused(code: &str, error: &dyn Error, hint: &str) -> Failure {
    let mut what = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        what.push_str(&format!(": {next}"));
        cause = next.source();
    }
    Failure::Refused {
        exit: Exit::Failed,
        code: code.to_owned(),
        what,
        hint: Some(hint.to_owned()),
    }
}

fn no_dump(error: DumpError) -> Failure {
    refused("no_dump", &error, error.hint())
}

fn check_leaks(request: &CheckLeaks, json: bool) -> Result<Exit, Failure> {
    let rows = Reader::open(&request.file).map_err(no_dump)?;
    let report = leaks::offline_leaks(&request.file, rows, &request.mark, request.start_index)
        .map_err(no_dump)?;
    report.require(&request.mark).map_err(|error| {
        let hint = match error {
            LeaksError::UnknownMark { .. } => "name one of them with --mark",
            LeaksError::StartBeyondEnd { .. } => "begin earlier with --start-index",
            _ => "collect again, with at least three marks of that name on each device",
        };
        refused("no_marks", &error, hint)
    })?;
    if json {
        output::json(&render::leaks_document(request, &report))?;
    } else {
        output::text(&render::leaks(&report))?;
    }
    let leaked = render::leaked_blocks(&report) > 0;
    Ok(if leaked && request.exit_code {
        Exit::Growing
    } else {
        Exit::Done
    })
}

fn kind(kind: InefficientType) -> Kind {
    match kind {
        InefficientType::EarlyAllocation => Kind::EarlyAllocation,
        InefficientType::LateDeallocation => Kind::LateDeallocation,
        InefficientType::TemporaryIdleness => Kind::TemporaryIdleness,
    }
}

async fn inefficient(request: &Inefficient, json: bool) -> Result<Exit, Failure> {
    let mut question = Question {
        min_size: request.min_size,
        idle_threshold: request.idle_threshold,
        ..Question::default()
    };
    if !request.types.is_empty() {
        question.kinds = request.types.iter().copied().map(kind).collect();
    }
    let rows = Reader::open(&request.file).map_err(no_dump)?;
    let findings = inefficient::inefficient(&request.file, rows, &question).map_err(no_dump)?;
    if let Some(out) = &request.output {
        // A signal must not leave half of a file beside the one that it is to become.
        let write = write_marked(&request.file, out, &findings);
        tokio::select! {
            biased;
            code = interrupted() => return Ok(code),
            result = write => result.map_err(no_dump)?,
        }
    }
    if json {
        output::json(&render::findings_document(request, &findings))?;
    } else {
        output::text(&render::findings(request, &findings))?;
    }
    Ok(Exit::Done)
}

/// Rows between two looks whether somebody wants it to end.
const ROWS_PER_LOOK: usize = 10_000;

async fn write_marked(
    from: &Path,
    to: &Path,
    findings: &[inefficient::Finding],
) -> Result<(), DumpError> {
    let rows = Reader::open(from)?;
    let mut writer = Writer::create(to, Format::of(to))?;
    for (number, row) in inefficient::mark_rows(rows, findings).enumerate() {
        writer.write(&row?)?;
        if number % ROWS_PER_LOOK == 0 {
            tokio::task::yield_now().await;
        }
    }
    writer.finish()
}

fn compare(request: &Compare, json: bool) -> Result<Exit, Failure> {
    let level = match request.level {
        CompareLevel::Op => Level::Op,
        CompareLevel::Kernel => Level::Kernel,
    };
    let side = |path: &Path| {
        let rows = Reader::open(path)?;
        Side::read(path, rows, level)
    };
    let base = side(&request.base).map_err(no_dump)?;
    let second = side(&request.compare).map_err(no_dump)?;
    let deadline = Instant::now() + PATIENCE;
    let mut go_on = || Instant::now() < deadline;
    let differences = compare::compare(&base, &second, &mut go_on).map_err(|error| {
        let (exit, hint) = match error {
            CompareError::Nothing { .. } => (
                Exit::Failed,
                "collect with --events launch, or try the other --level",
            ),
            CompareError::OutOfTime { .. } => (
                Exit::Timeout,
                "compare shorter runs, or runs that are more alike",
            ),
            _ => (Exit::Failed, "compare runs that are more alike"),
        };
        Failure::Refused {
            exit,
            code: "not_compared".to_owned(),
            what: error.to_string(),
            hint: Some(hint.to_owned()),
        }
    })?;
    if let Some(path) = &request.output {
        let mut bytes = Vec::new();
        // Into memory nothing can fail.
        compare::write_csv(&mut bytes, &differences).map_err(output::cannot_print)?;
        let mut target = Target::open(Some(path))?;
        target.write(&bytes)?;
        target.finish()?;
    }
    if json {
        output::json(&render::differences_document(request, &differences))?;
    } else {
        output::text(&render::differences(request, &differences))?;
    }
    Ok(Exit::Done)
}

async fn import(request: &Import, json: bool) -> Result<Exit, Failure> {
    // Told in the words for dumps, before memscoped is sought.
    drop(Reader::open(&request.file).map_err(no_dump)?);
    let words: [OsString; 4] = [
        "--import".into(),
        request.file.clone().into(),
        "--output".into(),
        request.output.clone().into(),
    ];
    let what = format!("import {}", request.file.display());
    let made: render::Made = made_by_memscoped(&words, "not_imported", &what, NOT_MADE).await?;
    if json {
        output::json(&made)?;
    } else {
        output::text(&render::made(&made))?;
    }
    Ok(Exit::Done)
}
