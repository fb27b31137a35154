//! Facts about a process that `/proc/<pid>` gives at the attach.
//!
//! For a pid that names a thread, a zombie or a thread of the kernel there is an error that says so.
//! Pids of other pid namespaces are not translated: a pid is always the one that this program's own
//! `/proc` shows.

use memscope_vendors::VENDORS;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::PathBuf;

use memscope_ledger::event::ProcessFacts;
use memscope_memory::file::read_whole;
use memscope_memory::{Memory, Owner, ProcessMemory};

use crate::SiteError;
use crate::groups::{self, View};

/// `PF_EXITING` of include/linux/sched.h.
const EXITING: u64 = 0x4;
/// `PF_KTHREAD` of include/linux/sched.h.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Most bytes of an environment variable's value, or of one argument of the command line, that are kept.
const MAX_VALUE: usize = 4096;
/// Most environment variables that are kept.
const MAX_VARIABLES: usize = 128;
/// Most arguments of the command line that are kept.
const MAX_ARGUMENTS: usize = 256;

/// Environment variables that are kept, since they say which rank, job or allocator setting a process has. Those in the
/// vendors' tables are kept too.
const VARIABLES: &[&str] = &[
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "PYTORCH_ALLOC_CONF",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_NAMESPACE",
    "MPI_LOCALRANKID",
    "FLUX_JOB_ID",
    "FLUX_JOB_SIZE",
    "FLUX_TASK_RANK",
    "FLUX_TASK_LOCAL_ID",
    "RANK_ID",
    "RANK_SIZE",
    "DEVICE_ID",
    "RAY_JOB_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_ID",
    "PBS_JOBID",
    "PBS_JOBNAME",
    "LSB_JOBID",
    "LSB_JOBNAME",
    "KUBERNETES_SERVICE_HOST",
    "HOSTNAME",
    "POD_NAME",
    "POD_NAMESPACE",
];

/// The part of `/proc/<pid>/stat` that matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the program, as the kernel stores it (up to 15 bytes).
    pub comm: String,
    /// Letter of the state, such as `R` or `Z`.
    pub state: u8,
    /// Pid of the parent.
    pub parent_pid: u32,
    /// `PF_*` flags.
    pub flags: u64,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

/// Parses a line of `stat`; `None` if it does not have the known form. The name may contain spaces and brackets, so the
/// last closing bracket ends it.
pub fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = memchr::memchr(b'(', text)?;
    let close = memchr::memrchr(b')', text)?;
    let comm = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // fields[0] is field 3 of proc(5).
    Some(Stat {
        comm,
        state: *fields.first()?.as_bytes().first()?,
        parent_pid: fields.get(1)?.parse().ok()?,
        flags: fields.get(6)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// Reads a file of `/proc/<pid>`. Fails if there is no such process, if it is not permitted, or if the file has more than 16 MiB.
pub fn read(pid: u32, name: &str) -> Result<Vec<u8>, SiteError> {
    let path = PathBuf::from(format!("/proc/{pid}/{name}"));
    let text = match name {
        // These wait for no lock of the process, and for none of its memory.
        "stat" | "status" | "cgroup" | "comm" => fs::read(&path),
        _ => Owner::process(pid).and_then(|owner| read_whole(owner, &path)),
    };
    text.map_err(|source| SiteError::proc_read(pid, path, source))
}

/// The children of a process that are still there, those of all its threads; none where the kernel does not list them (before 3.5, or built
/// without CONFIG_PROC_CHILDREN).
pub fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids = list.split_ascii_whitespace();
            pids.filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// The parent of which the process's memory is a copy: it was forked and has executed no image since, and its parent is still there and has
/// executed none either. `None` where that is not so, or cannot be told.
///
/// The auxiliary vector tells that: among others it has the address of 16 random bytes on the stack, which differs for each image that is
/// executed, where addresses are random.
pub fn copied_from(pid: u32) -> Option<u32> {
    let parent = alive(pid).ok()?.parent_pid;
    let own = read(pid, "auxv").ok()?;
    let of_parent = read(parent, "auxv").ok()?;
    (!own.is_empty() && own == of_parent).then_some(parent)
}

/// What tells the image that a process runs now from others that it has run or will run; `None` where that cannot be read, as while it
/// executes one. See [`copied_from`].
pub fn image(pid: u32) -> Option<Vec<u8>> {
    read(pid, "auxv").ok().filter(|vector| !vector.is_empty())
}

/// A number of the image that a process runs now: the same whenever it is asked for, and another one for each image that is executed, also
/// where addresses are not random. It has 53 bits, so that JSON can tell it. `None` where the image or its memory cannot be read.
///
/// The kernel gives each image 16 random bytes. Programs make secrets of them, so the number does not let anybody find them out.
pub fn image_number(pid: u32) -> Option<u64> {
    let vector = image(pid)?;
    let mut random = [0; 16];
    let memory = ProcessMemory::open(pid).ok()?;
    memory.read(random_bytes_at(&vector)?, &mut random).ok()?;
    // Another image may have come in between. Its memory is another one. Programs in Go clear the bytes once they have used them.
    if image(pid)? != vector || random == [0; 16] {
        return None;
    }
    let digest = Sha256::new().chain_update(&vector).chain_update(random);
    let number = digest.finalize().first_chunk().copied()?;
    Some(u64::from_le_bytes(number) >> 11)
}

/// Where the kernel has put the random bytes of an image with this auxiliary vector.
fn random_bytes_at(vector: &[u8]) -> Option<u64> {
    let words: Vec<u64> = vector
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_ne_bytes(*word))
        .collect();
    let mut entries = words.as_chunks::<2>().0.iter();
    entries
        .find(|[key, _]| *key == libc::AT_RANDOM)
        .map(|[_, at]| *at)
}

fn malformed(pid: u32, name: &str, what: &'static str) -> SiteError {
    SiteError::Malformed {
        pid,
        path: PathBuf::from(format!("/proc/{pid}/{name}")),
        what,
    }
}

/// Reads the `stat` of a process. Fails if it is not a living process with user memory.
pub fn alive(pid: u32) -> Result<Stat, SiteError> {
    alive_with_status(pid).map(|(stat, _)| stat)
}

fn alive_with_status(pid: u32) -> Result<(Stat, Status), SiteError> {
    let stat = parse_stat(&read(pid, "stat")?)
        .ok_or_else(|| malformed(pid, "stat", "23 fields after the name"))?;
    let status = Status::parse(&read(pid, "status")?)
        .ok_or_else(|| malformed(pid, "status", "Tgid and Uid"))?;
    check(pid, &stat, &status)?;
    Ok((stat, status))
}

/// Fails if what `/proc` has under this number is not a living process with user memory.
fn check(pid: u32, stat: &Stat, status: &Status) -> Result<(), SiteError> {
    // The last moment of a process, in which the kernel has no number for it any more.
    if status.tgid == 0 {
        return Err(SiteError::NoSuchProcess { pid });
    }
    if status.tgid != pid {
        return Err(SiteError::ThreadId {
            pid,
            process: status.tgid,
        });
    }
    if stat.flags & KERNEL_THREAD != 0 {
        return Err(SiteError::KernelThread { pid });
    }
    if stat.state == b'Z' && status.threads > 1 {
        return Err(SiteError::MainThreadEnded { pid });
    }
    if matches!(stat.state, b'Z' | b'X' | b'x') {
        return Err(SiteError::Zombie { pid });
    }
    // It gives its memory back before it becomes a zombie.
    if stat.flags & EXITING != 0 {
        return Err(SiteError::NoSuchProcess { pid });
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Status {
    tgid: u32,
    uids: [u32; 3],
    threads: u32,
    /// Pids from our own pid namespace inwards.
    namespace_pids: Vec<u32>,
}

impl Status {
    fn parse(text: &[u8]) -> Option<Status> {
        // The name may hold anything but a line feed, so the text need not be UTF-8.
        let text = String::from_utf8_lossy(text);
        let numbers = |key: &str| -> Vec<u32> {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
                .map(|rest| {
                    rest.split_ascii_whitespace()
                        .filter_map(|number| number.parse().ok())
                        .collect()
                })
                .unwrap_or_default()
        };
        let uids = numbers("Uid");
        Some(Status {
            tgid: numbers("Tgid").first().copied()?,
            uids: [*uids.first()?, *uids.get(1)?, *uids.get(2)?],
            threads: numbers("Threads").first().copied().unwrap_or(1),
            namespace_pids: numbers("NSpid"),
        })
    }
}

/// Reads the facts about a process from `/proc`. The caller must set `level`, `generation`, `image`, `from_start` and
/// `container`, which are not in there.
pub fn facts(pid: u32) -> Result<ProcessFacts, SiteError> {
    let (stat, status) = alive_with_status(pid)?;
    let cmdline = read(pid, "cmdline")?;
    let environment = read(pid, "environ")?;
    let cgroup = cgroup(pid);
    let after = alive(pid)?;
    if after.start_ticks != stat.start_ticks {
        return Err(SiteError::Reused { pid });
    }
    let inner = status.namespace_pids.last().copied();
    Ok(ProcessFacts {
        pid,
        namespace_pid: inner.filter(|_| status.namespace_pids.len() > 1),
        start_ticks: stat.start_ticks,
        parent_pid: stat.parent_pid,
        uids: status.uids,
        comm: stat.comm,
        cmdline: arguments(&cmdline),
        cgroup,
        host: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        container: None,
        environment: chosen_variables(&environment),
        ..ProcessFacts::default()
    })
}

/// Path of the process's control group from the machine's root on, as [`facts`] has it; `None` if it cannot be read. Where this program
/// cannot know that ([`View::Unknown`]) it is the path that the kernel tells it.
pub fn cgroup(pid: u32) -> Option<String> {
    cgroup_path(&read(pid, "cgroup").ok()?, View::own())
}

/// File names of all that a process maps, each with whether it is a library of a device; none if that cannot be read.
pub fn mapped_files(pid: u32) -> Vec<(String, bool)> {
    let Ok(maps) = read(pid, "maps") else {
        return Vec::new();
    };
    let mut all: Vec<(String, bool)> = Vec::new();
    for line in maps.split(|byte| *byte == b'\n') {
        let Some(slash) = line.iter().rposition(|byte| *byte == b'/') else {
            continue;
        };
        let name = line.get(slash + 1..).unwrap_or_default();
        // The kernel says so behind the name of a file that was replaced or removed since.
        let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
        let text = String::from_utf8_lossy(name);
        // A library has several mappings, one after the other.
        if all.last().is_none_or(|(last, _)| *last != text) {
            all.push((text.into_owned(), memscope_vendors::library(name).is_some()));
        }
    }
    all
}

fn arguments(text: &[u8]) -> Vec<String> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|byte| *byte == 0)
        .take(MAX_ARGUMENTS)
        .map(shortened)
        .collect()
}

fn shortened(text: &[u8]) -> String {
    String::from_utf8_lossy(text.get(..MAX_VALUE).unwrap_or(text)).into_owned()
}

/// Path of the process's control group: that of the unified hierarchy, or else that of the memory controller, or else
/// any. A path other than `/` is preferred.
fn cgroup_path(text: &[u8], view: &View) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let mut lines: Vec<(&str, String)> = groups::lines(&text)
        .map(|(controllers, path)| match controllers {
            "" => (controllers, view.whole(path)),
            _ => (controllers, path.to_owned()),
        })
        .collect();
    lines.sort_by_key(|(controllers, path)| {
        let rank = match *controllers {
            "" => 0,
            c if c.split(',').any(|c| c == "memory") => 1,
            _ => 2,
        };
        (path == "/", rank)
    });
    lines.into_iter().next().map(|(_, path)| path)
}

fn chosen_variables(text: &[u8]) -> Vec<(String, String)> {
    text.split(|byte| *byte == 0)
        .filter_map(|variable| {
            let at = memchr::memchr(b'=', variable)?;
            let name = std::str::from_utf8(&variable[..at]).ok()?;
            is_chosen(name).then(|| (name.to_owned(), shortened(&variable[at + 1..])))
        })
        .take(MAX_VARIABLES)
        .collect()
}

fn is_chosen(name: &str) -> bool {
    // SLURM_JWT and similar variables are secret keys, and what is read here is shown and journaled.
    let secret = ["JWT", "TOKEN", "KEY", "SECRET", "PASS", "CRED"]
        .iter()
        .any(|word| name.contains(word));
    let is_vendors = || VENDORS.iter().any(|facts| facts.settings.contains(&name));
    VARIABLES.contains(&name) || is_vendors() || (name.starts_with("SLURM_") && !secret)
}

/// Whether this program is in the initial pid namespace. Only then the pids of its `/proc` are those
/// that the BPF programs see. `None` where that cannot be read.
pub fn in_initial_pid_namespace() -> Option<bool> {
    // PROC_PID_INIT_INO of include/linux/proc_ns.h: the number is fixed, since other programs rely on it as well.
    const INITIAL: &str = "pid:[4026531836]";
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(link.as_os_str() == INITIAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_try_to_confuse() {
        let line = b"42 (a) R 1 (b) S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 10 11";
        let stat = parse_stat(line).unwrap();
        assert_eq!(stat.comm, "a) R 1 (b");
        assert_eq!((stat.state, stat.parent_pid), (b'S', 7));
        assert_eq!((stat.flags, stat.start_ticks), (4194560, 123456));
        for bad in [&b""[..], b"1 (x", b"1 (x) ", b"1 )x( R 1", b"1 (x) R 1 2 3"] {
            assert_eq!(parse_stat(bad), None);
        }
    }

    /// A process that was just waited for was called a thread of process 0.
    #[test]
    fn what_has_no_process_number_any_more_has_ended() {
        let stat = b"42 (a) X 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 10 11";
        let stat = parse_stat(stat).unwrap();
        let status = |tgid| Status::parse(format!("Tgid:\t{tgid}\nUid:\t0 0 0 0\n").as_bytes());
        let of = |tgid| check(42, &stat, &status(tgid).unwrap());
        assert!(matches!(of(0), Err(SiteError::NoSuchProcess { pid: 42 })));
        assert!(matches!(of(7), Err(SiteError::ThreadId { process: 7, .. })));
        assert!(matches!(of(42), Err(SiteError::Zombie { pid: 42 })));
    }

    #[test]
    fn ourselves() {
        let pid = std::process::id();
        let facts = facts(pid).unwrap();
        assert_eq!(facts.pid, pid);
        assert!(facts.start_ticks > 0 && !facts.cmdline.is_empty());
        assert_eq!(facts.parent_pid, std::os::unix::process::parent_id());
    }

    /// The shell executes the same program once more, with the same words and variables.
    #[test]
    fn an_image_has_one_number_and_the_next_one_another() {
        use std::io::{BufRead, BufReader, Write};
        let own = image_number(std::process::id());
        assert!(own.is_some_and(|number| number < 1 << 53));
        assert_eq!(own, image_number(std::process::id()));
        // The first one has the same addresses each time.
        for starter in [&["setarch", "-R"][..], &["env"]] {
            let script = "echo here; read line; exec sh -c \"$0\" \"$0\"";
            let words = [starter, &["sh", "-c", script, script]].concat();
            let mut child = std::process::Command::new(words[0])
                .args(&words[1..])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut numbers = Vec::new();
            for _ in 0..3 {
                assert_eq!(told.next().unwrap().unwrap(), "here");
                let number = image_number(child.id());
                assert!(number.is_some());
                assert_eq!(number, image_number(child.id()));
                assert!(!numbers.contains(&number), "{numbers:?}");
                numbers.push(number);
                child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn what_is_no_process() {
        assert!(matches!(
            facts(0x7fff_fff0),
            Err(SiteError::NoSuchProcess { .. })
        ));
        let pid = std::process::id();
        std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            assert!(matches!(
                facts(tid),
                Err(SiteError::ThreadId { process, .. }) if process == pid
            ));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_zombie() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            match facts(child.id()) {
                Err(SiteError::Zombie { .. }) => break,
                Ok(_) => assert!(std::time::Instant::now() < deadline),
                // While the process becomes a zombie the files can be empty.
                Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
            }
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    /// A process that was killed has no memory any more some time before it is a zombie. It must not be taken for one that maps nothing.
    #[test]
    fn a_process_that_ends_is_not_alive_without_its_memory() {
        let (mut looks, mut without_memory) = (0, 0);
        for _ in 0..300 {
            let mut child = std::process::Command::new("sleep")
                .arg("1000")
                .spawn()
                .unwrap();
            child.kill().unwrap();
            loop {
                let maps = std::fs::read(format!("/proc/{}/maps", child.id()));
                let alive = alive(child.id());
                looks += 1;
                if maps.is_ok_and(|maps| maps.is_empty()) {
                    without_memory += 1;
                    assert!(alive.is_err(), "after {looks} looks");
                }
                if matches!(alive, Err(SiteError::Zombie { .. })) {
                    break;
                }
                std::thread::yield_now();
            }
            child.wait().unwrap();
        }
        assert!(without_memory > 0);
    }

    #[test]
    fn variables() {
        let chosen = chosen_variables(
            b"RANK=3\0PATH=/bin\0HOME=h\0SLURM_JOB_ID=9\0SLURM_JWT=s\0odd\0PYTORCH_CUDA_ALLOC_CONF=a:b=c\0",
        );
        let chosen: Vec<_> = chosen
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            chosen,
            ["RANK=3", "SLURM_JOB_ID=9", "PYTORCH_CUDA_ALLOC_CONF=a:b=c"]
        );
    }

    #[test]
    fn groups() {
        let path = |text: &str| cgroup_path(text.as_bytes(), &View::Machine);
        assert_eq!(
            path("0::/user.slice/x:y\n").as_deref(),
            Some("/user.slice/x:y")
        );
        assert_eq!(
            path("5:cpu,cpuacct:/a\n4:memory:/b\n0::/\n").as_deref(),
            Some("/b")
        );
        assert_eq!(path("0::/\n").as_deref(), Some("/"));
        assert_eq!(path(""), None);
        let inside = View::From("/kubepods.slice/a.scope".to_owned());
        let path = |text: &str| cgroup_path(text.as_bytes(), &inside);
        assert_eq!(
            path("0::/../b.scope\n").as_deref(),
            Some("/kubepods.slice/b.scope")
        );
        // One of no group is the root of that hierarchy, which says less than another one.
        assert_eq!(path("4:memory:/b\n0::/../..\n").as_deref(), Some("/b"));
    }
}
