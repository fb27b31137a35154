//! The simulated NPU under real torch_npu: what the tests of NPUs stand on. (Its own tests are in
//! `tests/simcann`.)

#![allow(clippy::unwrap_used, clippy::expect_used)]

use memscope_tests::{Device, MIB, NpuFlag, NpuLog, Torch, number, scratch};

/// The modules that own memory in CANN.
const RUNTIME: u8 = 7;
const APP: u8 = 33;

#[test]
fn the_log_has_what_torch_npu_holds_and_what_the_runtime_holds_beside_it() {
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let variables = [("SIMCANN_LOG", log.path()), ("SIMCANN_DEVICES", "2")];
    let mut torch = Torch::start_on(Device::Npu, &variables);
    torch.ask("train 3");
    torch.ask("oom");
    let told = torch.ask(&format!("alloc here {} 1", 30 * MIB));
    let held = log.held(torch.pid());
    let reserved = |device: usize| number(&told["devices"][device]["reserved"]);
    // Its allocator adds 32 bytes to what is asked for, and takes large segments in units of 2 MiB.
    assert!(reserved(0) > 0 && reserved(1) == 32 * MIB, "{told}");
    assert_eq!(held.bytes_of(APP), reserved(0) + reserved(1), "{held:?}");
    assert_eq!(
        held.device().1,
        held.bytes_of(APP) + held.bytes_of(RUNTIME),
        "{held:?}"
    );
    assert!(held.devices[&1].1 > reserved(1), "{held:?}");
    assert_eq!(held.physical, (0, 0));

    let refused = log.calls(torch.pid());
    let refused = refused
        .iter()
        .find(|call| call["function"] == "halMemAlloc" && call["result"] == 6)
        .expect("an allocation that the HAL refused");
    let flag = NpuFlag::of(refused);
    assert!(flag.huge && !flag.host && flag.module == APP, "{flag:?}");
    torch.finish();
}

#[test]
fn expandable_segments_are_physical_memory() {
    let folder = scratch();
    let log = NpuLog::inside(folder.path());
    let mut torch = Torch::start_on(
        Device::Npu,
        &[
            ("SIMCANN_LOG", log.path()),
            ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True"),
        ],
    );
    torch.ask("train 3");
    torch.ask(&format!("alloc large {}", 50 * MIB));
    torch.ask("free large");
    let told = torch.ask("empty_cache");
    let held = log.held(torch.pid());
    let reserved = number(&told["devices"][0]["reserved"]);
    assert!(reserved > 0 && reserved < 50 * MIB, "{told}");
    assert_eq!(held.physical.1, reserved, "{held:?}");
    assert!(held.reserved.1 > reserved, "{held:?}");
    assert_eq!(
        held.device().1 - held.physical.1,
        held.bytes_of(RUNTIME),
        "{held:?}"
    );
    torch.finish();
}
