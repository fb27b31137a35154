//! Turns the ledger's events into the messages of the wire.

use crate::EventItem;
use memscope_ledger::event::{Body, Call, CallOp, PoolTrace, Region, RegionChange, StackRef};
use memscope_proto::v1::{self, event::Body as Wire};

pub(crate) fn event(item: &EventItem) -> v1::Event {
    let event = &item.event;
    v1::Event {
        id: Some(event.id.into()),
        time_boot_ns: event.time_ns,
        time_unix_ns: item.unix_ns,
        pid: item.pid,
        process: event.process.0,
        tid: event.tid,
        lost_before: event.lost_before,
        missed: item.missed,
        stack_id: match event.stack {
            StackRef::Id(id) => Some(id),
            _ => None,
        },
        no_stack: match event.stack {
            StackRef::Id(_) => None,
            StackRef::NotTaken => Some("not_taken".into()),
            StackRef::NoPython => Some("no_python".into()),
            StackRef::Unreadable => Some("unreadable".into()),
            StackRef::Busy => Some("busy".into()),
            StackRef::NotSampled => Some("not_sampled".into()),
        },
        body: Some(body(&event.body)),
    }
}

fn body(body: &Body) -> Wire {
    match body {
        Body::Attached(facts) => Wire::Attached((**facts).clone().into()),
        Body::Placed(placement) => Wire::Placed((**placement).clone().into()),
        Body::Detached => Wire::Detached(v1::Nothing {}),
        Body::Exited => Wire::Exited(v1::Nothing {}),
        Body::Replaced => Wire::Replaced(v1::Nothing {}),
        Body::Forked { child } => Wire::Forked(v1::Forked { child_pid: *child }),
        Body::Coverage(note) => Wire::Coverage(note.clone().into()),
        Body::Backend(backend) => Wire::Backend(backend.clone().into()),
        Body::Allocator(facts) => Wire::Allocator(v1::AllocatorFacts {
            devices: facts.devices,
            settings: facts.settings.as_ref().map(|s| s.text.clone()),
        }),
        Body::Clock { unix_ns } => Wire::Clock(v1::Clock { unix_ns: *unix_ns }),
        Body::DeviceTotal(total) => Wire::DeviceTotal(v1::DeviceTotal {
            device: total.device,
            total_bytes: total.total_bytes,
            free_bytes: total.free_bytes,
            reserved_bytes: total.reserved_bytes,
            process_bytes: total.process_bytes,
            hardware: total.hardware.clone().map(Into::into),
        }),
        Body::RunsOn(places) => Wire::RunsOn(v1::RunsOn {
            devices: places.devices.iter().cloned().map(Into::into).collect(),
        }),
        Body::Held(held) => Wire::Held(v1::HeldPart {
            device: held.device,
            at_boot_ns: held.at_ns,
            part: held.part,
            parts: held.parts,
            total_allocated_bytes: held.total_allocated,
            total_reserved_bytes: held.total_reserved,
            segments: held.segments.len() as u32,
            blocks: held.segments.iter().map(|s| s.blocks.len() as u32).sum(),
        }),
        Body::Stack(seen) => Wire::Stack(v1::StackSeen {
            id: seen.id,
            frames: seen.frames.len() as u32,
            truncated: seen.truncated,
            natives: seen.natives.len() as u32,
        }),
        Body::Native(name) => Wire::Native(v1::NativeName {
            address: name.address,
            module: name.module.to_string(),
            functions: name
                .functions
                .iter()
                .map(|function| function.name.to_string())
                .collect(),
        }),
        Body::Code(name) => Wire::Code(v1::CodeName {
            code: name.code,
            name: name.name.to_string(),
            file: name.file.to_string(),
            first_line: name.first_line,
        }),
        Body::CodeDied { code } => Wire::CodeDied(v1::CodeDied { code: *code }),
        Body::ReadingCost(cost) => Wire::ReadingCost((*cost).into()),
        Body::Lost => Wire::Lost(v1::Nothing {}),
        Body::Mark(mark) => Wire::Mark(v1::Mark {
            kind: mark.kind.into(),
            source: mark.source.into(),
            range: mark.range,
            name: mark.name.to_string(),
            cut: mark.cut,
        }),
        Body::Finding(finding) => Wire::Finding((&**finding).into()),
        Body::Shed(shed) => Wire::Shed(v1::Shed {
            part: shed.part.word().to_owned(),
            held_bytes: shed.held_bytes,
            limit_bytes: shed.limit_bytes,
        }),
        Body::Launches { count } => Wire::Launches(v1::Launches { count: *count }),
        Body::Launch(launch) => Wire::Launch(v1::Launch {
            function: launch.function.to_string(),
            kernel: launch.kernel.as_deref().map(str::to_owned),
        }),
        Body::Operator(one) => Wire::Operator(v1::Operator {
            name: one.name.to_string(),
            part: v1::OperatorPart::from(one.part).into(),
            memory: one
                .memory
                .iter()
                .map(|touched| v1::Touched {
                    address: touched.ptr,
                    writes: touched.writes,
                })
                .collect(),
            unknown: one.unknown,
        }),
        Body::Call(one) => Wire::Call(call(one)),
        Body::Report(report) => Wire::Report(v1::PoolReport {
            device: report.device,
            address: report.ptr,
            size_bytes: report.size,
            total_allocated_bytes: report.total_allocated,
            total_reserved_bytes: report.total_reserved,
        }),
        Body::Oom(oom) => Wire::Oom(v1::PoolOom {
            device: oom.device,
            size_bytes: oom.size,
            total_allocated_bytes: oom.total_allocated,
            total_reserved_bytes: oom.total_reserved,
        }),
        Body::Workspace(workspace) => Wire::Workspace(v1::Workspace {
            device: workspace.device,
            address: workspace.ptr,
            size_bytes: workspace.size,
        }),
        Body::Domain(domain) => Wire::Domain(v1::Domain {
            handle: domain.handle,
            name: domain.name.to_string(),
        }),
        Body::Region(one) => Wire::Region(region(one)),
        Body::Trace(entry) => Wire::Trace(trace(entry)),
    }
}

fn region(region: &Region) -> v1::Region {
    let mut wire = v1::Region {
        domain: region.domain,
        untold: region.untold,
        ..v1::Region::default()
    };
    let change = match region.change {
        RegionChange::HeapCame {
            device,
            ptr,
            size,
            handle,
        }
        | RegionChange::Came {
            device,
            ptr,
            size,
            handle,
            ..
        } => {
            (wire.device, wire.address, wire.size_bytes) = (device, Some(ptr), Some(size));
            wire.handle = (handle != 0).then_some(handle);
            match region.change {
                RegionChange::HeapCame { .. } => v1::RegionChange::HeapCame,
                _ => v1::RegionChange::Came,
            }
        }
        RegionChange::HeapWent { handle } => {
            wire.handle = Some(handle);
            v1::RegionChange::HeapWent
        }
        RegionChange::Went { ptr } => {
            wire.address = Some(ptr);
            v1::RegionChange::Went
        }
        RegionChange::WentByHandle { handle } => {
            wire.handle = Some(handle);
            v1::RegionChange::Went
        }
    };
    wire.change = change.into();
    wire
}

fn call(call: &Call) -> v1::Call {
    v1::Call {
        function: call.function.to_string(),
        layer: call.layer.into(),
        operation: operation(call.op).into(),
        status: call.status,
        device: call.device,
        address: call.ptr,
        size_bytes: call.size,
        stream: call.stream,
        handle: call.handle,
        extra: call.extra,
        nested: call.nested,
        duration_ns: call.duration_ns,
    }
}

fn trace(trace: &PoolTrace) -> v1::PoolTrace {
    v1::PoolTrace {
        action: trace.action.into(),
        allocator: trace.allocator,
        device: trace.device,
        address: trace.addr,
        size_bytes: trace.size,
        stream: trace.stream,
        block_bytes: trace.block_size,
        total_allocated_bytes: trace.total_allocated,
        total_reserved_bytes: trace.total_reserved,
        pool_first: trace.pool.map(|(first, _)| first),
        pool_second: trace.pool.map(|(_, second)| second),
    }
}

fn operation(op: CallOp) -> &'static str {
    match op {
        CallOp::Alloc => "alloc",
        CallOp::Free => "free",
        CallOp::AsyncAlloc => "async_alloc",
        CallOp::AsyncFree => "async_free",
        CallOp::ManagedAlloc => "managed_alloc",
        CallOp::HostAlloc => "host_alloc",
        CallOp::HostFree => "host_free",
        CallOp::HostRegister => "host_register",
        CallOp::HostUnregister => "host_unregister",
        CallOp::Reserve => "reserve",
        CallOp::ReserveFree => "reserve_free",
        CallOp::Create => "create",
        CallOp::Release => "release",
        CallOp::Map => "map",
        CallOp::Unmap => "unmap",
        CallOp::Retain => "retain",
        CallOp::Import => "import",
        CallOp::IpcOpen => "ipc_open",
        CallOp::IpcClose => "ipc_close",
        CallOp::MemInfo => "mem_info",
        CallOp::Reset => "reset",
        CallOp::ArrayAlloc => "array_alloc",
        CallOp::ArrayFree => "array_free",
    }
}
