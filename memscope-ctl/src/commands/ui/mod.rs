//! `ui`: serves a page that shows the answers, for the browser of the person who started it.

mod ask;
mod live;
mod memory;
mod now;
mod routes;
mod source;
mod tab;

use super::run::Run;
use crate::failure::{Exit, Failure};
use crate::fleet::Fleet;
use crate::output;
use crate::session::Session;
use crate::signals::interrupted;
use crate::ui::browser;
use crate::ui::connections;
use crate::ui::door::Door;
use live::Live;
use routes::Routes;
use source::Source;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use tokio::net::TcpListener;

/// Show all that can be asked as a page in a browser.
///
/// Prints the address of the page, which is good for one browser and only on this machine, opens it where there is a desktop, and serves
/// it as the user who started it until Ctrl-C. The page only asks; it changes nothing. From another machine: ssh -L PORT:localhost:PORT,
/// with --port PORT, and the printed address.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memscope-ctl ui                              what the daemon of this machine traces
  memscope-ctl ui --pid 4242                   one process
  memscope-ctl ui run.mscope                   a recording
  memscope-ctl --fleet nodes.txt ui            many nodes
  memscope-ctl ui --port 8700 --no-open        on a machine that has no desktop")]
pub(crate) struct Ui {
    /// A file to show instead of a daemon, as --recording takes it.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The processes that the page begins with; all that are traced if none is named.
    #[arg(long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,
    /// Serve at this port of this machine; without it, or with 0, one that is free.
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        hide_default_value = true
    )]
    port: u16,
    /// Do not open a browser.
    #[arg(long)]
    no_open: bool,
}

impl Run for Ui {
    const ENDS_ITSELF: bool = true;

    fn check(&self, session: &Session) -> Result<(), Failure> {
        let global = &session.global;
        let elsewhere =
            global.connect.is_some() || global.recording.is_some() || global.fleet.is_some();
        if self.file.is_some() && elsewhere {
            return Err(Failure::Usage {
                what: "a file is shown instead of a daemon, another recording or a fleet".into(),
                hint: "give FILE, or --connect, --recording or --fleet".into(),
            });
        }
        Ok(())
    }

    async fn run(&self, session: &Session) -> Result<Exit, Failure> {
        let Some(file) = &self.file else {
            return self.serve(&Source::of_one(session, &self.pid)).await;
        };
        let of_file = session.of_recording(file.clone());
        let ended = self.serve(&Source::of_one(&of_file, &self.pid)).await;
        of_file.end().await;
        ended
    }

    const FLEET: bool = true;

    async fn fleet(&self, session: &Session, fleet: &Fleet) -> Result<Exit, Failure> {
        let fleet = fleet.quiet();
        self.serve(&Source::of_fleet(session, &fleet, &self.pid))
            .await
    }
}

impl Ui {
    async fn serve(&self, source: &Source<'_>) -> Result<Exit, Failure> {
        // What cannot be asked at all is told here and not by an empty page. A daemon may still come.
        tokio::select! {
            tried = source.try_once() => tried?,
            () = interrupted() => return Ok(Exit::Done),
        }
        let no_server = |source| Failure::Output {
            what: match self.port {
                0 => "the page cannot be served".to_owned(),
                port => format!("the page cannot be served at port {port}"),
            },
            source,
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port));
        let listener = listener.await.map_err(no_server)?;
        let port = listener.local_addr().map_err(no_server)?.port();
        let door = Door::new(port).map_err(no_server)?;
        let address = door.address();
        output::line(&address)?;
        let _page = match self.no_open {
            true => None,
            false => browser::open(&address),
        };
        let live = Live::new(source);
        let routes = Routes::new(&door, source, &live);
        tokio::select! {
            never = connections::serve(&listener, &routes) => match never {},
            never = live.follow() => match never {},
            () = interrupted() => Ok(Exit::Done),
        }
    }
}
