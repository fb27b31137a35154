//! Command-line options of `memscoped`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};

use memscope_proto::formats::{Format, SNAPSHOTS, named};
use memscope_rpc::{Condition, Roles, TlsFiles};

use crate::otlp::options::{Endpoint, Options, Protocol};
use crate::policy::Policy;
use crate::probe::load::AttachMethod;
use crate::users;

/// Follows the device memory of running processes and answers for it over gRPC.
///
/// memscoped attaches to unmodified processes with eBPF probes on the allocator functions of CUDA and
/// PyTorch, keeps what they hold, and answers `memscope-ctl`. It traces nothing until it is told to:
/// `memscope-ctl attach --pid N`, or an entry [[attach]] of the configuration file.
///
/// It needs root, or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE and CAP_DAC_READ_SEARCH, and before
/// kernel 6.6 (up to 6.9 without the later mend) CAP_SYS_ADMIN; `memscope-ctl doctor` says what this machine lacks,
/// but for that mend.
#[derive(Debug, Parser)]
#[command(name = "memscoped", version)]
pub struct Config {
    /// Configuration file, in TOML: a setting has the name of an option without its dashes, such as `journal-mib = 1024`; `none`: none is read.
    ///
    /// Where none is named it is /etc/memscope/memscoped.toml, if that is there. What is on the command line or in the environment goes
    /// before what is in the file. Settings count from the next start on; `systemctl reload memscoped` is one that loses nothing.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Check the configuration file and the command line, with the addresses and files that they name, and end.
    #[arg(long, conflicts_with_all = ["replay", "import", "earlier", "cleanup"])]
    pub check_config: bool,

    /// Unix socket to listen on. Mode 0660 with group `memscope` where that group exists, else 0600.
    #[arg(
        long,
        env = "MEMSCOPE_SOCKET",
        default_value = "/run/memscope/memscoped.sock"
    )]
    pub socket: PathBuf,

    /// Also answer at this TCP port, with TLS, for clients with a certificate; may be given several times. Port 0 means any
    /// free one, which the log names.
    ///
    /// Who connects must have a certificate that an authority of --tls-client-ca has signed. What its holder may do
    /// stands in its subject as an organizational unit (OU): `memscope:see=NAMESPACE` (ask about the processes of a
    /// Kubernetes namespace), `memscope:see` (ask about all processes), `memscope:control` (also attach, detach, mark,
    /// export, and change triggers) or `memscope:admin` (all that root may). Several add up.
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_parser = listen_address,
        requires_all = ["tls_cert", "tls_key", "tls_client_ca"],
        conflicts_with_all = ["cleanup", "import", "earlier", "dump"]
    )]
    pub listen: Vec<String>,

    /// Of --listen: the daemon's certificate (PEM), and after it those between it and its authority. Like the other files,
    /// it is loaded again when it changes.
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub tls_cert: Option<PathBuf>,

    /// Of --listen: the key of that certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub tls_key: Option<PathBuf>,

    /// Of --listen: the authorities whose certificates clients may have (PEM).
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub tls_client_ca: Option<PathBuf>,

    /// Of --listen: revocation lists (PEM), one of each authority between a client's certificate and its root. A client
    /// is refused if its certificate is on one, or if the list of its authority is missing.
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub tls_client_crl: Option<PathBuf>,

    /// Of --listen: the role (`see=NAMESPACE`, `see`, `control`, `admin`) of certificates that name none; `none`: they may
    /// ask nothing.
    #[arg(long, value_name = "ROLE", default_value = "see", requires = "listen")]
    pub tls_default_role: Roles,

    /// Directory for the journal and for snapshots that are taken by themselves.
    #[arg(long, default_value = "/var/lib/memscope")]
    pub state_dir: PathBuf,

    /// Size of the journal on disk in MiB; the oldest part goes first. 0: no journal.
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub journal_mib: u64,

    /// Memory that memscoped may take (`512MiB`, `2GiB`); what is kept of the processes that take the most of it is given up
    /// before that, and `status` says what was.
    ///
    /// It is the memory of the program itself. The ring buffer and the tables in the kernel come on top of it.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = memory_size)]
    pub memory: u64,

    /// Size of the ring buffer between the kernel and the daemon in MiB, a power of two.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = ring_size)]
    pub ring_mib: u32,

    /// Directory in a BPF file system for probes and maps that outlive memscoped, so that it goes on where it was after a crash or an
    /// upgrade; `none`: they end with it.
    ///
    /// The usual one is beneath /sys/fs/bpf/memscope and named after the state directory. A clean stop (SIGTERM) removes everything;
    /// SIGUSR1 ends memscoped and leaves its probes collecting for the one that is started next.
    #[arg(long, value_name = "DIR", default_value = "auto", value_parser = pin_dir)]
    pub pin_dir: PinDir,

    /// Remove probes and maps that a killed memscoped with this state directory has left, and end.
    #[arg(long, conflicts_with_all = ["replay", "import", "earlier"])]
    pub cleanup: bool,

    /// Seconds for which ended processes can still be asked about; those that ended first are forgotten earlier where all of
    /// them take more than some 160 MiB.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub retention: u64,

    /// Trace entries kept per device.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub trace_entries: usize,

    /// Take a snapshot by itself when this happens in a traced process; may be given several times.
    ///
    /// `allocated > 20GiB`, `reserved > 30GiB`: comes above so many bytes; again only after it has fallen
    /// to 95 % of them. `fragmentation > 40%`: the pool takes more from the driver although more than this
    /// share of what it holds is free, while more than 1 GiB is reserved (`… with reserved > 4GiB`).
    /// `growth > 2GiB in 10m`: the floor (the lowest level of allocated within a quarter of that time)
    /// rises by so much within that time. `oom` is there anyway. Each counts on each device by itself;
    /// `… on device 0` is for that one. `memscope-ctl trigger add` adds them while the daemon runs.
    #[arg(long, value_name = "CONDITION")]
    pub snapshot_when: Vec<Condition>,

    /// Take no snapshot when a process runs out of memory.
    #[arg(long)]
    pub no_oom_snapshots: bool,

    /// Format of snapshots that are taken by themselves.
    #[arg(long, value_name = "FORMAT", value_parser = snapshot_format(), default_value = SNAPSHOTS[0].name)]
    pub snapshot_format: &'static Format,

    /// Snapshots kept that were taken by themselves, in STATE_DIR/snapshots; the oldest of whoever has the
    /// most goes first. 0: none are taken.
    #[arg(long, value_name = "N", default_value_t = 16, alias = "oom-snapshots")]
    pub snapshots_keep: usize,

    /// Size of all of them in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub snapshots_mib: u64,

    /// Seconds for which a trigger rests in a process after a snapshot.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub snapshot_pause: u64,

    /// Time that walking stacks may take in a process, in percent of one processor, or `off`.
    ///
    /// Where it takes more, frames of compiled code are left out, then stacks are taken of one allocation in
    /// 1 MiB, in 64 MiB, and of none, until it has become cheaper; coverage says so (`stacks_reduced`).
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = stack_budget)]
    pub stack_budget: StackBudget,

    /// Kind of links for the probes. `auto`: one link for many sites where the kernel can (6.6), else
    /// one perf event for each.
    #[arg(long, value_enum, default_value_t = Links::Auto)]
    pub links: Links,

    /// Also place probes in files on file systems that a user serves (FUSE) or mounted (overlays of rootless containers).
    ///
    /// The kernel waits for such a file system while it places a probe, and until it answers no program on the machine can start another
    /// one. Without this option such a library gets no probe, and coverage says so (`not_probed`).
    #[arg(long)]
    pub probe_user_mounts: bool,

    /// Directory in which Kubernetes keeps the logs of this node's pods. Their names say to which pod and namespace a process belongs.
    #[arg(long, value_name = "DIR", default_value = memscope_site::containers::POD_LOGS)]
    pub pod_logs: PathBuf,

    /// Let this user of the machine (a name or a number) see all processes, as root does, and change nothing of them. memscope-archive runs
    /// as such a user. It sees the names of programs, the lines that allocate, and snapshots.
    #[arg(long, value_name = "USER", value_parser = user, conflicts_with = "replay")]
    pub see_all_user: Option<u32>,

    /// Directory in which Kubernetes keeps the volumes of this node's pods. Labels of a pod are in its volume of the downward API; only
    /// `pod-labels` in an entry [[attach]] of the configuration asks for them.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/pods")]
    pub pod_volumes: PathBuf,

    /// What is attached by itself: the entries [[attach]] of the configuration file.
    #[arg(skip)]
    pub policy: Policy,

    /// Hand out metrics (OpenMetrics, for Prometheus) over HTTP at this address, path /metrics, such as 127.0.0.1:9464.
    ///
    /// They tell of all processes, with the names of programs, jobs and pods and the lines that leak. Whoever can reach the address can
    /// read them, so it must be one of this machine only.
    #[arg(long, value_name = "HOST:PORT", value_parser = socket_address, conflicts_with = "replay")]
    pub metrics: Option<SocketAddr>,

    /// Let --metrics be an address that other machines can reach. Nobody is asked for a certificate there.
    #[arg(long, requires = "metrics")]
    pub metrics_for_everybody: bool,

    /// Send metrics, findings and reports of memory that ran out to an OpenTelemetry collector at this URL (OTLP), such as
    /// http://127.0.0.1:4318.
    ///
    /// Metrics are those of --metrics, which is not needed for this. Findings and reports are log records. A URL of http:// is not
    /// encrypted. For http/protobuf, /v1/metrics and /v1/logs are added to the URL.
    #[arg(long, value_name = "URL", conflicts_with_all = ["replay", "cleanup", "import", "earlier", "dump"])]
    pub otlp_endpoint: Option<Endpoint>,

    /// Of --otlp-endpoint: the protocol. A collector usually speaks gRPC at port 4317 and HTTP at port 4318.
    #[arg(
        long,
        value_enum,
        value_name = "PROTOCOL",
        default_value = "http/protobuf",
        requires = "otlp_endpoint"
    )]
    pub otlp_protocol: Protocol,

    /// Of --otlp-endpoint: time between two requests with metrics. Log records are sent at once.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600),
        requires = "otlp_endpoint"
    )]
    pub otlp_interval_s: u64,

    /// Of --otlp-endpoint: file with headers of each request, a line `name: value` for each, such as an authorization.
    ///
    /// It must belong to root or the user that memscoped runs as, and nobody else may be able to read it. It is read at the start.
    #[arg(long, value_name = "FILE", requires = "otlp_endpoint")]
    pub otlp_headers_file: Option<PathBuf>,

    /// Of --otlp-endpoint: the authorities that the collector's certificate may be from (PEM), instead of those that the system trusts.
    #[arg(long, value_name = "FILE", requires = "otlp_endpoint")]
    pub otlp_ca: Option<PathBuf>,

    /// Replay a recording (a journal directory, a segment, an exported file, or a pickle that PyTorch wrote) instead of tracing. A state
    /// directory means the latest earlier run in it.
    /// Needs no privileges. The socket is for the own user only.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,

    /// Replay up to this moment only: EVENT@BOOT_NS, as `as_of_event.sequence` and `as_of_boot_ns` of an answer.
    #[arg(long, value_name = "MOMENT", requires = "replay", value_parser = as_of)]
    pub as_of: Option<(u64, u64)>,

    /// End when standard input ends, and remove the folder of the socket. For programs that start a memscoped to ask a recording: however
    /// they end, nothing is left behind.
    #[arg(long, requires = "replay")]
    pub until_input_ends: bool,

    /// List the recordings of earlier runs in --state-dir as JSON, and end.
    #[arg(long, conflicts_with_all = ["replay", "import"])]
    pub earlier: bool,

    /// Make a recording of a dump of msMemScope's (memscope_dump_*.csv or .db) or of a pickle that PyTorch wrote instead of tracing, and end.
    /// Needs no privileges.
    #[arg(
        long,
        value_name = "FILE",
        requires = "output",
        conflicts_with = "replay"
    )]
    pub import: Option<PathBuf>,

    /// Where --import puts the recording: a folder that is not there yet, or is empty.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Write msMemScope's files of the recording that --replay names, and end. Needs no privileges.
    #[arg(long, value_enum, value_name = "FORMAT", requires_all = ["replay", "output"])]
    pub dump: Option<DumpFormat>,

    /// Of --dump: only this process.
    #[arg(long, value_name = "PID", requires = "dump")]
    pub pid: Option<u32>,

    /// What to log (`info`, `debug`, `memscope_daemon=trace`, …).
    #[arg(long, env = "MEMSCOPE_LOG", default_value = "info")]
    pub log: String,
}

impl Config {
    /// The files for the TCP ports; `None` without `--listen`, with which all of them that are needed are given.
    pub fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles {
            certificate: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            client_ca: self.tls_client_ca.clone()?,
            client_crl: self.tls_client_crl.clone(),
        })
    }

    /// What is to be sent to a collector, and how; `None` without `--otlp-endpoint`.
    pub fn otlp(&self) -> Option<Options> {
        Some(Options {
            endpoint: self.otlp_endpoint.clone()?,
            protocol: self.otlp_protocol,
            interval: Duration::from_secs(self.otlp_interval_s),
            headers_file: self.otlp_headers_file.clone(),
            ca: self.otlp_ca.clone(),
        })
    }
}

/// Reads `HOST:PORT`. Whether there is such a host is found out later.
fn listen_address(text: &str) -> Result<String, String> {
    let host_and_port = text.rsplit_once(':');
    let is_whole = host_and_port.is_some_and(|(host, port)| {
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        !host.is_empty() && (is_bracketed || !host.contains(':')) && port.parse::<u16>().is_ok()
    });
    match is_whole {
        true => Ok(text.to_owned()),
        false => Err("give HOST:PORT, such as 0.0.0.0:9465 or [::]:9465".to_owned()),
    }
}

/// Reads `EVENT@BOOT_NS`.
fn as_of(text: &str) -> Result<(u64, u64), String> {
    let numbers = text
        .split_once('@')
        .and_then(|(event, boot_ns)| Some((event.parse().ok()?, boot_ns.parse().ok()?)));
    numbers.ok_or_else(|| {
        "write EVENT@BOOT_NS, such as 4711@32746154739: as_of_event.sequence and as_of_boot_ns of an answer".to_owned()
    })
}

/// Format of msMemScope's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DumpFormat {
    /// Comma-separated values.
    Csv,
    /// SQLite.
    Db,
}

/// Kind of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Links {
    /// The best that the kernel has.
    Auto,
    /// Multi-uprobe links.
    Multi,
    /// Perf events.
    Perf,
}

impl Links {
    /// The kind of links to ask the loader for; `None` leaves the choice to it.
    pub fn method(self) -> Option<AttachMethod> {
        match self {
            Links::Auto => None,
            Links::Multi => Some(AttachMethod::Multi),
            Links::Perf => Some(AttachMethod::Perf),
        }
    }
}

fn snapshot_format() -> impl TypedValueParser<Value = &'static Format> {
    let words = |format: &'static Format| PossibleValue::new(format.name).help(format.help);
    PossibleValuesParser::new(SNAPSHOTS.iter().map(words))
        .try_map(|name| named(SNAPSHOTS, &name).ok_or("is no format"))
}

/// Share of one processor that walking stacks may take in a process; `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StackBudget(pub Option<f64>);

fn stack_budget(text: &str) -> Result<StackBudget, String> {
    if text == "off" {
        return Ok(StackBudget(None));
    }
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(StackBudget(Some(percent / 100.0))),
        _ => Err("give a percentage above 0, such as 10, or `off`".to_owned()),
    }
}

/// Where maps and links are pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinDir {
    /// Beneath `/sys/fs/bpf/memscope`, named after the state directory.
    Usual,
    /// In this directory.
    At(PathBuf),
    /// Nowhere.
    None,
}

fn pin_dir(text: &str) -> Result<PinDir, String> {
    match text {
        "auto" => Ok(PinDir::Usual),
        "none" => Ok(PinDir::None),
        path if path.starts_with('/') => Ok(PinDir::At(path.into())),
        _ => Err("give an absolute path in a BPF file system, or `auto`, or `none`".to_owned()),
    }
}

fn user(text: &str) -> Result<u32, String> {
    users::uid(text).ok_or_else(|| {
        format!("this machine has no user {text:?} — make it first, or give its number")
    })
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map(|mut found| found.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err("no address has that name".to_owned()),
        Err(error) => Err(format!(
            "{error}; give an address and a port, such as 127.0.0.1:9464"
        )),
    }
}

/// Less than this is taken by a daemon that traces nothing.
const LEAST_MEMORY: u64 = 64 << 20;

fn memory_size(text: &str) -> Result<u64, String> {
    match memscope_units::parse_bytes(text) {
        Ok(bytes) if bytes >= LEAST_MEMORY => Ok(bytes),
        Ok(_) => Err("give at least 64MiB".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn ring_size(text: &str) -> Result<u32, String> {
    let mib: u32 = text
        .parse()
        .map_err(|e| format!("{e}; give a number of MiB, such as 16"))?;
    if !mib.is_power_of_two() || mib > 1024 {
        return Err("give a power of two from 1 to 1024".to_owned());
    }
    Ok(mib)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refused(words: &[&str]) -> String {
        let words = std::iter::once(&"memscoped").chain(words);
        Config::try_parse_from(words).unwrap_err().to_string()
    }

    /// A port without certificates is refused before anything is opened, and so are certificates without a port.
    #[test]
    fn a_port_needs_its_certificates() {
        let port = ["--listen", "127.0.0.1:0"];
        let said = refused(&port);
        for missing in ["--tls-cert", "--tls-key", "--tls-client-ca"] {
            assert!(said.contains(missing), "{said}");
        }
        let said = refused(&[
            "--listen",
            "127.0.0.1:0",
            "--tls-cert",
            "a",
            "--tls-key",
            "b",
        ]);
        assert!(said.contains("--tls-client-ca"), "{said}");
        let said = refused(&["--tls-client-crl", "x"]);
        assert!(said.contains("--listen"), "{said}");
        let all = ["--tls-cert", "a", "--tls-key", "b", "--tls-client-ca", "c"];
        for address in ["127.0.0.1", ":9465", "::1:9465", "host:port", "host:99999"] {
            let said = refused(&[&["--listen", address], &all[..]].concat());
            assert!(said.contains("HOST:PORT"), "{said}");
        }
        let both = [&["--listen", "[::1]:0", "--listen", "node7:9465"], &all[..]].concat();
        let config = Config::try_parse_from(std::iter::once(&"memscoped").chain(&both)).unwrap();
        assert_eq!(config.listen, ["[::1]:0", "node7:9465"]);
        assert_eq!(config.tls_default_role.to_string(), "see");
        assert_eq!(config.tls_files().unwrap().key, PathBuf::from("b"));
        let role = [&both[..], &["--tls-default-role", "sea"]].concat();
        assert!(refused(&role).contains("is no role"));
    }
}
