//! `export`: msMemScope's files of all that was recorded.

use super::interrupted;
use super::snapshot::{Target, recorded_to};
use crate::args::{Args, Export, ExportFormat};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::recording::find_memscoped;
use crate::units::grouped;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Stdio;

/// What memscoped made.
#[derive(Debug, Deserialize, Serialize)]
struct Made {
    folders: Vec<String>,
    rows: u64,
    events_left_out: u64,
}

pub(super) async fn run(export: &Export, args: &Args) -> Result<Exit, Failure> {
    tokio::select! {
        result = written(export, args) => result,
        // Ends memscoped, too: it is killed when it is dropped.
        code = interrupted() => Ok(code),
    }
}

async fn written(export: &Export, args: &Args) -> Result<Exit, Failure> {
    if let Some(recording) = &args.recording {
        return dump(recording, export, args.json).await;
    }
    let client = Client::connect(&args.socket, args.timeout).await?;
    let cannot = |source| Failure::Output {
        what: "no private folder can be made for the recording".into(),
        source,
    };
    let folder = tempfile::Builder::new()
        .prefix("memscope-")
        .tempdir()
        .map_err(cannot)?;
    let file = folder.path().join("recording");
    let mut target = Target::open(Some(&file))?;
    recorded_to(&client, &mut target).await?;
    target.finish()?;
    dump(&file, export, args.json).await
}

async fn dump(recording: &Path, export: &Export, json: bool) -> Result<Exit, Failure> {
    let program = find_memscoped();
    let format = match export.format {
        ExportFormat::MsmemscopeCsv => "csv",
        ExportFormat::MsmemscopeDb => "db",
    };
    let mut command = tokio::process::Command::new(&program);
    command
        .arg("--replay")
        .arg(recording)
        .args(["--dump", format, "--output"])
        .arg(&export.output);
    if let Some(pid) = export.pid {
        command.args(["--pid", &pid.to_string()]);
    }
    let ended = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| Failure::NoReplayer { program, source })?;
    let failed = |what: String| {
        Failure::Refused {
        exit: Exit::Failed,
        code: "not_exported".to_owned(),
        what,
        hint: Some(
            "is the recording whole, is there room, and are memscoped and memscope-ctl of one version?"
                .to_owned(),
        ),
    }
    };
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let words = last.map_or_else(|| format!("it ended: {}", ended.status), str::to_owned);
        let words = words.strip_prefix("memscoped: ").unwrap_or(&words);
        return Err(failed(format!("memscoped cannot write the files: {words}")));
    }
    let made: Made = serde_json::from_slice(&ended.stdout)
        .map_err(|error| failed(format!("memscoped did not say what it made: {error}")))?;
    if json {
        output::json(&made)?;
    } else {
        let mut text = String::new();
        for folder in &made.folders {
            text.push_str(&format!("{folder}\n"));
        }
        text.push_str(&format!(
            "{} rows; {} events have none in msMemScope's files.\n",
            grouped(made.rows),
            grouped(made.events_left_out)
        ));
        output::text(&text)?;
    }
    Ok(Exit::Done)
}
