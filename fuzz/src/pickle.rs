//! PyTorch's snapshots.

use crate::{Target, ask};
use memscope_ledger::event::Event;
use memscope_pickle::events::{About, import};
use memscope_pickle::{NotASnapshot, Pickle};

pub(crate) const TARGET: Target = Target {
    name: "pickle",
    reads: "PyTorch's snapshots: the pickle, its events, the ledger's answers",
    read,
    seeds,
    held_mib: 64,
    held_per_byte: 4096,
    longest: 1 << 16,
};

fn read(input: &[u8]) {
    let Ok(pickle) = Pickle::read(input) else {
        return;
    };
    ask::about(events(&pickle));
}

/// The events of a snapshot, as far as it has any.
pub(crate) fn events(pickle: &Pickle) -> Vec<Event> {
    let mut events = Vec::new();
    let about = About {
        name: "snapshot.pickle",
        written_ns: 1_700_000_000_000_000_000,
    };
    let _ = import::<NotASnapshot>(pickle, &about, &mut |event| {
        events.push(event);
        Ok(())
    });
    events
}

/// Snapshots as PyTorch wrote them.
pub(crate) const FILES: [&[u8]; 5] = [
    include_bytes!("../../memscope-ctl/tests/snapshots/segments-4.pickle"),
    include_bytes!("../../memscope-ctl/tests/snapshots/snapshot-2.pickle"),
    include_bytes!("../../memscope-ctl/tests/snapshots/snapshot-3.pickle"),
    include_bytes!("../../memscope-ctl/tests/snapshots/snapshot-4.pickle"),
    include_bytes!("../../memscope-ctl/tests/snapshots/snapshot-5.pickle"),
];

fn seeds() -> Vec<Vec<u8>> {
    FILES.map(<[u8]>::to_vec).to_vec()
}
