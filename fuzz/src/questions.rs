//! Requests, as they come over the wire: decoded, checked, and answered from a ledger.

use crate::pieces::{Pieces, put};
use crate::{Target, ask, dump, pickle};
use memscope_ledger::{Asked, Ledger, Question};
use memscope_pickle::Pickle;
use memscope_proto::v1;
use prost::Message;
use std::cell::OnceCell;
use std::hint::black_box;

pub(crate) const TARGET: Target = Target {
    name: "questions",
    reads: "requests of gRPC: decoded, checked, answered from a ledger",
    read,
    seeds,
    held_mib: 64,
    held_per_byte: 1024,
    longest: 1 << 13,
};

thread_local! {
    static LEDGER: OnceCell<Ledger> = const { OnceCell::new() };
}

/// A ledger with several processes.
fn ledger() -> Ledger {
    let mut ledger = ask::ledger();
    let snapshots = pickle::FILES
        .iter()
        .filter_map(|file| Pickle::read(*file).ok());
    let mut all: Vec<_> = snapshots.map(|pickle| pickle::events(&pickle)).collect();
    all.extend(dump::some_events());
    for (number, events) in (0..).zip(all) {
        for mut event in events {
            if event.process.0 != 0 {
                event.process.0 += 16 * number;
            }
            ledger.apply(&event);
        }
    }
    ledger
}

fn ask_it<Q: Question + Message + Default>(ledger: &Ledger, bytes: &[u8], any: bool) -> Option<()>
where
    Asked: From<Q>,
{
    let question = Q::decode(bytes).ok()?;
    question.check().ok()?;
    let processes: Vec<_> = ledger.processes().iter().map(|one| one.handle).collect();
    let of = match Question::pid(&question) {
        // Any process may be meant, so that what is asked need not guess a pid.
        Some(pid) => {
            let found = ledger.find(pid);
            let one = found.or(processes
                .get(pid as usize % processes.len().max(1))
                .copied()
                .filter(|_| any));
            one.into_iter().collect()
        }
        None => processes,
    };
    black_box(Asked::from(question).answer(ledger, &of, ask::now(ledger)));
    Some(())
}

fn read(input: &[u8]) {
    LEDGER.with(|kept| {
        let ledger = kept.get_or_init(ledger);
        let mut pieces = Pieces(input);
        while let Some((kind, bytes)) = pieces.piece() {
            let any = kind < 128;
            let _ = match kind % 16 {
                0 => ask_it::<v1::StatsRequest>(ledger, bytes, any),
                1 => ask_it::<v1::LeaksRequest>(ledger, bytes, any),
                2 => ask_it::<v1::MarksRequest>(ledger, bytes, any),
                3 => ask_it::<v1::StepsRequest>(ledger, bytes, any),
                4 => ask_it::<v1::FluctuationRequest>(ledger, bytes, any),
                5 => ask_it::<v1::DevicesRequest>(ledger, bytes, any),
                6 => ask_it::<v1::ListRequest>(ledger, bytes, any),
                // Those that the ledger does not answer are decoded only.
                7 => v1::AttachRequest::decode(bytes).ok().map(drop),
                8 => v1::SnapshotRequest::decode(bytes).ok().map(drop),
                9 => v1::StacksRequest::decode(bytes).ok().map(drop),
                10 => v1::ExportRequest::decode(bytes).ok().map(drop),
                11 => v1::DiffRequest::decode(bytes).ok().map(drop),
                12 => v1::PoolRequest::decode(bytes).ok().map(drop),
                13 => v1::HoldersRequest::decode(bytes).ok().map(drop),
                14 => v1::OwnersRequest::decode(bytes).ok().map(drop),
                _ => v1::EventsRequest::decode(bytes).ok().map(drop),
            };
        }
    });
}

fn seeds() -> Vec<Vec<u8>> {
    let pid = 1;
    let asked = [
        (0, v1::StatsRequest { pid }.encode_to_vec()),
        (
            1,
            v1::LeaksRequest {
                pid,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            2,
            v1::MarksRequest {
                pid,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            3,
            v1::StepsRequest {
                pid,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            4,
            v1::FluctuationRequest {
                pid,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (5, v1::DevicesRequest::default().encode_to_vec()),
        (6, v1::ListRequest::default().encode_to_vec()),
        (
            9,
            v1::StacksRequest {
                pid,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            14,
            v1::OwnersRequest {
                pid,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
    ];
    let of = |(kind, bytes): (u8, Vec<u8>)| {
        let mut seed = Vec::new();
        put(kind, &bytes, &mut seed);
        seed
    };
    asked.map(of).to_vec()
}
