//! What happens when a thread panics.
//!
//! The keeper, the tracer and the threads that work for them do what the daemon is for. Without one of them the
//! daemon would go on running but answer nothing, with its probes in the traced programs and a ring that fills up. So
//! the whole process ends at once, and the service manager starts the daemon again. Probes that are pinned go on
//! collecting for that one; the kernel removes the others together with the process's descriptors. A panic in a thread that answers a client only fails that answer.

//!
//! What reads a stranger's files is [`guarded`]: code of libraries that panics over one of them must not end the daemon again and
//! again, whenever it is started anew and meets that file.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo};

/// Name of the threads that answer clients.
pub const ANSWERS: &str = "answers";
/// Exit code after a panic, the same as that of a Rust program whose main thread panics.
pub const EXIT_CODE: i32 = 101;

/// Makes a panic in any thread end the process, except in the threads that answer clients.
pub fn end_with_any_thread() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        if GUARDED.get() {
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        if name == ANSWERS {
            return;
        }
        eprintln!("{}", last_words(name, info));
        // Not `exit`: it would run exit handlers, which may destroy what other threads still use.
        // SAFETY: `_exit` ends the process and touches no memory.
        unsafe { libc::_exit(EXIT_CODE) };
    }));
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Does what may panic over a stranger's bytes. `None` if it did; then the caller must drop or make anew whatever `work` has changed.
pub fn guarded<T>(what: &str, work: impl FnOnce() -> T) -> Option<T> {
    GUARDED.set(true);
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(false);
    if done.is_err() {
        tracing::error!(
            "{what} panicked (the lines above say where); this is a bug in memscoped or in a library of it, which goes on without the result"
        );
    }
    done.ok()
}

fn last_words(thread: &str, info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("no message");
    let place = match info.location() {
        Some(location) => format!(" at {}:{}", location.file(), location.line()),
        None => String::new(),
    };
    format!(
        "memscoped: the thread {thread} panicked{place}: {message}; this is a bug in memscoped, which ends here; what was \
         recorded is kept, and the memscoped that is started next goes on from there"
    )
}

/// For tests: in a build with debug assertions, panics if the folder that the variable `MEMSCOPE_TEST_PANIC` names
/// has a file with this thread's name, and hangs as long as it has one whose name is the thread's with `-hangs` behind it. Does nothing
/// in a release build.
#[inline]
pub fn if_a_test_wants_it(thread: &str) {
    #[cfg(debug_assertions)]
    {
        static FOLDER: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
        let folder = FOLDER.get_or_init(|| Some(std::env::var_os("MEMSCOPE_TEST_PANIC")?.into()));
        if let Some(folder) = folder {
            let hangs = folder.join(format!("{thread}-hangs"));
            while hangs.exists() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let asked = folder.join(thread);
            assert!(!asked.exists(), "a test asked {thread} for it");
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = thread;
}
