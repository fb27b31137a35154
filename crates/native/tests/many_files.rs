//! A process that has more files of code than are kept open. It is a program of its own, so that no other test maps something meanwhile.
#![allow(clippy::unwrap_used)]

mod mapped;

use mapped::{length, library, load, reserved, unload};
use memscope_native::{ProcessCode, Shared};

#[test]
fn of_a_process_with_too_many_files_those_stay_open_that_are() {
    let library = library();
    let length = length(&library);
    let folder = tempfile::tempdir().unwrap();
    let place = |number: usize| {
        let path = folder.path().join(format!("{number}.so"));
        std::fs::write(&path, &library).unwrap();
        path
    };
    // Those that are mapped later lie below, as the kernel does it.
    let base = reserved(8 * length);
    let at = |number: usize| base + ((7 - number) * length) as u64;
    let is_open = |process: &mut ProcessCode, shared: &mut Shared, number: usize| {
        // Every address is known, with the name of its file, also where the file is not open.
        let (name, image, _) = process.place(at(number), shared).unwrap();
        assert!(name.ends_with(&format!("/{number}.so")), "{name}");
        image.is_some()
    };
    (0..4).for_each(|number| load(&place(number), at(number), length));
    let mut all = Shared::default();
    let mut process = ProcessCode::new(std::process::id());
    process.read(&mut all).unwrap();
    assert!((0..4).all(|number| is_open(&mut process, &mut all, number)));
    // The test's own program and libraries are open before.
    let most = all.files();
    drop((process, all));
    for mut shared in [Shared::of_at_most(most, 100), Shared::of_at_most(100, most)] {
        let mut process = ProcessCode::new(std::process::id());
        process.read(&mut shared).unwrap();
        (4..8).for_each(|number| load(&place(number), at(number), length));
        process.read(&mut shared).unwrap();
        let open: Vec<bool> = (0..8)
            .map(|number| is_open(&mut process, &mut shared, number))
            .collect();
        assert_eq!(open, [true, true, true, true, false, false, false, false]);
        assert_eq!(shared.files(), most);
        drop(process);
        shared.sweep();
        assert_eq!(shared.files(), 0);
        (4..8).for_each(|number| unload(at(number), length));
    }
}
