//! Reading through reader processes: the same bytes, and nobody hangs on a page that is never delivered. Needs root, since
//! only root may hold up the kernel's own accesses with userfaultfd(2).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_memory::{Memory, Part, Patience, ProcessMemory, Work, reader};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn use_readers() {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().unwrap().parent().unwrap();
    let program = built.join("examples/reader");
    assert!(
        program.exists(),
        "cargo test builds it, with --test readers alone only after cargo build --examples"
    );
    reader::use_readers(program);
}

const PAGE: usize = 4096;

/// Two pages of memory of this process, the second of which the kernel asks us for, and we never answer.
struct Withheld {
    address: usize,
    _asked: OwnedFd,
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

impl Withheld {
    fn new() -> Withheld {
        // SAFETY: maps new memory, and registers a page of it with a new descriptor; the structures are those of
        // linux/userfaultfd.h.
        unsafe {
            let address = libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(address, libc::MAP_FAILED);
            address.cast::<u64>().write(4711);
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            assert!(fd >= 0, "this test needs root");
            let asked = OwnedFd::from_raw_fd(fd as i32);
            let mut api = Api {
                api: 0xaa,
                features: 0,
                ioctls: 0,
            };
            assert_eq!(libc::ioctl(asked.as_raw_fd(), 0xc018_aa3f, &raw mut api), 0);
            let mut register = Register {
                start: address as u64 + PAGE as u64,
                len: PAGE as u64,
                mode: 1,
                ioctls: 0,
            };
            assert_eq!(
                libc::ioctl(asked.as_raw_fd(), 0xc020_aa00, &raw mut register),
                0
            );
            Withheld {
                address: address as usize,
                _asked: asked,
            }
        }
    }
}

/// A process of another user, and an address in its stack.
fn neighbour() -> (Child, u64) {
    // It says something when it runs.
    let mut child = Command::new("sh")
        .args(["-c", "echo; read line"])
        .uid(65_534)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    let stack = maps.lines().find(|line| line.contains("[stack]")).unwrap();
    let end = stack.split(['-', ' ']).nth(1).unwrap();
    let end = u64::from_str_radix(end, 16).unwrap();
    (child, end - 64)
}

/// What the kernel says of a reader of this process: `line` of its `status`.
fn of_reader(line: &str) -> String {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let statuses = processes.filter_map(|process| {
        let words = std::fs::read(process.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).into_owned();
        let status = std::fs::read_to_string(process.path().join("status")).ok()?;
        let own = status.contains(&format!("\nPPid:\t{}\n", std::process::id()));
        (own && words.ends_with(&format!("{}\0", reader::ARGUMENT))).then_some(status)
    });
    let status = statuses.last().expect("a reader");
    let lines = status.lines();
    let found = lines.filter_map(|line| line.split_once(":\t"));
    let mut found = found.filter(|(name, _)| *name == line).map(|(_, it)| it);
    found.next().expect(line).to_owned()
}

#[test]
fn the_same_bytes_and_nobody_hangs() {
    use_readers();
    let own = ProcessMemory::open(std::process::id()).unwrap();
    let words: Vec<u64> = (0..3_000_000).collect();
    let bytes = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
    // One range that is longer than an answer, many small ones, and one that does not exist.
    let mut all = vec![0; words.len() * 8];
    own.read(words.as_ptr() as u64, &mut all).unwrap();
    assert_eq!(all, bytes(&words));
    let mut parts: Vec<Part> = (0..3000)
        .map(|number| Part {
            address: words.as_ptr() as u64 + number * 800,
            bytes: vec![0; 16],
        })
        .collect();
    own.read_many(&mut parts).unwrap();
    for (number, part) in parts.iter().enumerate() {
        let at = number * 100;
        assert_eq!(part.bytes, bytes(&words[at..at + 2]));
    }
    assert_eq!(
        own.read(8, &mut [0]).unwrap_err().raw_os_error(),
        Some(libc::EFAULT)
    );
    assert_eq!(own.read_u64(words.as_ptr() as u64 + 80).unwrap(), 10);

    // Work is done where the memory is read: not by us, who have no such work.
    let work = |number| Work {
        number,
        run: |_, _, _| panic!("the reader does it"),
    };
    let patience = Patience {
        still: Duration::from_millis(50),
        whole: Duration::from_secs(10),
    };
    let done = |number, addresses: &[u64]| {
        let reply = &mut |_: &[u8]| Ok(Vec::new());
        own.work(&work(number), &bytes(addresses), patience, reply)
    };
    let at = words.as_ptr() as u64;
    assert_eq!(done(7, &[at + 80, at + 96]).unwrap(), 22u64.to_ne_bytes());
    assert_eq!(
        done(7, &[8]).unwrap_err().raw_os_error(),
        Some(libc::EFAULT)
    );
    assert!(done(8, &[at]).is_err(), "nobody has such a work");
    // It asks back, and goes by what it is told then.
    let mut asked = Vec::new();
    let until_three = &mut |sum: &[u8]| {
        asked.push(u64::from_ne_bytes(sum.try_into().unwrap()));
        let enough: &[u8] = if asked.len() == 3 { b"enough" } else { b"" };
        Ok(enough.to_vec())
    };
    let told = bytes(&[at + 8, at + 16, at + 24, at + 32]);
    let long = Patience {
        whole: Duration::from_secs(60),
        ..patience
    };
    let sum = own.work(&work(7), &told, long, until_three).unwrap();
    assert_eq!((sum, asked), (6u64.to_ne_bytes().to_vec(), vec![1, 3, 6]));
    let refuses = &mut |_: &[u8]| Err(ErrorKind::PermissionDenied.into());
    assert!(own.work(&work(7), &told, long, refuses).is_err());
    // What takes longer than it may is ended, and its process is no worse for it.
    let longest = Patience {
        whole: Duration::from_millis(10_100),
        ..patience
    };
    let before = reader::given_up();
    let nothing = &mut |_: &[u8]| Ok(Vec::new());
    let late = own.work(&work(9), &told, longest, nothing).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    assert!(late.to_string().contains("took longer than 10 s"), "{late}");
    assert_eq!(reader::given_up(), before);
    assert_eq!(done(7, &[at + 80]).unwrap(), 10u64.to_ne_bytes());
    let too_much = done(7, &vec![at; 1 << 22]).unwrap_err();
    assert_eq!(too_much.kind(), ErrorKind::FileTooLarge);

    // It may look at other users' processes and files, and do nothing else: CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE and
    // CAP_CHECKPOINT_RESTORE.
    let rights = 1u64 << 2 | 1 << 19 | 1 << 40;
    for set in ["CapPrm", "CapEff"] {
        assert_eq!(u64::from_str_radix(&of_reader(set), 16).unwrap(), rights);
    }
    assert_eq!(of_reader("CapInh").trim_start_matches('0'), "");
    assert_eq!(of_reader("NoNewPrivs"), "1");
    assert_eq!(of_reader("Seccomp"), "2");

    let withheld = Withheld::new();
    assert_eq!(own.read_u64(withheld.address as u64).unwrap(), 4711);
    let hangs = (withheld.address + PAGE) as u64;
    let before = reader::given_up();
    assert_eq!(done(7, &[hangs]).unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(reader::given_up(), before + 1);
    assert_eq!(done(7, &[at + 80]).unwrap(), 10u64.to_ne_bytes());
    // Each attempt costs a reader and some time, so after some of them the process is left alone for a while.
    let attempts = std::iter::repeat_with(|| own.read_u64(hangs).unwrap_err());
    let alone = attempts
        .inspect(|error| assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"))
        .take_while(|_| own.read_u64(withheld.address as u64).is_ok());
    assert!((1..10).contains(&alone.count()));
    // Other users' processes are read.
    let (mut other, address) = neighbour();
    let memory = ProcessMemory::open(other.id()).unwrap();
    memory.read_u64(address).unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    // After the pause it is read again.
    let again = std::iter::repeat_with(|| {
        std::thread::yield_now();
        own.read_u64(withheld.address as u64)
    });
    let found = again.filter_map(Result::ok).next();
    assert_eq!(found, Some(4711));
}
