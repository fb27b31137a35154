//! `export`: msMemScope's files of all that was recorded.

use super::interrupted;
use super::snapshot::{Target, recorded_to};
use crate::args::{Args, Export, ExportFormat};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::recording::{NOT_MADE, made_by_memscoped};
use crate::units::{grouped, moment};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::Path;

/// What memscoped made.
#[derive(Debug, Deserialize, Serialize)]
struct Made {
    folders: Vec<String>,
    rows: u64,
    events_left_out: u64,
    known_from_unix_ns: Option<u64>,
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
    let client = Client::connect(&args.socket, args.timeout()).await?;
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
    let format = match export.format {
        ExportFormat::MsmemscopeCsv => "csv",
        ExportFormat::MsmemscopeDb => "db",
    };
    let mut words: Vec<OsString> = vec!["--replay".into(), recording.into()];
    words.extend(["--dump", format, "--output"].map(OsString::from));
    words.push(export.output.clone().into());
    if let Some(pid) = export.pid {
        words.extend(["--pid".into(), pid.to_string().into()]);
    }
    let made: Made = made_by_memscoped(&words, "not_exported", "write the files", NOT_MADE).await?;
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
        if let Some(from) = made.known_from_unix_ns {
            text.push_str(&format!(
                "The older part of the recording is gone: the rows begin at {}, and blocks that came before it have no row \
                 of their coming.\n",
                moment(from)
            ));
        }
        output::text(&text)?;
    }
    Ok(Exit::Done)
}
