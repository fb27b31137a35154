//! Reads and writes files: the formats, and the errors for files that are no dumps.
#![allow(clippy::unwrap_used)]

use memscope_dump::{
    Attr, Device, DumpError, Format, Reader, Row, RowError, Settings, Tree, Writer,
};
use proptest::prelude::*;
use std::error::Error;
use std::path::Path;

const HEADER: &str = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)";

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn rows(path: &Path) -> Vec<Row> {
    Reader::open(path)
        .unwrap()
        .map(|row| Row {
            line: 0,
            ..row.unwrap()
        })
        .collect()
}

fn refusal(path: &Path) -> DumpError {
    match Reader::open(path) {
        Err(error) => error,
        Ok(mut reader) => reader.find_map(Result::err).unwrap(),
    }
}

fn whole(error: &DumpError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

fn malloc() -> Row {
    Row {
        id: 7,
        event: "MALLOC".into(),
        event_type: "PTA".into(),
        timestamp: 1_764_753_084_425_691_000,
        pid: Some(42),
        tid: Some(43),
        device: Device::Number(0),
        ptr: Some(0x12c0_4140_0000),
        attr: Attr::new().with("allocation_id", 4).with("size", 512),
        python_stack: "train.py(18): step\nmain.py(3): <module>\n".into(),
        ..Row::default()
    }
}

#[test]
fn a_line_is_written_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let mut writer = Writer::create(&path, Format::Csv).unwrap();
    writer.write(&malloc()).unwrap();
    writer
        .write(&Row {
            id: 8,
            event: "MSTX".into(),
            event_type: "Range_start".into(),
            name: Some("step start".into()),
            timestamp: 5,
            ..Row::default()
        })
        .unwrap();
    assert!(!path.exists(), "it comes whole");
    writer.finish().unwrap();
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        format!(
            "{HEADER}\n7,MALLOC,PTA,N/A,1764753084425691000,42,43,0,0x000012c041400000,\"{{allocation_id:4,size:512}}\",\
             \"train.py(18): step\nmain.py(3): <module>\n\",\n\
             8,MSTX,Range_start,\"step start\",5,N/A,N/A,N/A,N/A,,,\n"
        )
    );
}

#[test]
fn devices_are_not_replaced_and_links_are_kept() {
    for format in [Format::Csv, Format::Db] {
        for path in ["/dev/null", "/tmp"] {
            let error = Writer::create(Path::new(path), format).unwrap_err();
            assert!(matches!(error, DumpError::NotAFile { .. }), "{error:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link"), file(&folder, "target", ""));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        Writer::create(&link, format).unwrap().finish().unwrap();
        assert!(link.is_symlink());
        assert!(std::fs::metadata(&target).unwrap().len() > 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}

#[test]
fn a_table_is_written_as_msmemscope_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mut writer = Writer::create(&path, Format::Db).unwrap();
    writer.write(&malloc()).unwrap();
    writer.finish().unwrap();
    let connection = rusqlite::Connection::open(&path).unwrap();
    let (attr, ptr, kind): (String, String, String) = connection
        .query_row(
            "SELECT \"Attr\", \"Ptr\", typeof(\"Timestamp(ns)\") FROM memscope_dump",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .unwrap();
    assert_eq!(attr, r#"{"allocation_id":"4","size":"512"}"#);
    assert_eq!(
        (ptr.as_str(), kind.as_str()),
        ("0x000012c041400000", "integer")
    );
}

#[test]
fn the_older_generation_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "{HEADER}\r\n\
         1,SYSTEM,acl init,N/A,1746006014162153,25,25,N/A,N/A,,,\r\n\
         3,FREE,PTA,N/A,1746006024182194,25,25,1,206,\"{{addr:206,size:-512,owner:,total:2097152,used:3537408}}\",,\r\n\
         2,MALLOC,HAL,N/A,1746006014361575,25,25,host,20615843020800,\"{{addr:20615843020800,size:16384,owner:,MID:7}}\",,\r\n"
    );
    let read = rows(&file(&folder, "old.csv", &text));
    assert!(read.iter().all(Row::is_older));
    assert_eq!(read[1].size(), Some(512));
    assert_eq!(read[2].ptr, Some(20_615_843_020_800));
    assert_eq!(read[2].device, Device::Host);
    assert_eq!(read[2].size(), Some(16384));
    assert!(!malloc().is_older());
}

#[test]
fn what_is_wrong_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let line = |row: &str| format!("{HEADER}\n1,A,B,N/A,1,1,1,0,N/A,,,\n{row}\n");
    let cases = [
        ("", "is empty"),
        ("FuncInfo,StartTime(ns)\n", "does not begin with the header"),
        (&HEADER.replace(",Ptr", ""), "Ptr missing, none unknown"),
        (&HEADER.replace("Ptr", "Address"), "Address"),
        (
            &line("x,A,B,N/A,1,1,1,0,N/A,,,"),
            "line 3 (ID x) is wrong: ID is \"x\"",
        ),
        (
            &line("5,A,B,N/A,-1,1,1,0,N/A,,,"),
            "(ID 5) is wrong: Timestamp(ns) is \"-1\"",
        ),
        (
            &line("5,A,B,N/A,1,1,1,zero,N/A,,,"),
            "Device Id is \"zero\"",
        ),
        (&line("5,A,B,N/A,1,1,1,0,0xg,,,"), "Ptr is \"0xg\""),
        (&line("5,A,B,N/A,1,1,1,0,N/A,size,,"), "Attr is \"size\""),
        (&line("5,A,B"), "it has 3 cells, expected are 12"),
    ];
    for (text, expected) in cases {
        let error = refusal(&file(&folder, "bad.csv", text));
        assert!(
            whole(&error).contains(expected) && whole(&error).contains("bad.csv"),
            "{}\nlacks {expected}",
            whole(&error)
        );
        assert!(!error.hint().is_empty());
    }
    assert!(matches!(
        refusal(folder.path()),
        DumpError::NotAFile {
            found: "a folder",
            ..
        }
    ));
    let long = Path::new("/").join("x/".repeat(2100));
    assert!(matches!(refusal(&long), DumpError::PathTooLong { length } if length > 4096));
    let absent = folder.path().join("absent.csv");
    assert!(matches!(refusal(&absent), DumpError::Read { .. }));
}

#[test]
fn a_quote_left_open_does_not_take_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{HEADER}\n1,A,\"B{}", "x\n".repeat(20 << 20));
    let error = refusal(&file(&folder, "open.csv", &text));
    let endless = matches!(
        &error,
        DumpError::Row {
            source: RowError::Endless { .. },
            line: 2,
            ..
        }
    );
    assert!(endless, "{error:?}");
}

#[test]
fn databases_of_other_versions_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str, batch: &str| {
        let path = folder.path().join(name);
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch(batch).unwrap();
        path
    };
    let error = refusal(&make(
        "none.db",
        "CREATE TABLE other (a); CREATE TABLE more (b)",
    ));
    assert!(
        whole(&error)
            .contains("memscope_dump (or leaks_dump, of older versions); found are more, other")
    );
    let error = refusal(&make(
        "columns.db",
        "CREATE TABLE memscope_dump (\"ID\" INTEGER, \"Kind\" TEXT)",
    ));
    assert!(
        whole(&error).contains("memscope_dump has the columns ID, Kind; expected are ID, Event,")
    );
    let columns = HEADER
        .split(',')
        .map(|c| format!("\"{c}\" TEXT"))
        .collect::<Vec<_>>()
        .join(",");
    let old = format!(
        "CREATE TABLE leaks_dump ({columns}); INSERT INTO leaks_dump VALUES \
         ('3','MSTX','Mark','\"a mark\"','9','1','1','0','N/A','','',''), ('x','','','','','','','','','','','')"
    );
    let path = make("old.db", &old);
    let mut reader = Reader::open(&path).unwrap();
    assert_eq!(
        reader.next().unwrap().unwrap().name.as_deref(),
        Some("a mark")
    );
    let wrong = whole(&reader.next().unwrap().unwrap_err());
    assert!(wrong.contains("line 2 (ID x)"), "{wrong}");
    assert!(reader.next().is_none(), "nothing comes behind an error");
    let error = refusal(&file(&folder, "text.db", HEADER));
    assert!(matches!(error, DumpError::NotSqlite { .. }));
    // A file with SQLite's first bytes and nothing behind them.
    let error = refusal(&file(&folder, "cut.db", "SQLite format 3\0"));
    assert!(
        whole(&error).contains("cut.db: SQLite cannot"),
        "{}",
        whole(&error)
    );
}

#[test]
fn the_tree_has_a_folder_for_each_device() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        pid: 42,
        begun_unix_ns: 1_746_006_014_000_000_000,
        format: Format::Csv,
        config: vec![("level".into(), "op".into())],
    };
    // One that fails leaves nothing, and one that is killed nothing after the next one.
    let left = || std::fs::read_dir(folder.path()).unwrap().count();
    drop(Tree::create(folder.path(), &settings).unwrap());
    assert_eq!(left(), 0);
    std::mem::forget(Tree::create(folder.path(), &settings).unwrap());
    drop(Tree::create(folder.path(), &settings).unwrap());
    assert_eq!(left(), 0);
    let mut tree = Tree::create(folder.path(), &settings).unwrap();
    for device in [Device::Number(1), Device::Cpu, Device::None] {
        tree.write(&Row { device, ..malloc() }).unwrap();
    }
    let root = tree.finish().unwrap();
    assert_eq!(
        root.file_name().unwrap(),
        "msmemscope_42_20250430094014_ascend"
    );
    for device in ["0", "1", "cpu"] {
        let dump = root.join(format!(
            "device_{device}/dump/memscope_dump_20250430094014.csv"
        ));
        assert_eq!(rows(&dump).len(), 1, "{device}");
    }
    let config = std::fs::read_to_string(root.join("config.json")).unwrap();
    assert_eq!(config, "{\"format\":\"csv\",\"level\":\"op\"}\n");
    assert!(matches!(
        Tree::create(folder.path(), &settings),
        Err(DumpError::Exists { .. })
    ));
}

fn any_row() -> impl Strategy<Value = Row> {
    let text = "[ -~äé\n,\"]{0,20}";
    let device = prop_oneof![
        Just(Device::None),
        Just(Device::Cpu),
        Just(Device::Host),
        any::<u32>().prop_map(Device::Number)
    ];
    let attr =
        proptest::collection::vec(("[a-z_]{1,8}", "[a-zA-Z0-9@./]{0,9}(,[A-Z]{1,3})?"), 0..4);
    let kind = prop_oneof![Just("MSTX"), Just("MALLOC"), Just("SYSTEM")];
    (
        (
            0..=i64::MAX as u64,
            kind,
            "[A-Za-z_ ]{0,9}[a-z]",
            proptest::option::of("[ -~,\"]{0,12}x"),
        ),
        (
            0..=i64::MAX as u64,
            any::<Option<u32>>(),
            any::<Option<u32>>(),
            device,
        ),
        (any::<Option<u64>>(), attr, text, text),
    )
        .prop_map(
            |(
                (id, event, event_type, name),
                (timestamp, pid, tid, device),
                (ptr, pairs, python, c),
            )| {
                let attr = pairs
                    .iter()
                    .fold(Attr::new(), |attr, (name, value)| attr.with(name, value));
                Row {
                    id,
                    event: event.into(),
                    event_type: event_type.trim().into(),
                    name,
                    timestamp,
                    pid,
                    tid,
                    device,
                    ptr,
                    attr,
                    python_stack: python,
                    c_stack: c,
                    line: 0,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_written_is_read(written in proptest::collection::vec(any_row(), 0..20)) {
        let folder = tempfile::tempdir().unwrap();
        for format in [Format::Csv, Format::Db] {
            let path = folder.path().join("dump").with_extension(format.extension());
            let mut writer = Writer::create(&path, format).unwrap();
            for row in &written {
                writer.write(row).unwrap();
            }
            writer.finish().unwrap();
            prop_assert_eq!(&rows(&path), &written);
        }
    }

    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..200) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dump.csv");
        let mut text = format!("{HEADER}\n1,A,B,N/A,1,1,1,0,N/A,\"{{a:b}}\",,\n").into_bytes();
        text.truncate(text.len().saturating_sub(cut));
        text.extend(bytes);
        std::fs::write(&path, text).unwrap();
        if let Ok(reader) = Reader::open(&path) {
            for row in reader {
                let _ = row;
            }
        }
    }
}

/// SQLite believes a file about the order of its rows. If the last row of the first page that is read has a small row id, the
/// reading must not begin again there: it would never end.
#[test]
fn a_database_whose_row_ids_do_not_ascend_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.db");
    let mut writer = Writer::create(&path, Format::Db).unwrap();
    for id in 1..=2100u64 {
        let name = if id == 2048 {
            "the last one of a page"
        } else {
            "one"
        };
        writer
            .write(&Row {
                id,
                name: Some(name.into()),
                ..malloc()
            })
            .unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(rows(&path).len(), 2100);
    let mut bytes = std::fs::read(&path).unwrap();
    let name = bytes
        .windows(22)
        .position(|text| text == b"the last one of a page");
    let before = &bytes[..name.unwrap()];
    // Before the values of a row is its header, and before that its row id: 2048, in two bytes of seven bits.
    let id = before
        .windows(2)
        .rposition(|two| two == [0x90, 0x00])
        .unwrap();
    assert!(before.len() - id < 60);
    bytes[id] = 0x80;
    std::fs::write(&path, &bytes).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let read = reader.by_ref().take(5000).filter(Result::is_ok).count();
    assert!(read < 2100, "{read} rows");
    assert!(whole(&refusal(&path)).contains("its row ids do not ascend"));
}

/// Whoever may not read a file may not read what comes in its place, and a link stays one.
#[test]
fn what_is_replaced_keeps_its_mode_and_its_links() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    for format in [Format::Csv, Format::Db] {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &Path| {
            let mut writer = Writer::create(path, format).unwrap();
            writer.write(&malloc()).unwrap();
            writer.finish().unwrap();
        };
        let old = file(&folder, "old", "old");
        std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o600)).unwrap();
        write(&old);
        let mode = std::fs::metadata(&old).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(std::fs::metadata(&old).unwrap().len() > 3);

        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        symlink("second", &first).unwrap();
        symlink("later", &second).unwrap();
        write(&first);
        assert!(std::fs::symlink_metadata(&first).unwrap().is_symlink());
        assert!(std::fs::symlink_metadata(&second).unwrap().is_symlink());
        assert!(folder.path().join("later").is_file());
    }
}
