//! A dump of msMemScope's becomes a recording, and the recording says what the rows say.
#![allow(clippy::unwrap_used)]

use memscope_daemon::import::{ImportError, import, is_pickle};
use memscope_daemon::replay::{Replayed, replay};
use memscope_dump::{Attr, Device, DumpError, Format, Reader, Row, Writer};
use memscope_ledger::LedgerConfig;
use memscope_ledger::report::BlockState;
use memscope_proto::v1::{StatsRequest, StatsResponse};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn golden(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/dump/tests/golden");
    folder.join(name)
}

fn folded(dump: &Path, folder: &Path) -> Replayed {
    let out = folder.join(dump.file_stem().unwrap());
    let made = import(dump, &out).unwrap();
    assert_eq!(made.recording, out);
    let replayed = replay(&out, LedgerConfig::default()).unwrap();
    assert_eq!(replayed.warnings, Vec::<String>::new());
    replayed
}

fn stats(replayed: &Replayed, pid: u32) -> StatsResponse {
    let handle = replayed.ledger.find(pid).unwrap();
    let ledger = &replayed.ledger;
    ledger
        .ask(&[handle], replayed.end, &StatsRequest::default())
        .unwrap()
}

/// Live blocks by device and address, from the rows alone: in the order of their ids, what was allocated and not
/// freed. The golden dumps are made up and have blocks that overlap. With `exclusive`, a new block removes those that
/// it overlaps, as for memory that the driver hands out.
fn live(path: &Path, pools: &[&str], exclusive: bool) -> BTreeMap<(i32, u64), u64> {
    let mut rows: Vec<Row> = Reader::open(path).unwrap().map(Result::unwrap).collect();
    rows.sort_by_key(|row| row.id);
    let mut live = BTreeMap::new();
    for row in rows {
        let Device::Number(device) = row.device else {
            continue;
        };
        let place = (device as i32, row.ptr.unwrap_or(0));
        if !pools.contains(&row.event_type.as_str()) {
            continue;
        }
        match row.event.as_str() {
            "MALLOC" => {
                let size = row.size().unwrap();
                let over = |(device, ptr): (i32, u64), own: u64| {
                    device == place.0 && ptr < place.1 + size && place.1 < ptr + own
                };
                live.retain(|other, own| !exclusive || !over(*other, *own));
                live.insert(place, size);
            }
            "FREE" => drop(live.remove(&place)),
            _ => {}
        }
    }
    live
}

fn of(live: &BTreeMap<(i32, u64), u64>, device: i32) -> (u64, u64) {
    let own = live.iter().filter(|((own, _), _)| *own == device);
    own.fold((0, 0), |(count, bytes), (_, size)| {
        (count + 1, bytes + size)
    })
}

#[test]
fn golden_dumps_have_the_blocks_that_their_rows_leave() {
    let folder = tempfile::tempdir().unwrap();
    for (name, pid) in [
        ("offline_leaks_1.csv", 4242),
        ("offline_leaks_2.csv", 4242),
        ("inefficient_1.csv", 777),
    ] {
        let path = golden(name);
        let replayed = folded(&path, folder.path());
        let stats = stats(&replayed, pid);
        let (pool, driver) = (
            live(&path, &["PTA", "ATB"], false),
            live(&path, &["HAL"], true),
        );
        assert!(!pool.is_empty(), "{name}");
        for device in &stats.devices {
            let ordinal = device.device.unwrap();
            let (blocks, _) = of(&pool, ordinal);
            assert_eq!(device.live_blocks, blocks, "{name} device {ordinal}");
            let (count, bytes) = of(&driver, ordinal);
            assert_eq!(
                (device.driver.unwrap().count, device.driver.unwrap().bytes),
                (count, bytes),
                "{name} device {ordinal}"
            );
        }
        let devices: std::collections::BTreeSet<i32> =
            pool.keys().map(|(device, _)| *device).collect();
        assert_eq!(stats.devices.len(), devices.len());
        // Compare each block by its address and size.
        let handle = replayed.ledger.find(pid).unwrap();
        let snapshot = replayed.ledger.snapshot(handle, replayed.end).unwrap();
        let shown: BTreeMap<(i32, u64), u64> = snapshot
            .segments
            .iter()
            .flat_map(|segment| {
                segment
                    .blocks
                    .iter()
                    .map(move |block| (segment.device, block))
            })
            .filter(|(_, block)| block.state == BlockState::Active)
            .map(|(device, block)| ((device, block.addr), block.size))
            .collect();
        // In a picture no block overlaps another.
        let over = |(a, size): (&(i32, u64), &u64), (b, own): (&(i32, u64), &u64)| {
            a != b && a.0 == b.0 && a.1 < b.1 + own && b.1 < a.1 + size
        };
        let alone = pool
            .iter()
            .filter(|one| !pool.iter().any(|other| over(*one, other)));
        let alone: BTreeMap<(i32, u64), u64> = alone.map(|(place, size)| (*place, *size)).collect();
        assert!(!alone.is_empty(), "{name}");
        assert!(
            alone
                .iter()
                .all(|(place, size)| shown.get(place) == Some(size)),
            "{name}"
        );
        assert!(
            shown
                .iter()
                .all(|(place, size)| pool.get(place) == Some(size)),
            "{name}"
        );
        assert!(stats.coverage.iter().any(|note| note.code == "imported"));
    }
}

fn row(id: u64, event: &str, event_type: &str, ptr: u64, attr: Attr) -> Row {
    Row {
        id,
        event: event.into(),
        event_type: event_type.into(),
        timestamp: 1_000_000_000 * id,
        pid: Some(42),
        tid: Some(43),
        device: Device::Number(0),
        ptr: (ptr != 0).then_some(ptr),
        attr,
        ..Row::default()
    }
}

fn dump(folder: &Path, rows: &[Row], format: Format) -> PathBuf {
    let path = folder.join(format!("dump.{}", format.extension()));
    let mut writer = Writer::create(&path, format).unwrap();
    for row in rows {
        writer.write(row).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn sizes(size: u64, used: u64, total: u64) -> Attr {
    Attr::new()
        .with("size", size)
        .with("used", used)
        .with("total", total)
}

#[test]
fn totals_stacks_and_notes() {
    const MIB: u64 = 1 << 20;
    let rows = [
        row(1, "SYSTEM", "START_TRACE", 0, Attr::new()),
        row(
            2,
            "MALLOC",
            "HAL",
            0x10_0000,
            Attr::new().with("size", 20 * MIB),
        ),
        Row {
            python_stack: "train.py(18): step\nmain.py(3): <module>\n".into(),
            ..row(
                3,
                "MALLOC",
                "PTA",
                0x10_0000,
                sizes(2 * MIB, 2 * MIB, 20 * MIB),
            )
        },
        row(
            4,
            "MALLOC",
            "PTA",
            0x40_0000,
            sizes(MIB, 3 * MIB, 20 * MIB).with("shadow", "true"),
        ),
        row(5, "OP_LAUNCH", "ATEN_START", 0, Attr::new()),
        row(6, "KERNEL_LAUNCH", "KERNEL_LAUNCH", 0, Attr::new()),
        row(7, "FREE", "PTA", 0x40_0000, sizes(MIB, 2 * MIB, 20 * MIB)),
        row(
            8,
            "OOM_DETAIL",
            "OOM_TRIGGER",
            0,
            Attr::new().with("req_size", 7),
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    for format in [Format::Csv, Format::Db] {
        let path = dump(folder.path(), &rows, format);
        let out = folder.path().join(format.extension());
        let made = import(&path, &out).unwrap();
        assert_eq!((made.rows, made.rows_left_out, made.processes), (8, 1, 1));
        let replayed = replay(&out, LedgerConfig::default()).unwrap();
        let stats = stats(&replayed, 42);
        let device = &stats.devices[0];
        assert_eq!(device.allocated_bytes, Some(2 * MIB));
        assert_eq!(device.reserved_bytes, Some(20 * MIB));
        assert_eq!(device.peak_allocated_bytes, Some(3 * MIB));
        assert_eq!(device.driver.unwrap().bytes, 20 * MIB);
        assert_eq!((device.live_blocks, device.oom_count), (1, 1));
        let codes: Vec<&str> = stats
            .coverage
            .iter()
            .map(|note| note.code.as_str())
            .collect();
        for code in ["imported", "import_rows_left_out", "import_shadow"] {
            assert!(codes.contains(&code), "{code}: {codes:?}");
        }
        let left_out = stats
            .coverage
            .iter()
            .find(|note| note.code == "import_rows_left_out");
        assert!(left_out.unwrap().text.contains("1 OP_LAUNCH ATEN_START"));
        let handle = replayed.ledger.find(42).unwrap();
        let stacks = replayed.ledger.stacks(handle, replayed.end).unwrap();
        let frames: Vec<String> = stacks
            .rows
            .iter()
            .filter(|row| row.live.bytes == 2 * MIB)
            .flat_map(|row| row.stack.frames.iter())
            .map(|frame| format!("{}({}): {}", frame.file, frame.line, frame.name))
            .collect();
        assert_eq!(frames, ["train.py(18): step", "main.py(3): <module>"]);
        // The times are those of the rows.
        assert_eq!(replayed.end.unix_ns, 8_000_000_000);
    }
}

#[test]
fn what_cannot_be_imported_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let text = folder.path().join("text.csv");
    std::fs::write(&text, "a,b\n").unwrap();
    let error = import(&text, &out).unwrap_err();
    assert!(matches!(
        error,
        ImportError::Dump {
            source: DumpError::Header { .. }
        }
    ));
    let empty = dump(folder.path(), &[], Format::Csv);
    assert!(matches!(
        import(&empty, &out),
        Err(ImportError::NoRows { .. })
    ));
    assert!(!out.exists());
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("something"), "").unwrap();
    let good = golden("inefficient_1.csv");
    assert!(matches!(
        import(&good, &out),
        Err(ImportError::Taken { .. })
    ));
    assert!(matches!(
        import(&good, &text),
        Err(ImportError::Taken { .. })
    ));
    std::fs::remove_file(out.join("something")).unwrap();
    import(&good, &out).unwrap();
    let nowhere = Path::new("/nonexistent/out");
    assert!(matches!(
        import(&good, nowhere),
        Err(ImportError::Write { .. })
    ));
    let names: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 3, "no work is left behind: {names:?}");
}

/// A file of each process is open until the end, and a shell gives fewer than there are processes.
#[test]
fn more_processes_than_files_that_a_shell_lets_be_open() {
    const PROCESSES: u32 = 1100;
    let folder = tempfile::tempdir().unwrap();
    let of_one = |n: u32| Row {
        pid: Some(n),
        ..row(n.into(), "SYSTEM", "START_TRACE", 0, Attr::new())
    };
    let rows: Vec<Row> = (1..=PROCESSES).map(of_one).collect();
    let recording = folder.path().join("recording");
    let made = import(&dump(folder.path(), &rows, Format::Csv), &recording).unwrap();
    assert_eq!(made.processes, u64::from(PROCESSES));
    let output = folder.path().join("dumps");
    std::fs::create_dir(&output).unwrap();
    let ended = Command::new("sh")
        .args(["-c", "ulimit -Sn 1024; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_memscoped"))
        .args(["--dump", "csv", "--replay"])
        .arg(&recording)
        .arg("--output")
        .arg(&output)
        .env_remove("MEMSCOPE_LOG")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert_eq!(std::fs::read_dir(&output).unwrap().count(), 1100);
}

/// A pipe can be read once, and by a look whether it is a pickle already.
#[test]
fn a_pipe_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let out = folder.path().join("out");
    assert!(matches!(
        import(&pipe, &out),
        Err(ImportError::NotAFile { .. })
    ));
    assert!(!is_pickle(&pipe));
    let refused = replay(&pipe, LedgerConfig::default()).err().unwrap();
    assert!(refused.to_string().contains("neither a file nor"));
}
