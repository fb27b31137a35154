//! A ledger that gets runtime and driver calls one by one.

use super::*;
use memscope_ledger::Ledger;
use memscope_ledger::event::*;
use memscope_proto::v1::DeviceStats;

/// A ledger, and the time of the next call that is applied to it.
pub struct Calls {
    pub ledger: Ledger,
    pub time: u64,
}

pub fn plain() -> Calls {
    Calls {
        ledger: attached_as(Level::Segments, true, SECOND, Backend::Unknown),
        time: SECOND,
    }
}

impl Calls {
    pub fn send(&mut self, op: CallOp, edit: impl FnOnce(&mut Call)) {
        let Body::Call(mut call) = call(&format!("{op:?}"), op, 0, 0) else {
            unreachable!()
        };
        call.device = Some(0);
        edit(&mut call);
        self.time += 1000;
        self.ledger.apply(&event(P, self.time, Body::Call(call)));
    }

    pub fn at(&mut self, op: CallOp, ptr: u64, size: u64) {
        self.send(op, |call| {
            call.ptr = ptr;
            call.size = size;
        });
    }

    pub fn handle(&mut self, op: CallOp, handle: u64, size: u64) {
        self.send(op, |call| {
            call.handle = handle;
            call.size = size;
        });
    }

    pub fn map(&mut self, ptr: u64, size: u64, handle: u64) {
        self.send(CallOp::Map, |call| {
            call.ptr = ptr;
            call.size = size;
            call.handle = handle;
        });
    }

    pub fn device(&self) -> DeviceStats {
        device(&self.ledger, 0)
    }
}
