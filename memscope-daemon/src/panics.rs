//! What happens when a thread panics.
//!
//! The keeper, the tracer and those that work for them own what the daemon is for: without one of them it would go on as a
//! shell that answers nothing, with its probes in the traced programs and a ring that fills. So the whole process ends, at
//! once: the kernel takes probes and links away with its descriptors, and the service manager starts it again. A panic in
//! an answer is that answer's error and nobody else's.

use std::panic::PanicHookInfo;

/// Name of the threads that answer clients.
pub const ANSWERS: &str = "answers";
/// What the daemon ends with: as a Rust program whose main thread panics.
pub const EXIT_CODE: i32 = 101;

/// From now on the process ends when a thread panics, but for those that answer.
pub fn end_with_any_thread() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        if name == ANSWERS {
            return;
        }
        eprintln!("{}", last_words(name, info));
        // Not `exit`: it would run what other threads may still be using.
        // SAFETY: ends the process; no memory is touched.
        unsafe { libc::_exit(EXIT_CODE) };
    }));
}

fn last_words(thread: &str, info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("no message");
    let place = match info.location() {
        Some(location) => format!(" at {}:{}", location.file(), location.line()),
        None => String::new(),
    };
    format!(
        "memscoped: the thread {thread} panicked{place}: {message}; this is a bug in memscoped, which ends here: all probes \
         are removed, and what was recorded is kept"
    )
}

/// In a build with debug assertions, panics if a test wants this thread to: if the folder that `MEMSCOPE_TEST_PANIC`
/// names has a file with this name. Nothing in a release build.
#[inline]
pub fn if_a_test_wants_it(thread: &str) {
    #[cfg(debug_assertions)]
    {
        static FOLDER: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
        let folder = FOLDER.get_or_init(|| Some(std::env::var_os("MEMSCOPE_TEST_PANIC")?.into()));
        if let Some(folder) = folder {
            let asked = folder.join(thread);
            assert!(!asked.exists(), "a test asked {thread} for it");
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = thread;
}
