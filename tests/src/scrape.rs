//! Asks a daemon for its metrics over HTTP, as Prometheus does.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::daemon::Daemon;
use crate::wait::{SHORT, until};

/// Asks for a path; gives the status line's number, the headers and the body.
pub fn get(address: &str, path: &str) -> Result<(u16, String, String), std::io::Error> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SHORT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((code.unwrap_or(0), head.to_owned(), body.to_owned()))
}

/// Where a daemon's log says that its metrics are.
#[track_caller]
pub fn metrics_address(daemon: &Daemon) -> String {
    until(SHORT, "the daemon says where its metrics are", || {
        let log = daemon.log();
        let line = log.lines().find(|line| line.contains("metrics are at"))?;
        let at = line.split("address=").nth(1)?;
        Some(at.split_whitespace().next()?.to_owned())
    })
}

/// The daemon's metrics as it hands them out.
#[track_caller]
pub fn metrics_of(daemon: &Daemon) -> String {
    let (code, head, body) = get(&metrics_address(daemon), "/metrics").unwrap();
    assert_eq!(code, 200, "{head}");
    body
}
