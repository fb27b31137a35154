//! A reader process, for the tests.

fn main() -> std::process::ExitCode {
    memscope_memory::reader::serve()
}
