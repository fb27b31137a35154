//! `memscoped`: starts the parts, serves, and takes everything down again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::CommandFactory as _;
use memscope_daemon::again::Again;
use memscope_daemon::config::{Config, DumpFormat};
use memscope_daemon::courses::Courses;
use memscope_daemon::keeper::{
    self, Command, Keeper, KeeperHandle, LeftWatching, Taking, Watching,
};
use memscope_daemon::memory::{Memory, Spare, trim};
use memscope_daemon::messages::{Messages, Severity};
use memscope_daemon::metrics::{Endpoint, Reachable, Source};
use memscope_daemon::otlp::{Pusher, Queues, Settings as OtlpSettings};
use memscope_daemon::policy::Policy;
use memscope_daemon::probe::load::Kernel;
use memscope_daemon::serve::Serving;
use memscope_daemon::settings::{self, Settings, SettingsError, one_line};
use memscope_daemon::snapshots::{self, Limits};
use memscope_daemon::survive::{self, Beginning};
use memscope_daemon::tracer::{self, Order, TakenOver, Tracer, told_channel};
use memscope_daemon::triggers::Triggers;
use memscope_daemon::watchdog::{self, Pulse, Watched};
use memscope_daemon::{dump, earlier, import, panics, replay, sync};
use memscope_ledger::LedgerConfig;
use memscope_pages::Section;
use memscope_rpc::{
    Audit, Condition, Door, Doors, EventHub, ListenOptions, Listener, Metric, ServeOptions, Tell,
    Tls, serve,
};
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

fn main() -> std::process::ExitCode {
    // A reader is this program with one word, and nothing else of the daemon.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == memscope_memory::reader::ARGUMENT)
    {
        return memscope_memory::reader::serve(&memscope_daemon::works::ALL);
    }
    if let Some(ended) = memscope_pages::asked(Config::command, Section::Daemons) {
        return ended;
    }
    let Settings { config, file } = match Settings::read(std::env::args_os()) {
        Ok(settings) => settings,
        // Help and version are told by the same way, and go to standard output.
        Err(SettingsError::CommandLine(error)) => error.exit(),
        Err(error) => {
            eprintln!("memscoped: {}", memscope_daemon::error_chain(&error));
            return std::process::ExitCode::from(WRONG_SETTINGS);
        }
    };
    panics::end_with_any_thread();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    tracing_subscriber::registry()
        .with(lines)
        .with(log_filter(&config.log))
        .init();
    if config.check_config {
        return check(&config, file);
    }
    if let Some((path, count)) = &file {
        tracing::info!(path = %path.display(), settings = count, "the configuration was read");
    }
    match run(&config) {
        Ok(Ending::Stop) => std::process::ExitCode::SUCCESS,
        Ok(Ending::HandOver) => std::process::ExitCode::from(HANDED_OVER),
        Err(error) => {
            eprintln!("memscoped: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Exit code where the command line or the configuration file is wrong, as clap has it.
const WRONG_SETTINGS: u8 = 2;

/// Says whether the settings can be used.
fn check(config: &Config, file: Option<(PathBuf, usize)>) -> std::process::ExitCode {
    if let Err(error) = usable(config) {
        eprintln!("memscoped: {error:#}");
        return std::process::ExitCode::from(WRONG_SETTINGS);
    }
    match file {
        Some((path, count)) => {
            let mut parts = vec![counted(count, "setting", "settings")];
            parts.extend((!config.policy.entries.is_empty()).then(|| entries(&config.policy)));
            println!("{}: {}, no mistake", path.display(), parts.join(", "));
        }
        None => println!(
            "no configuration file is read ({} is not there, or none is wanted)",
            settings::USUAL
        ),
    }
    std::process::ExitCode::SUCCESS
}

/// Whether a start with these settings would be refused. What is in them was checked when they were read; here it is looked whether the
/// addresses and the files that they name are what they should be. A port that is in use is no mistake: the memscoped that a reload ends has it.
fn usable(config: &Config) -> Result<()> {
    ListenOptions::new(&config.socket).check()?;
    let mut taken = Vec::new();
    if let Some(address) = config.metrics {
        reachable(config).permits(address)?;
        taken.push(address);
    }
    if let Some(files) = config.tls_files() {
        Tls::check(&files, &warner(&Messages::default()))?;
        for listen in &config.listen {
            let mut found = Door::addresses(listen)?.into_iter();
            let free = found.find(|address| !taken.iter().any(|other| clash(*address, *other)));
            let Some(free) = free else {
                bail!(
                    "the port of {listen} is taken already by another setting of `listen` or by `metrics`"
                );
            };
            taken.push(free);
        }
    }
    config.otlp().map(OtlpSettings::load).transpose()?;
    Ok(())
}

/// Whether nobody can listen at both addresses. `[::]` is all addresses, also those of IPv4.
fn clash(one: std::net::SocketAddr, other: std::net::SocketAddr) -> bool {
    let is_all = |all: std::net::IpAddr, of: std::net::IpAddr| {
        all.is_unspecified() && (all.is_ipv6() || of.is_ipv4())
    };
    let (a, b) = (one.ip(), other.ip());
    one.port() == other.port() && one.port() != 0 && (a == b || is_all(a, b) || is_all(b, a))
}

fn counted(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

/// How many entries a policy has, in words.
fn entries(policy: &Policy) -> String {
    counted(
        policy.entries.len(),
        "entry [[attach]]",
        "entries [[attach]]",
    )
}

/// Makes the filter of the log. A bare level applies to memscope's own crates only; words with targets are used as
/// they are.
fn log_filter(words: &str) -> Targets {
    let own = [
        "memscoped",
        "memscope_daemon",
        "memscope_rpc",
        "memscope_site",
        "memscope_log",
    ];
    let words = if words.contains(['=', ',']) {
        words.to_owned()
    } else {
        let each: Vec<String> = own
            .iter()
            .map(|crate_name| format!("{crate_name}={words}"))
            .collect();
        format!("warn,{}", each.join(","))
    };
    words
        .parse()
        .unwrap_or_else(|_| Targets::new().with_default(Level::INFO))
}

/// Makes the C library keep two heaps. By default it makes one for each thread that answers, and what a large answer
/// leaves in one of them cannot be used by another thread (docs/evidence/soak.md).
fn keep_few_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a parameter of the C library, before there are other threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Files that may be open: as many as the unit asks systemd for.
const FILES: u64 = 65_536;

/// Raises the limit of open files as far as may be. A shell gives 1,024, which the probes, connections and files of code of a few
/// processes use up, and the files of an export or of a long recording.
fn raise_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(FILES);
    if limit.current.is_some_and(|now| now < most) {
        limit.current = Some(most);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit of open files could not be raised");
        }
    }
}

fn run(config: &Config) -> Result<Ending> {
    keep_few_heaps();
    raise_files();
    if let (Some(file), Some(output)) = (&config.import, &config.output) {
        let made = import::import(file, output)?;
        println!("{}", serde_json::to_string(&made)?);
        return Ok(Ending::Stop);
    }
    if let (Some(format), Some(recording), Some(output)) =
        (config.dump, &config.replay, &config.output)
    {
        let format = match format {
            DumpFormat::Csv => memscope_dump::Format::Csv,
            DumpFormat::Db => memscope_dump::Format::Db,
        };
        let made = dump::dump(&earlier::resolve(recording), format, output, config.pid)?;
        println!("{}", serde_json::to_string(&made)?);
        return Ok(Ending::Stop);
    }
    if config.earlier {
        let found = earlier::earlier(&config.state_dir, &ledger_config(config))?;
        println!("{}", serde_json::to_string(&found)?);
        return Ok(Ending::Stop);
    }
    if config.cleanup {
        println!("{}", survive::clean_up(config)?);
        return Ok(Ending::Stop);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name(panics::ANSWERS)
        .enable_all()
        .build()
        .context("the runtime could not be started")?;
    match &config.replay {
        Some(path) => runtime.block_on(serve_recording(config, path))?,
        None => return runtime.block_on(serve_live(config)),
    }
    Ok(Ending::Stop)
}

fn ledger_config(config: &Config) -> LedgerConfig {
    LedgerConfig {
        trace_entries: config.trace_entries,
        retention_ns: config.retention.saturating_mul(1_000_000_000),
        ..LedgerConfig::default()
    }
}

/// How the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Everything is detached.
    Stop,
    /// Probes go on collecting for the daemon that is started next.
    HandOver,
}

/// Exit code after a hand-over, at which the service manager starts the next daemon (EX_TEMPFAIL of sysexits.h).
const HANDED_OVER: u8 = 75;

/// Waits for SIGINT or SIGTERM, or for SIGUSR1, which hands over.
async fn told_to_stop() -> Result<Ending> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hand_over = signal(SignalKind::user_defined1())?;
    tokio::select! {
        _ = interrupt.recv() => tracing::info!("told to stop (SIGINT)"),
        _ = terminate.recv() => tracing::info!("told to stop (SIGTERM)"),
        _ = hand_over.recv() => {
            tracing::info!("told to hand over (SIGUSR1): probes go on collecting");
            return Ok(Ending::HandOver);
        }
    }
    Ok(Ending::Stop)
}

/// Waits until standard input has ended. A thread of its own reads it, because a process cannot end in order while its runtime reads.
async fn input_ended() -> Result<()> {
    let (ends, ended) = tokio::sync::oneshot::channel();
    let read = move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = ends.send(());
    };
    std::thread::Builder::new()
        .name("input".to_owned())
        .spawn(read)
        .context("the thread that reads standard input could not be started")?;
    ended.await?;
    tracing::info!("standard input has ended");
    Ok(())
}

/// Reads the policy again at each SIGHUP, and has it count. Other settings count only for the next daemon, since what they are about
/// (the ring, the ports, the memory) is there already.
fn read_policy_at_hangup(orders: Sender<Order>, messages: Messages) -> Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let read = tokio::task::spawn_blocking(|| Settings::read(std::env::args_os()));
            match read.await {
                Ok(Ok(settings)) => {
                    let text = format!(
                        "the configuration was read again: {} count from now on; other settings count after a hand-over \
                         (systemctl reload memscoped)",
                        entries(&settings.config.policy)
                    );
                    messages.log(Severity::Info, text);
                    if orders.send(Order::Policy(settings.config.policy)).is_err() {
                        return;
                    }
                }
                Ok(Err(error)) => messages.log(
                    Severity::Warning,
                    format!(
                        "the configuration was read again and is wrong, so the policy is as before: {}",
                        one_line(&memscope_daemon::error_chain(&error))
                    ),
                ),
                // The runtime ends.
                Err(_) => return,
            }
        }
    });
    Ok(())
}

/// Opens the TCP ports of the command line.
fn open_ports(config: &Config, messages: &Messages) -> Result<Vec<Door>> {
    let Some(files) = config.tls_files() else {
        return Ok(Vec::new());
    };
    let roles = config.tls_default_role.clone();
    let tls = Tls::load(files, roles, warner(messages))?;
    let mut ports = Vec::new();
    for address in &config.listen {
        let port = Door::open(address, &tls)?;
        tracing::info!("listening on {} with TLS", port.address());
        ports.push(port);
    }
    Ok(ports)
}

/// Says warnings in the log and in `status`.
fn warner(messages: &Messages) -> Tell {
    let messages = messages.clone();
    Arc::new(move |text| messages.log(Severity::Warning, text))
}

async fn serve_recording(config: &Config, path: &std::path::Path) -> Result<()> {
    // A snapshot of PyTorch's is made a recording first, beside the socket, and is removed with the folder at the end.
    let (made, path) = match import::is_pickle(path) {
        true => {
            let beside = config
                .socket
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = tempfile::Builder::new()
                .prefix(".memscope-snapshot-")
                .tempdir_in(beside.unwrap_or(std::path::Path::new(".")))
                .context("there is no room for what is read of the snapshot")?;
            let (recording, _) = import::of_snapshot(path, folder.path())?;
            (Some(folder), recording)
        }
        false => (None, earlier::resolve(path)),
    };
    let path = &path;
    let socket = Listener::bind(&ListenOptions::private(&config.socket))?;
    let messages = Messages::default();
    // Who comes from elsewhere is written down. At the Unix socket there is only the user who can read the file anyway.
    let is_open = !config.listen.is_empty();
    let audit = is_open.then(|| Audit::new(&config.state_dir, warner(&messages)));
    let replayed = match config.as_of {
        None => replay::replay(path, ledger_config(config))?,
        Some((event, boot_ns)) => {
            replay::replay_as_of(path, ledger_config(config), event, boot_ns)?
        }
    };
    let ports = open_ports(config, &messages)?;
    for warning in &replayed.warnings {
        messages.say(Severity::Warning, warning.clone());
    }
    tracing::info!(records = replayed.records, path = %path.display(), "replayed");
    let hub = Arc::new(EventHub::new());
    let (keeper, thread) = Keeper::for_replay(replayed.ledger, replayed.epoch, hub)
        .context("the keeper could not be started")?;
    let serving = Serving {
        keeper: keeper.clone(),
        tracer: None,
        started: Instant::now(),
        looks: memscope_daemon::looks::Looks::default(),
        messages,
        ledger: ledger_config(config),
        memory: None,
        replay: Some((path.to_owned(), replayed.end)),
        shelf: None,
        journal_limit: None,
        flushing: sync::Flushing::default(),
        pushed: None,
        courses: Arc::new(Courses::new(config.memory)),
    };
    let options = ServeOptions {
        // Whoever can read the file may see what is in it, no matter who owned the processes.
        access: memscope_rpc::Access::Everyone,
        audit,
        ..ServeOptions::default()
    };
    let doors = Doors { socket, ports };
    let ends_with_input = config.until_input_ends;
    let result = serve(doors, Arc::new(serving), options, async move {
        if ends_with_input {
            tokio::select! {
                _ = told_to_stop() => {}
                _ = input_ended() => {}
            }
        } else {
            let _ = told_to_stop().await;
        }
    })
    .await;
    let _ = keeper.send(Command::Stop);
    let _ = thread.join();
    drop(made);
    if let Some(folder) = config.socket.parent().filter(|_| ends_with_input) {
        // Whoever started this process may have removed it by now, or may have put something else there.
        let _ = std::fs::remove_dir(folder);
    }
    Ok(result?)
}

/// What takes snapshots when triggers fire; `None` if no snapshots are to be kept. Then the triggers of an earlier daemon stay where they
/// are, for a later one.
fn start_snapshots(
    config: &Config,
    messages: Messages,
    left: &mut LeftWatching,
    again: Again,
) -> Result<Option<Taking>> {
    if config.snapshots_keep == 0 {
        return Ok(None);
    }
    let oom = Condition {
        metric: Metric::Oom,
        device: None,
    };
    let mut conditions = config.snapshot_when.clone();
    if !config.no_oom_snapshots {
        conditions.insert(0, oom);
    }
    let pause_ns = config.snapshot_pause.saturating_mul(1_000_000_000);
    let (left, counts) = left.take_triggers();
    let writer = snapshots::Writer::start(
        snapshots::Config {
            dir: config.state_dir.join("snapshots"),
            format: config.snapshot_format,
            limits: Limits {
                count: config.snapshots_keep,
                bytes: config.snapshots_mib.saturating_mul(1 << 20),
            },
        },
        counts,
        Box::new(move |one| again.job(one)),
        messages,
    )
    .context("the thread that writes snapshots could not be started")?;
    Ok(Some(Taking {
        triggers: match left {
            Some(left) => Triggers::joined(left, &conditions, pause_ns),
            None => Triggers::new(&conditions, pause_ns),
        },
        writer,
        pause_ns,
    }))
}

/// From where metrics may be fetched.
fn reachable(config: &Config) -> Reachable {
    match config.metrics_for_everybody {
        true => Reachable::ByEverybody,
        false => Reachable::FromHere,
    }
}

/// Listens for those who fetch metrics.
async fn metrics_at(address: std::net::SocketAddr, reachable: Reachable) -> Result<Endpoint> {
    let endpoint = Endpoint::bind(address, reachable).await?;
    tracing::info!(address = %endpoint.address(), "metrics are at /metrics");
    Ok(endpoint)
}

async fn serve_live(config: &Config) -> Result<Ending> {
    // The programs in the kernel know processes by the machine's own ids. With others every probe would be in place, and see nothing.
    if memscope_site::process::in_initial_pid_namespace() == Some(false) {
        bail!(
            "memscoped was started in a pid namespace of its own, as in a container without the machine's, and would see no event \
             — start it on the machine itself, or in a container with --pid=host (hostPID: true)"
        );
    }
    // Before anything is loaded, written or taken over.
    memscope_daemon::probe::kernel::check()?;
    // Even if an upgrade has replaced the program on the disk, this one is started.
    memscope_memory::reader::use_readers("/proc/self/exe".into());
    let socket = Listener::bind(&ListenOptions::new(&config.socket))?;
    let metrics = match config.metrics {
        Some(address) => Some(metrics_at(address, reachable(config)).await?),
        None => None,
    };
    let messages = Messages::default();
    // Before anything is attached: what is wrong with a certificate must not leave probes behind.
    let ports = open_ports(config, &messages)?;
    let otlp = config.otlp().map(OtlpSettings::load).transpose()?;
    let pushed = otlp.as_ref().map(|_| Queues::new(&messages));
    let options = ServeOptions {
        access: match config.see_all_user {
            Some(user) => memscope_rpc::Access::Observed(user),
            None => memscope_rpc::Access::Owner,
        },
        audit: Some(Audit::new(&config.state_dir, warner(&messages))),
        ..ServeOptions::default()
    };
    // What is read of an earlier daemon's journal counts as the processes'.
    let memory = Memory::new(config.memory);
    let Beginning {
        epoch,
        journal,
        decoder,
        ledger,
        pins,
        left,
        keeping,
        words,
    } = survive::begin(config, ledger_config(config))?;
    for (severity, text) in words {
        messages.log(severity, text);
    }
    let ring_bytes = config.ring_mib << 20;
    let (mut kernel, ring) = match Kernel::load(config.links.method(), ring_bytes, pins) {
        Ok(loaded) => loaded,
        Err(error) => bail!(
            "{}\n  try: memscope-ctl doctor   (says what this machine lacks)",
            memscope_daemon::error_chain(&error)
        ),
    };
    kernel.user_mounts = config.probe_user_mounts;
    let method = kernel.method().name();
    if let Some(lack) = kernel.method().lacks() {
        messages.log(Severity::Warning, lack.to_owned());
    }
    let hub = Arc::new(EventHub::new());
    let (orders, order_queue) = std::sync::mpsc::channel();
    let told = told_channel(orders.clone())?;
    let mut folders = vec![config.state_dir.clone()];
    folders.extend(
        journal
            .as_ref()
            .map(|journal| journal.epoch_dir().to_owned()),
    );
    let flushing = sync::start(folders)
        .context("the thread that flushes the state directory could not be started")?;
    let watching = Watching::new(&config.state_dir, epoch);
    let resumed = left.as_ref().is_some_and(|left| left.resumed);
    let mut left_watching = watching.read(resumed).unwrap_or_else(|why| {
        messages.log(
            Severity::Warning,
            format!("triggers that were added before are not in force: {why}"),
        );
        LeftWatching::default()
    });
    let again = Again::new(
        left_watching.waiting(),
        (journal.as_ref(), &ledger),
        epoch,
        ledger_config(config),
        memory.clone(),
    );
    let taking = start_snapshots(config, messages.clone(), &mut left_watching, again)?;
    let shelf = taking.as_ref().map(|taking| taking.writer.shelf().clone());
    let (of_keeper, of_tracer) = (Pulse::default(), Pulse::default());
    let (keeper, keeper_thread) = Keeper::start(keeper::Start {
        journal,
        decoder,
        ledger,
        epoch,
        hub,
        tracer: Some(told),
        taking,
        watching: Some((watching, left_watching)),
        memory: Some(memory.clone()),
        pulse: of_keeper.clone(),
    })
    .context("the keeper could not be started")?;
    let since = keeping.since;
    let was_left = left.is_some();
    let start = tracer::Start {
        wake_bytes: u32::try_from(ring.capacity() / 4).unwrap_or(u32::MAX),
        kernel,
        ring,
        keeper: keeper.clone(),
        stack_budget: config.stack_budget.0,
        pod_logs: config.pod_logs.clone(),
        pod_volumes: config.pod_volumes.clone(),
        policy: config.policy.clone(),
        keeping,
        left,
        pulse: of_tracer.clone(),
    };
    let (tracer_thread, taken) = Tracer::start(start, (orders.clone(), order_queue))
        .context("the tracer could not be started")?;
    if was_left && taken != TakenOver::default() {
        messages.log(Severity::Info, taken.to_string());
    }
    let courses = Arc::new(Courses::new(memory.limit()));
    let spare: std::sync::Weak<dyn Spare> =
        Arc::downgrade(&(Arc::clone(&courses) as Arc<dyn Spare>));
    memory.spare(spare);
    let serving = Serving {
        keeper: keeper.clone(),
        tracer: Some(orders.clone()),
        started: Instant::now(),
        looks: memscope_daemon::looks::Looks::default(),
        messages: messages.clone(),
        ledger: ledger_config(config),
        memory: Some(memory),
        replay: None,
        shelf,
        journal_limit: (config.journal_mib > 0).then_some(config.journal_mib << 20),
        flushing,
        pushed: pushed.clone(),
        courses,
    };
    read_policy_at_hangup(orders.clone(), serving.messages.clone())?;
    let (wakes, goes_round) = (keeper.clone(), orders.clone());
    watchdog::start(vec![
        Watched::new("keeper", of_keeper, move || wakes.wake()),
        // If the tracer has ended, the daemon ends.
        Watched::new("tracer", of_tracer, move || {
            drop(goes_round.send(Order::GoRound))
        }),
    ])
    .context("the thread that feeds the watchdog could not be started")?;
    // What loading the programs and reading an earlier journal took, and is free.
    trim();
    tracing::info!(socket = %config.socket.display(), links = method, "ready");
    watchdog::ready();
    let serving = Arc::new(serving);
    let source = Arc::new(Source::new(Arc::clone(&serving), since));
    let metrics = metrics.map(|endpoint| tokio::spawn(endpoint.serve(Arc::clone(&source))));
    let pusher = otlp.zip(pushed).map(|(settings, queues)| {
        Pusher::start(settings, queues, source, (keeper.clone(), since), &messages)
    });
    let (ending, told) = tokio::sync::oneshot::channel();
    let result = serve(Doors { socket, ports }, serving, options, async {
        // A signal that cannot be waited for ends the daemon as well.
        let _ = ending.send(told_to_stop().await.unwrap_or(Ending::Stop));
    })
    .await;
    let ending = told.await.unwrap_or(Ending::Stop);
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    watchdog::stopping();
    if let Some(pusher) = pusher {
        pusher.finish().await;
    }
    stop(&orders, &keeper, ending).await;
    let _ = tracer_thread.join();
    let _ = keeper_thread.join();
    result?;
    Ok(ending)
}

/// Has the tracer end, and then lets the keeper write what is left.
async fn stop(orders: &Sender<Order>, keeper: &KeeperHandle, ending: Ending) {
    let (reply, done) = tokio::sync::oneshot::channel();
    let order = Order::Stop {
        hand_over: ending == Ending::HandOver,
        reply,
    };
    if orders.send(order).is_ok() {
        let _ = done.await;
    }
    let _ = keeper.send(Command::Stop);
}
