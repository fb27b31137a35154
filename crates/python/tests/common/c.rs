//! Small programs and libraries in C, compiled with `cc`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Python;

/// A library that takes pthread keys before the interpreter does, so that the interpreter's own key is on the second
/// level. It uses the first version of the symbol, which old C libraries also have.
pub const KEYS: &str = r#"
#include <pthread.h>
__asm__(".symver pthread_key_create, pthread_key_create@GLIBC_2.2.5");
__attribute__((constructor)) static void take(void) {
    pthread_key_t key;
    for (int i = 0; i < 100; i++) pthread_key_create(&key, 0);
}
"#;

/// A program that contains no Python until it loads the library named by its first argument. Then it waits for a line,
/// starts the interpreter, and runs its second argument.
pub const HOST: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
    if (!library) { fputs(dlerror(), stderr); return 1; }
    setbuf(stdin, NULL);
    puts("\"loaded\"");
    fflush(stdout);
    if (getchar() != '\n') return 1;
    ((void (*)(int))dlsym(library, "Py_InitializeEx"))(1);
    return ((int (*)(const char *))dlsym(library, "PyRun_SimpleString"))(arguments[2]);
}
"#;

/// A temporary folder that the interpreter can see, too. It is removed when this is dropped.
pub struct Folder {
    folder: tempfile::TempDir,
    root: Option<PathBuf>,
}

impl Folder {
    pub fn new(python: &Python) -> Folder {
        let folder = match &python.root {
            None => tempfile::tempdir(),
            Some(root) => tempfile::tempdir_in(root.join("tmp")),
        };
        Folder {
            folder: folder.unwrap(),
            root: python.root.clone(),
        }
    }

    /// Path of a file in the folder, as we see it.
    pub fn here(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Path of the same file, as the interpreter sees it.
    pub fn there(&self, name: &str) -> PathBuf {
        let here = self.here(name);
        match &self.root {
            None => here,
            Some(root) => Path::new("/").join(here.strip_prefix(root).unwrap()),
        }
    }

    /// Compiles a source text to a file of this name.
    pub fn cc(&self, name: &str, source: &str, arguments: &[&str]) {
        let input = self.here(&format!("{name}.c"));
        std::fs::write(&input, source).unwrap();
        let done = Command::new("cc")
            .args(["-O1", "-o"])
            .arg(self.here(name))
            .arg(&input)
            .args(arguments)
            .output()
            .expect("a C compiler (cc)");
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "cc failed: {errors}");
    }
}
