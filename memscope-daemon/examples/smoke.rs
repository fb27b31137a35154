fn main() {
    for m in [memscope_daemon::probe::load::AttachMethod::Perf, memscope_daemon::probe::load::AttachMethod::Multi] {
        match memscope_daemon::probe::load::Kernel::load(Some(m), 16 << 20) {
            Ok((k, r)) => println!("{} {} {}", k.method().name(), r.capacity(), r.producer_position()),
            Err(e) => { println!("{e}"); let mut s: Option<&dyn std::error::Error> = std::error::Error::source(&e); while let Some(x) = s { println!("  {x}"); s = x.source(); } }
        }
    }
    match memscope_daemon::probe::load::Kernel::load(None, 16 << 20) { Ok((k, _)) => println!("{}", k.method().name()), Err(e) => println!("{e}") }
}
