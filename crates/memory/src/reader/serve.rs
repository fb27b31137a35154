//! The reader's own side: a loop that reads what it is asked for.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use zerocopy::IntoBytes;

use super::confine;
use super::wire::{self, Answer, Question};
use crate::gather::gather;
use crate::part::Part;
use crate::place;
use crate::process::{ProcessMemory, Work};

/// Answers questions at standard input, which is a socket, until the other side closes it. `works` are all works that may be asked for.
pub fn serve(works: &[Work]) -> ExitCode {
    let input = io::stdin().as_fd().try_clone_to_owned();
    let Ok(socket) = input.map(UnixStream::from) else {
        return ExitCode::FAILURE;
    };
    if let Err(error) = confine::give_up_rights() {
        // It reads all the same: what it is for is that it may hang.
        eprintln!("memscoped: a reader keeps rights that it does not need: {error}");
    }
    match answer_all(socket, works) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer_all(mut socket: UnixStream, works: &[Work]) -> io::Result<()> {
    while let Some((question, about)) = wire::asked(&mut socket)? {
        let read = read(&question, about, works, &mut socket);
        wire::answer(&mut socket, read)?;
    }
    Ok(())
}

fn read(
    question: &Question,
    about: Option<OwnedFd>,
    works: &[Work],
    socket: &mut UnixStream,
) -> io::Result<Answer> {
    let about = about.ok_or_else(wire::malformed);
    let bytes = match question {
        Question::Memory { pid, ranges } => {
            let part = |range: &wire::Range| Part {
                address: range.start,
                bytes: vec![0; range.len as usize],
            };
            let mut parts: Vec<Part> = ranges.iter().map(part).collect();
            gather(*pid, &File::from(about?), &mut parts)?;
            parts.into_iter().flat_map(|part| part.bytes).collect()
        }
        Question::Work { pid, number, told } => {
            let work = works.iter().find(|work| work.number == *number);
            let work = work.ok_or_else(wire::malformed)?;
            let memory = ProcessMemory::of_file(*pid, File::from(about?));
            let bytes = (work.run)(&memory, told, &mut |bytes| wire::ask_back(socket, bytes))?;
            if bytes.len() as u64 > question.most() {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            bytes
        }
        Question::File(range) => {
            let mut bytes = vec![0; range.len as usize];
            place::open_place(about?.as_fd())?.read_exact_at(&mut bytes, range.start)?;
            bytes
        }
        Question::Open { path, follow } => {
            let (place, facts) = place::place(path, *follow)?;
            return Ok(Answer {
                bytes: facts.as_bytes().to_vec(),
                place,
            });
        }
        Question::Whole(path) => place::whole(path)?,
    };
    Ok(Answer { bytes, place: None })
}
