//! How a reader is asked, and answers.
//!
//! A question is a head, its ranges and its path, with the descriptor that it is about beside it. An answer is a head and bytes, with the
//! descriptor that was asked for beside it.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::place::{FileFacts, MOST_BYTES};

/// Most ranges of one question.
pub(crate) const MOST_RANGES: usize = 1024;
/// Most bytes of a path: the kernel's own limit (`PATH_MAX`).
const MOST_PATH: usize = 4096;
/// Most bytes of what a work is told. The addresses of a million blocks fit.
pub(crate) const MOST_TOLD: usize = MOST_BYTES as usize;
/// Most bytes of what a work answers: what is told of the objects of a process with a million blocks fits.
pub(crate) const MOST_ANSWERED: u64 = 48 << 20;

/// What is asked.
#[derive(Debug)]
pub(crate) enum Question {
    /// Bytes of the memory of a process, whose memory file is beside it.
    Memory {
        /// The process.
        pid: i32,
        /// What of it.
        ranges: Vec<Range>,
    },
    /// Work on the memory of a process, whose memory file is beside it.
    Work {
        /// Pid of the process whose memory it is.
        pid: i32,
        /// Number by which the reader finds the work.
        number: u32,
        /// What the work is told.
        told: Vec<u8>,
    },
    /// Bytes of the file at the place that is beside it.
    File(Range),
    /// The place that a path leads to, and what is there.
    Open {
        /// The path.
        path: PathBuf,
        /// Whether to follow a symbolic link at its end.
        follow: bool,
    },
    /// The whole of a file.
    Whole(PathBuf),
}

const MEMORY: u32 = 0;
const FILE: u32 = 1;
const OPEN: u32 = 2;
const OPEN_ITSELF: u32 = 3;
const WHOLE: u32 = 4;
const WORK: u32 = 5;

/// Bytes from `start` on: an address, or an offset in a file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Head {
    kind: u32,
    pid: i32,
    ranges: u32,
    /// Bytes of the path, or of what a work is told.
    text: u32,
    /// Number of the work.
    work: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct AnswerHead {
    /// Number of the error; 0 if there is none.
    error: i32,
    len: u32,
    /// 1: it is no answer, but a question that is asked back.
    asks: u32,
}

/// What a reader says.
#[derive(Debug)]
pub(crate) enum Said {
    /// What it has read, or what it met when it read.
    Answer(io::Result<Answer>),
    /// A question that its work asks back.
    Asks(Vec<u8>),
}

/// What a reader has read.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) place: Option<OwnedFd>,
}

impl Question {
    /// Most bytes that an answer may have.
    pub(crate) fn most(&self) -> u64 {
        match self {
            Question::Memory { ranges, .. } => sum(ranges),
            Question::File(range) => range.len,
            Question::Open { .. } => size_of::<FileFacts>() as u64,
            Question::Whole(_) => MOST_BYTES,
            Question::Work { .. } => MOST_ANSWERED,
        }
    }
}

fn sum(ranges: &[Range]) -> u64 {
    let lengths = ranges.iter().map(|range| range.len);
    lengths.fold(0, u64::saturating_add)
}

/// Sends a question.
pub(crate) fn ask(
    socket: &mut UnixStream,
    question: &Question,
    about: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let path = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
    let (kind, pid, ranges, text) = match question {
        Question::Memory { pid, ranges } => (MEMORY, *pid, ranges.as_slice(), Vec::new()),
        Question::Work { pid, told, .. } => (WORK, *pid, &[][..], told.clone()),
        Question::File(range) => (FILE, 0, std::slice::from_ref(range), Vec::new()),
        Question::Open {
            path: at,
            follow: true,
        } => (OPEN, 0, &[][..], path(at)),
        Question::Open { path: at, .. } => (OPEN_ITSELF, 0, &[][..], path(at)),
        Question::Whole(at) => (WHOLE, 0, &[][..], path(at)),
    };
    let work = match question {
        Question::Work { number, .. } => *number,
        _ => 0,
    };
    let head = Head {
        kind,
        pid,
        ranges: ranges.len() as u32,
        text: text.len() as u32,
        work,
    };
    let bytes = [head.as_bytes(), ranges.as_bytes(), &text].concat();
    send(socket, &bytes, about)
}

/// Receives a question, with the descriptor that it is about; `None` if the other side has closed the socket.
pub(crate) fn asked(socket: &mut UnixStream) -> io::Result<Option<(Question, Option<OwnedFd>)>> {
    let Some((head, about)) = receive::<Head>(socket)? else {
        return Ok(None);
    };
    let (count, length) = (head.ranges as usize, head.text as usize);
    let most = if head.kind == WORK {
        MOST_TOLD
    } else {
        MOST_PATH
    };
    if count > MOST_RANGES || length > most {
        return Err(malformed());
    }
    let mut ranges = vec![Range { start: 0, len: 0 }; count];
    socket.read_exact(ranges.as_mut_bytes())?;
    let mut text = vec![0; length];
    socket.read_exact(&mut text)?;
    let path = |text| PathBuf::from(OsString::from_vec(text));
    let question = match (head.kind, ranges.as_slice()) {
        (MEMORY, _) => Question::Memory {
            pid: head.pid,
            ranges,
        },
        (WORK, []) => Question::Work {
            pid: head.pid,
            number: head.work,
            told: text,
        },
        (FILE, [range]) => Question::File(*range),
        (OPEN, []) => Question::Open {
            path: path(text),
            follow: true,
        },
        (OPEN_ITSELF, []) => Question::Open {
            path: path(text),
            follow: false,
        },
        (WHOLE, []) => Question::Whole(path(text)),
        _ => return Err(malformed()),
    };
    if question.most() > MOST_BYTES && !matches!(question, Question::Work { .. }) {
        return Err(malformed());
    }
    Ok(Some((question, about)))
}

/// Sends what was read, or the number of the error.
pub(crate) fn answer(socket: &mut UnixStream, read: io::Result<Answer>) -> io::Result<()> {
    let (error, answer) = match read {
        Ok(answer) => (0, answer),
        Err(error) => (number(&error), Answer::default()),
    };
    let head = AnswerHead {
        error,
        len: answer.bytes.len() as u32,
        asks: 0,
    };
    let place = answer.place.as_ref().map(AsFd::as_fd);
    send(socket, head.as_bytes(), place)?;
    socket.write_all(&answer.bytes)
}

/// Errors that have no number are those of our own code.
fn number(error: &io::Error) -> i32 {
    match (error.raw_os_error(), error.kind()) {
        (Some(number), _) => number,
        (None, io::ErrorKind::FileTooLarge) => libc::EFBIG,
        (None, io::ErrorKind::UnexpectedEof) => libc::ENODATA,
        (None, _) => libc::EIO,
    }
}

/// Receives what a reader says, of at most `most` bytes.
pub(crate) fn said(socket: &mut UnixStream, most: u64) -> io::Result<Said> {
    let (head, place) = receive::<AnswerHead>(socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if head.error != 0 {
        let error = io::Error::from_raw_os_error(head.error);
        return Ok(Said::Answer(Err(error)));
    }
    if u64::from(head.len) > most {
        return Err(malformed());
    }
    let mut bytes = vec![0; head.len as usize];
    socket.read_exact(&mut bytes)?;
    Ok(match head.asks {
        0 => Said::Answer(Ok(Answer { bytes, place })),
        _ => Said::Asks(bytes),
    })
}

/// The reader's side: asks back, and receives the reply.
pub(crate) fn ask_back(socket: &mut UnixStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let head = AnswerHead {
        error: 0,
        len: bytes.len() as u32,
        asks: 1,
    };
    send(socket, head.as_bytes(), None)?;
    socket.write_all(bytes)?;
    match said(socket, u64::from(u32::MAX))? {
        Said::Answer(answer) => answer.map(|answer| answer.bytes),
        Said::Asks(_) => Err(malformed()),
    }
}

fn send(socket: &mut UnixStream, bytes: &[u8], beside: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = beside.into_iter().collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let sent = rustix::net::sendmsg(
        socket.as_fd(),
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    let rest = bytes.get(sent..).unwrap_or_default();
    socket.write_all(rest)
}

/// Receives a head, and the descriptor beside it. `None` if the other side has closed the socket.
fn receive<T: FromBytes + IntoBytes>(
    socket: &mut UnixStream,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut head = T::new_zeroed();
    let bytes = head.as_mut_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    socket.read_exact(bytes.get_mut(received.bytes..).unwrap_or_default())?;
    Ok(Some((head, file)))
}

pub(crate) fn malformed() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
