//! What a program says that knows where the nodes are.

use crate::failure::{Exit, Failure};
use std::process::Stdio;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Bytes of what a program prints that are read.
const PRINTED_MOST: u64 = 16 << 20;

/// What a program printed. `system` is whose program it is: the failure's code; `hint` is what to do about one. What it says of an
/// error goes to standard error as it is.
pub(super) async fn said(
    program: &str,
    words: &[&str],
    system: &str,
    hint: &str,
) -> Result<String, Failure> {
    let failed = |why: String| Failure::Refused {
        exit: Exit::Failed,
        code: system.into(),
        what: format!("{program} did not say where the nodes are: {why}"),
        hint: Some(hint.into()),
    };
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    if let Some(output) = child.stdout.take() {
        let mut output = output.take(PRINTED_MOST + 1);
        let read = output.read_to_string(&mut text).await;
        read.map_err(|error| failed(error.to_string()))?;
    }
    if text.len() as u64 > PRINTED_MOST {
        return Err(failed(format!("it printed more than {PRINTED_MOST} bytes")));
    }
    let ended = child.wait().await;
    match ended.map_err(|error| failed(error.to_string()))? {
        status if status.success() => Ok(text),
        status => Err(failed(status.to_string())),
    }
}
