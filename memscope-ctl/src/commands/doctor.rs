//! `doctor`: the machine first, then the daemon, if there is one.

use super::query::ask_status;
use crate::args::Args;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::ErrorBody;
use crate::preflight::{self, Check, Machine, Role, Scan, Status};
use crate::{output, render};
use memscope_proto::v1;
use serde::Serialize;

#[derive(Serialize)]
struct Document<'a> {
    checks: &'a [Check],
    #[serde(flatten)]
    scan: &'a Scan,
    daemon: Option<&'a v1::StatusResponse>,
    daemon_error: Option<ErrorBody<'a>>,
}

pub(super) async fn doctor(args: &Args) -> Result<Exit, Failure> {
    let role = if rustix::process::geteuid().is_root() {
        Role::Daemon
    } else {
        Role::Client
    };
    let report = preflight::examine(&Machine::here(), role, Some(&args.socket));
    let daemon = match Client::connect(&args.socket, args.timeout()).await {
        Ok(client) => ask_status(&client).await,
        Err(failure) => Err(failure),
    };
    if args.json {
        output::json(&Document {
            checks: &report.checks,
            scan: &report.scan,
            daemon: daemon.as_ref().ok(),
            daemon_error: daemon.as_ref().err().map(ErrorBody::from),
        })?;
    } else {
        output::text(&render::doctor::doctor(&report, &daemon))?;
    }
    match report.worst() {
        Status::Fail => Ok(Exit::Failed),
        Status::Ok | Status::Warn => Ok(Exit::Done),
    }
}
