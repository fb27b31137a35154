//! `memscope-ctl ui` as a browser sees it: HTTP over a connection, written by hand so that a test can also send what no browser would.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::wait::LONG;

/// A running `memscope-ctl ui`. It is killed when this is dropped.
pub struct Page {
    child: Child,
    /// What it printed: the address with the token.
    pub address: String,
    /// The port of the address.
    pub port: u16,
    /// What a browser sends after it has been there.
    pub cookie: String,
}

/// What the server answered to one request.
#[derive(Debug)]
pub struct Reply {
    /// The status, as 200.
    pub status: u16,
    /// The head, as it came, in lower case.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("the answer is text")
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.head, self.text()))
    }

    /// The value of a header; its name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Page {
    /// Starts the command, which is `memscope-ctl … ui --no-open …`, and goes through its door.
    pub fn start(command: Command) -> Page {
        let mut page = Page::outside(command);
        let entered = page.send("GET", &page.path(), &[], b"");
        assert_eq!(entered.status, 303, "{entered:?}");
        let cookie = entered.header("set-cookie").expect("a cookie");
        page.cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        page
    }

    /// Starts the command, and stays outside.
    pub fn outside(mut command: Command) -> Page {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("memscope-ctl starts");
        let out = child.stdout.take().expect("its output is a pipe");
        let mut address = String::new();
        BufReader::new(out)
            .read_line(&mut address)
            .expect("it prints the address");
        let address = address.trim_end().to_owned();
        let port = address.split(['/', ':']).find_map(|part| part.parse().ok());
        Page {
            port: port.unwrap_or_else(|| panic!("no port in {address:?}")),
            child,
            address,
            cookie: String::new(),
        }
    }

    /// The path of the address, with the token.
    pub fn path(&self) -> String {
        let (_, path) = self.address.split_once("/?").expect("a token");
        format!("/?{path}")
    }

    /// The process id of the `memscope-ctl ui` that serves the page.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// A connection to it.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("it accepts");
        stream.set_read_timeout(Some(LONG)).expect("a limit");
        stream
    }

    /// What the browser sends as `Host`.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sends a request with the cookie, and these headers instead of or beside the usual ones.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut stream = self.connect();
        self.write(&mut stream, method, path, headers, body);
        read(&mut stream)
    }

    fn write(
        &self,
        stream: &mut TcpStream,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        let (host, length) = (self.host(), body.len().to_string());
        let usual = [
            ("Host", host.as_str()),
            ("Cookie", self.cookie.as_str()),
            ("Content-Length", length.as_str()),
        ];
        let usual = usual
            .iter()
            .filter(|(name, _)| headers.iter().all(|(other, _)| other != name));
        for (name, value) in usual.chain(headers) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        // It may have closed the connection before it has read all.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
    }

    /// What is at this path.
    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    /// Asks a question.
    pub fn ask(&self, method: &str, question: &Value) -> Reply {
        let body = question.to_string();
        self.send("POST", &format!("/api/ask/{method}"), &[], body.as_bytes())
    }

    /// Listens to what it tells by itself.
    pub fn listen(&self, path: &str) -> Listening {
        let mut stream = self.connect();
        self.write(&mut stream, "GET", path, &[], b"");
        Listening(BufReader::new(stream))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads an answer to its end.
pub fn read(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    // A connection that is reset after the answer has said all that it will.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8_lossy(&bytes[..end]).replace("\r\n", "\n");
    let (first, fields) = head.split_once('\n').unwrap_or((&head, ""));
    let fields = fields
        .lines()
        .map(|line| match line.split_once(':') {
            Some((name, value)) => format!("{}:{value}", name.to_ascii_lowercase()),
            None => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join("\n");
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    let body = &bytes[end + 4..];
    Reply {
        status: status.unwrap_or_default(),
        body: match fields.contains("transfer-encoding: chunked") {
            true => of_chunks(body),
            false => body.to_vec(),
        },
        head: fields,
    }
}

/// The bytes of a body that came in chunks. One that is not whole is a failure.
fn of_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n");
        let end = end.expect("a chunk has a length");
        let length = std::str::from_utf8(&rest[..end]).expect("a length is text");
        let length = usize::from_str_radix(length.trim(), 16).expect("a length is a number");
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 4 + length..];
    }
}

/// The stream of server-sent events.
pub struct Listening(BufReader<TcpStream>);

impl Listening {
    /// The next message: its kind and its document. Lengths of chunks, comments and the head are passed over.
    pub fn message(&mut self) -> (String, Value) {
        let deadline = Instant::now() + LONG;
        let mut kind = String::new();
        loop {
            // Comments come while nothing else does.
            assert!(Instant::now() < deadline, "no message within {LONG:?}");
            let mut line = String::new();
            let read = self.0.read_line(&mut line).expect("a line within the time");
            assert!(read > 0, "the stream has ended");
            let line = line.trim_end();
            if let Some(named) = line.strip_prefix("event: ") {
                named.clone_into(&mut kind);
            }
            if let Some(json) = line.strip_prefix("data: ") {
                return (kind, serde_json::from_str(json).expect("JSON"));
            }
        }
    }

    /// The next message of this kind, or about which this is true.
    pub fn until(&mut self, wanted: impl Fn(&str, &Value) -> bool) -> Value {
        let deadline = Instant::now() + LONG;
        loop {
            let (kind, document) = self.message();
            if wanted(&kind, &document) {
                return document;
            }
            assert!(
                Instant::now() < deadline,
                "not within {LONG:?}; {kind} is the last"
            );
        }
    }
}
