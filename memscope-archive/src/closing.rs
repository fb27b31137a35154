//! Closes a batch: its rows become files, and the files and the cursor go into the spool in one step.

use crate::batch::{self, Batch};
use crate::cursor::Cursor;
use crate::spool::{MAY_BE_DROPPED, NewFile, Spool, SpoolError};
use memscope_archive_rows::rows::Node;
use memscope_archive_rows::{FileError, Place, Row, TABLES, parquet};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Room for the rows that tell of what had to be dropped, in bytes.
const FOR_GAPS: u64 = 64 << 10;

/// Why a batch was not closed.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// Its rows are no file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The spool does not take it.
    #[error(transparent)]
    Spool(#[from] SpoolError),
}

impl CloseError {
    /// Whether there is no room for the batch although nothing else is in the spool, so that it does not help to wait.
    pub fn is_larger_than_the_spool(&self) -> bool {
        matches!(self, CloseError::Spool(SpoolError::Full { used: 0, .. }))
    }
}

/// The spool, which batches go into and which is uploaded from.
pub type Shared = Mutex<Spool<Cursor>>;

/// The spool for a short time.
pub fn lock(spool: &Shared) -> MutexGuard<'_, Spool<Cursor>> {
    spool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rows as files, one for each table, day and job. `name` is that of all files of this batch.
fn files(rows: Vec<Row>, cluster: &str, name: &str) -> Result<Vec<NewFile>, FileError> {
    let mut places: BTreeMap<Place, Vec<Row>> = BTreeMap::new();
    for row in rows {
        let place = Place {
            table: row.table.to_owned(),
            date: row.date.clone(),
            cluster: cluster.to_owned(),
            job: row.job.clone(),
        };
        places.entry(place).or_default().push(row);
    }
    let mut files = Vec::new();
    for (place, rows) in places {
        let Some(table) = TABLES.iter().find(|table| table.name == place.table) else {
            continue;
        };
        files.push(NewFile {
            object: place.path(name),
            table: place.table,
            rows: rows.len() as u64,
            content: parquet(table, &rows)?,
        });
    }
    Ok(files)
}

/// Closes a batch. Gives the number of rows.
///
/// # Errors
/// If it has no room, or the disk takes nothing: then nothing has changed.
pub fn close(
    spool: &Shared,
    node: &Node,
    cluster: &str,
    batch: &mut Batch,
) -> Result<usize, CloseError> {
    let (number, name) = {
        let spool = lock(spool);
        let number = spool.next_batch();
        let node = memscope_archive_rows::encoded(&node.name);
        (number, format!("{node}-{}-{number:010}", spool.name()))
    };
    let rows = std::mem::take(&mut batch.rows);
    let count = rows.len();
    let made = files(rows, cluster, &name)?;
    let needed: u64 = made.iter().map(|file| file.content.len() as u64).sum();
    let mut spool = lock(spool);
    let (all, own, dropped) = match spool.make_room(needed + FOR_GAPS) {
        Ok(dropped) => (made, Vec::new(), dropped),
        // Without all events there may be room: those of this batch go as well, after all that are older.
        Err(SpoolError::Full { .. }) => {
            let may_go = |file: &NewFile| file.table == MAY_BE_DROPPED;
            let (events, rest): (Vec<_>, Vec<_>) = made.into_iter().partition(may_go);
            let needed: u64 = rest.iter().map(|file| file.content.len() as u64).sum();
            let dropped = spool.make_room(needed + FOR_GAPS)?;
            (rest, events, dropped)
        }
        Err(error) => return Err(error.into()),
    };
    let mut all = all;
    let told: Vec<(String, u64)> = dropped
        .iter()
        .map(|file| (file.entry.object.clone(), file.entry.rows))
        .chain(own.into_iter().map(|file| (file.object, file.rows)))
        .collect();
    if !told.is_empty() {
        let lost: u64 = told.iter().map(|(_, rows)| rows).sum();
        tracing::warn!(
            files = told.len(),
            rows = lost,
            "the spool is full: the oldest events are dropped"
        );
        // They are files of their own, because those of the batch are made already.
        let gaps = batch::dropped(node, number, &told);
        all.extend(files(gaps, cluster, &format!("{name}-dropped"))?);
    }
    spool.commit(all, &batch.cursor, dropped)?;
    Ok(count)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::batch::Room;
    use crate::disk::Disk;
    use memscope_archive_rows::rows::{self, Origin};
    use memscope_proto::v1;

    /// Else the same rows would be asked for at each try, and never again would a batch be closed.
    #[test]
    fn rows_that_an_empty_spool_does_not_take_come_in_several_batches() {
        let folder = tempfile::tempdir().unwrap();
        let limit = 1 << 20;
        let (spool, cursor) = Spool::<Cursor>::open(folder.path(), limit, Disk::default()).unwrap();
        let spool = Mutex::new(spool);
        let node = Node::default();
        let origin = Origin {
            node: &node,
            batch: 1,
            epoch: 2,
        };
        // What does not become smaller when it is compressed.
        let mut number = 1_u32;
        let mut content = || {
            let bytes = (0..64 << 10).map(|_| {
                number ^= number << 13;
                number ^= number >> 17;
                number ^= number << 5;
                number.to_le_bytes()[0]
            });
            bytes.collect::<Vec<u8>>()
        };
        let kept = v1::KeptSnapshot::default();
        let all: Vec<Row> = (0..32)
            .map(|_| rows::snapshot(&origin, &kept, Some(content()), None))
            .collect();
        let mut room = Room::of(limit);
        let mut tries = Vec::new();
        loop {
            let rows: Vec<Row> = all.iter().take(room.rows).cloned().collect();
            let count = rows.len();
            let mut batch = Batch {
                rows,
                cursor: cursor.clone(),
                ..Batch::default()
            };
            tries.push(count);
            match close(&spool, &node, "none", &mut batch) {
                Ok(_) => break,
                Err(error) => {
                    assert!(error.is_larger_than_the_spool(), "{error}");
                    room = room.less(count).unwrap();
                }
            }
        }
        assert_eq!(tries, [32, 16, 8]);
        assert_eq!(lock(&spool).next_batch(), 2);
        // With something in the spool it helps to wait.
        let mut batch = Batch {
            rows: all.into_iter().take(12).collect(),
            ..Batch::default()
        };
        let error = close(&spool, &node, "none", &mut batch).unwrap_err();
        assert!(!error.is_larger_than_the_spool(), "{error}");
        assert!(Room { rows: 1, ..room }.less(5).is_none());
    }
}
