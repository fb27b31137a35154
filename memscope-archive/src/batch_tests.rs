//! What a batch makes of what was heard.
#![allow(clippy::unwrap_used)]

use super::*;
use memscope_archive_rows::Cell;

fn event(epoch: u64, body: Body) -> v1::Event {
    v1::Event {
        id: Some(v1::EventId { epoch, sequence: 7 }),
        process: 1,
        pid: Some(10),
        body: Some(body),
        ..v1::Event::default()
    }
}

fn heard(event: v1::Event) -> ear::Heard {
    ear::Heard {
        sounds: vec![Sound::Event(Box::new(event))],
        ..ear::Heard::default()
    }
}

/// The daemon was stopped and started since the events were heard: process 1 of the new one is another process.
#[tokio::test]
async fn what_an_earlier_daemon_told_is_not_of_the_new_ones_processes() {
    let daemon = Daemon::that_is_not_there();
    let node = Node::default();
    let listed = v1::Process {
        handle: 1,
        facts: Some(v1::ProcessFacts {
            pid: 20,
            ..v1::ProcessFacts::default()
        }),
        ..v1::Process::default()
    };
    let finding = v1::Finding {
        number: 5,
        ..v1::Finding::default()
    };
    for (epoch, pid) in [(1, 10), (2, 20)] {
        let mut maker = Maker {
            daemon: &daemon,
            node: &node,
            number: 1,
            epoch: 2,
            now_ns: 1,
            processes: BTreeMap::from([(1, listed.clone())]),
            batch: Batch::default(),
        };
        maker.alerts(&heard(event(epoch, Body::Finding(finding.clone()))));
        maker.events(&heard(event(epoch, Body::Forked(v1::Forked::default()))));
        let rows = &maker.batch.rows;
        assert_eq!(rows.len(), 2, "{rows:?}");
        for row in rows {
            assert!(row.cells.contains(&Cell::Int(Some(pid))), "{pid}: {row:?}");
            let other = Cell::Int(Some(30 - pid));
            assert!(!row.cells.contains(&other), "{pid}: {row:?}");
        }
        let seen = &maker.batch.cursor.processes;
        let standing: Vec<_> = seen
            .iter()
            .filter(|(_, seen)| !seen.standing.is_empty())
            .collect();
        assert_eq!(standing.len(), 1);
        assert_eq!(*standing[0].0, key(epoch, 1));
        // No finding of the new process is over, because it had none.
        maker.over(&BTreeMap::new());
        let over = maker.batch.rows.len() - 2;
        assert_eq!(over, usize::from(epoch == 2));
    }
}
