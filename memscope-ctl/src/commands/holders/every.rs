//! `holders --every`: how the holders change.

use super::table::{self, container, rows, via};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::render::table::{Column, table as lines};
use crate::render::{coverage, name};
use crate::units::{bytes, grouped, moment, nanoseconds, plain, signed_bytes};
use memscope_proto::v1;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// What a row is recognised by in the next reading.
type Key<'a> = (&'a str, i32, i32);

/// Asking again and again.
pub(super) struct Again {
    pub interval: Duration,
    /// How often; for ever if it is not given.
    pub count: Option<u64>,
    /// Largest number of rows.
    pub limit: Option<u32>,
    pub json: bool,
}

impl Again {
    /// First prints all holders, then those that changed since the reading before.
    pub(super) async fn ask(
        &self,
        client: &Client,
        question: v1::HoldersRequest,
    ) -> Result<(), Failure> {
        let mut ticks = tokio::time::interval(self.interval);
        // A process with many objects is not read several times at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before: Option<v1::HoldersResponse> = None;
        for _ in 0..self.count.unwrap_or(u64::MAX) {
            ticks.tick().await;
            let answer = client
                .ask(question.clone(), async |mut rpc, request| {
                    rpc.holders(request).await
                })
                .await?;
            match &before {
                _ if self.json => output::json_line(&answer)?,
                None => output::text(&table::text(&answer, rows(self.limit)))?,
                Some(before) => {
                    output::text(&format!("\n{}", changes(before, &answer, self.limit)))?;
                }
            }
            before = Some(answer);
        }
        Ok(())
    }
}

fn key(holder: &v1::Holder) -> Key<'_> {
    (&holder.path, holder.via, holder.origin)
}

fn amount(holder: Option<&v1::Holder>) -> v1::Amount {
    holder.and_then(|holder| holder.blocks).unwrap_or_default()
}

const fn change(before: u64, now: u64) -> i64 {
    now.wrapping_sub(before).cast_signed()
}

/// `+3`, `-1`; nothing where nothing changed.
fn signed(change: i64) -> String {
    match change {
        0 => String::new(),
        change if change > 0 => format!("+{}", grouped(change.unsigned_abs())),
        change => format!("-{}", grouped(change.unsigned_abs())),
    }
}

/// A holder that changed: as it was, if it was there, and as it is, if it still is.
struct Changed<'a> {
    before: Option<&'a v1::Holder>,
    now: Option<&'a v1::Holder>,
}

impl<'a> Changed<'a> {
    fn bytes(&self) -> i64 {
        change(amount(self.before).bytes, amount(self.now).bytes)
    }

    fn blocks(&self) -> i64 {
        change(amount(self.before).count, amount(self.now).count)
    }

    fn length(&self) -> i64 {
        let length = |holder: Option<&v1::Holder>| holder.and_then(|holder| holder.length);
        match (length(self.before), length(self.now)) {
            (Some(before), Some(now)) => change(before, now),
            _ => 0,
        }
    }

    fn is_changed(&self) -> bool {
        self.before.is_none()
            || self.now.is_none()
            || self.bytes() != 0
            || self.blocks() != 0
            || self.length() != 0
    }

    fn holder(&self) -> Option<&'a v1::Holder> {
        self.now.or(self.before)
    }

    fn row(&self) -> Option<Vec<String>> {
        let holder = self.holder()?;
        let blocks = amount(self.now);
        let container = match (self.now, self.before) {
            (None, _) => "no longer".to_owned(),
            (Some(now), None) => match container(now) {
                text if text.is_empty() => "new".to_owned(),
                text => format!("{text}, new"),
            },
            (Some(now), Some(_)) => match signed(self.length()) {
                text if text.is_empty() => container(now),
                text => format!("{} ({text})", container(now)),
            },
        };
        let size = match self.bytes() {
            0 => String::new(),
            change => signed_bytes(change),
        };
        Some(vec![
            plain(&holder.path),
            via(holder.via()).to_owned(),
            grouped(blocks.count),
            signed(self.blocks()),
            bytes(blocks.bytes),
            size,
            container,
        ])
    }
}

/// What changed from one answer to the next, what grew most first.
fn changed<'a>(before: &'a v1::HoldersResponse, now: &'a v1::HoldersResponse) -> Vec<Changed<'a>> {
    let mut old: HashMap<Key<'_>, &v1::Holder> = HashMap::new();
    for holder in &before.holders {
        old.insert(key(holder), holder);
    }
    let mut all: Vec<Changed<'_>> = Vec::new();
    for holder in &now.holders {
        let before = old.remove(&key(holder));
        all.push(Changed {
            before,
            now: Some(holder),
        });
    }
    let gone = old.into_values().map(|holder| Changed {
        before: Some(holder),
        now: None,
    });
    all.extend(gone);
    all.retain(Changed::is_changed);
    all.sort_by_key(|changed| {
        let path = changed.holder().map_or("", |holder| holder.path.as_str());
        (-changed.bytes(), -changed.blocks(), -changed.length(), path)
    });
    all
}

fn changes(before: &v1::HoldersResponse, now: &v1::HoldersResponse, limit: Option<u32>) -> String {
    let process = now.process.as_ref();
    let mut text = format!(
        "{}  as of {}, {} after the reading before\n\n",
        process.map_or_else(|| format!("pid {}", now.pid), name),
        moment(now.as_of),
        nanoseconds(now.as_of.saturating_sub(before.as_of)),
    );
    let changed = changed(before, now);
    if changed.is_empty() {
        text.push_str("nothing changed\n");
    } else {
        let head = [
            Column::Left("HELD BY"),
            Column::Left("AS"),
            Column::Right("BLOCKS"),
            Column::Right("CHANGE"),
            Column::Right("SIZE"),
            Column::Right("CHANGE"),
            Column::Left("CONTAINER"),
        ];
        let rows_of = changed.iter().take(rows(limit)).filter_map(Changed::row);
        text.push_str(&lines(&head, rows_of.collect()));
        let more = changed.len().saturating_sub(rows(limit));
        if more > 0 {
            text.push_str(&format!(
                "and {} more (--limit 0 shows all)\n",
                grouped(more as u64)
            ));
        }
    }
    text.push_str(&table::sums(now));
    text.push_str(&coverage(&now.coverage));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(path: &str, count: u64, length: Option<u64>) -> v1::Holder {
        v1::Holder {
            path: path.to_owned(),
            blocks: Some(v1::Amount {
                count,
                bytes: count << 20,
            }),
            kind: length.map(|_| "list".to_owned()),
            length,
            origin: v1::HolderOrigin::Named as i32,
            via: v1::HolderVia::Tensor as i32,
            ..v1::Holder::default()
        }
    }

    fn answer(as_of: u64, holders: Vec<v1::Holder>) -> v1::HoldersResponse {
        v1::HoldersResponse {
            pid: 7,
            as_of,
            holders,
            ..v1::HoldersResponse::default()
        }
    }

    #[test]
    fn what_changed_is_shown_and_nothing_else() {
        let before = answer(
            1_000_000_000,
            vec![
                holder("__main__.kept[*]", 5, Some(5)),
                holder("__main__.same", 1, None),
                holder("__main__.gone", 2, None),
                holder("__main__.less[*]", 4, Some(9)),
            ],
        );
        let now = answer(
            3_500_000_000,
            vec![
                holder("__main__.kept[*]", 1_005, Some(1_006)),
                holder("__main__.same", 1, None),
                holder("__main__.less[*]", 1, Some(1)),
                holder("__main__.come[*]", 1, Some(1)),
            ],
        );
        let text = changes(&before, &now, None);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.contains("__main__"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                "__main__.kept[*] tensor 1,005 +1,000 1005.00 MiB +1000.00 MiB list of 1,006 (+1,001)",
                "__main__.come[*] tensor 1 +1 1.00 MiB +1.00 MiB list of 1, new",
                "__main__.gone tensor 0 -2 0 B -2.00 MiB no longer",
                "__main__.less[*] tensor 1 -3 1.00 MiB -3.00 MiB list of 1 (-8)",
            ]
            .map(|row| row.split_whitespace().collect::<Vec<_>>())
        );
        assert!(text.contains("2.5 s after the reading before"), "{text}");
        assert!(changes(&now, &now, None).contains("nothing changed"));
        assert!(changes(&before, &now, Some(1)).contains("and 3 more"));
    }
}
