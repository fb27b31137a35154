//! `cargo xtask sim --self-test`: tests of the simulated device itself, in C and in PyTorch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::environment::{self, resolve};
use super::options::{Device, Options};
use super::{cann, compiler, cuda};
use crate::process;
use crate::setup::torch;

/// What differs between the devices' tests.
struct Suite {
    folder: &'static str,
    prefix: &'static str,
    /// Setting that makes calls fail in the test `failing`.
    failures: &'static str,
    check_log: fn(&str) -> Result<()>,
}

impl Suite {
    fn of(device: Device) -> Suite {
        match device {
            Device::Cuda => Suite {
                folder: "tests/simcuda",
                prefix: "SIMCUDA",
                failures: "cudaMalloc:2=oom,cudaMallocHost:*=999,cuMemAlloc_v2:4+=2",
                check_log: check_cuda_log,
            },
            Device::Npu => Suite {
                folder: "tests/simcann",
                prefix: "SIMCANN",
                failures: "aclrtMalloc:2=oom,aclrtMallocHost:*=507000,halMemAlloc:5+=oom",
                check_log: check_npu_log,
            },
        }
    }
}

/// Runs the tests in C and in PyTorch; fails if one of them fails.
pub fn run(options: &Options) -> Result<()> {
    let environment = torch::locate(options.torch.as_deref())?;
    let suite = Suite::of(options.device);
    let (flags, out) = match options.device {
        Device::Cuda => {
            let libraries = cuda::build(&environment)?;
            (libraries.c_flags(), libraries.folder)
        }
        Device::Npu => {
            let libraries = cann::build(&options.compiler(), None)?;
            (libraries.c_flags(), libraries.home)
        }
    };
    in_c(&suite, &flags, &out)?;
    in_python(&suite, &environment, options)?;
    eprintln!("sim: all self-tests passed with {}", environment.display());
    Ok(())
}

fn in_c(suite: &Suite, flags: &[String], out: &Path) -> Result<()> {
    let source = process::root().join(suite.folder).join("selftest.c");
    let program = compile(&source, flags, out)?;
    let names = process::output(&mut Command::new(&program))?;
    if names.lines().count() == 0 {
        bail!("selftest.c has no tests");
    }
    let setting = |name: &str| format!("{}_{name}", suite.prefix);
    for name in names.lines() {
        let log = program.with_extension(format!("{name}.jsonl"));
        let _ = fs::remove_file(&log);
        let mut command = process::command(&program);
        command
            .arg(name)
            .env(setting("LOG"), &log)
            .env(setting("DEVICES"), "2")
            .env(setting("DEVICE_SIZE"), "1GiB,512MiB");
        match name {
            "streams" => command.env(setting("EVENT_DELAY_US"), "20000"),
            "failing" => command.env(setting("FAIL"), suite.failures),
            _ => &mut command,
        };
        let status = command
            .status()
            .with_context(|| format!("cannot start {}", program.display()))?;
        if !status.success() {
            bail!("selftest.c: {name}: {status}");
        }
        let text = fs::read_to_string(&log).unwrap_or_default();
        (suite.check_log)(&text)
            .with_context(|| format!("selftest.c: {name}: the log {}", log.display()))?;
        eprintln!("selftest.c: {name}: passed");
    }
    Ok(())
}

/// The value of a field in a line of the log.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{name}\":"))?;
    rest.split([',', '}'])
        .next()
        .map(|value| value.trim_matches('"'))
}

fn function_of(line: &str) -> Result<&str> {
    field(line, "function").with_context(|| format!("has a line without a function: {line}"))
}

fn depth_of(line: &str) -> Result<usize> {
    Ok(field(line, "depth")
        .context("has a line without a depth")?
        .parse()?)
}

/// The log must be in order, and everything that the runtime allocates must come from the driver.
fn check_cuda_log(text: &str) -> Result<()> {
    let mut inner = false;
    for line in text.lines() {
        let function = function_of(line)?;
        let succeeded = field(line, "result") == Some("0");
        let allocates = function.starts_with("cudaMalloc") || function == "cudaHostAlloc";
        let empty = field(line, "size") == Some("0");
        if allocates && succeeded && !empty && !inner {
            bail!("has a {function} without a call of the driver inside");
        }
        inner = depth_of(line)? == 1;
    }
    Ok(())
}

/// Whatever AscendCL allocates must come from the runtime, and that from the HAL, with the same address. Each
/// allocation of the HAL must have the flag that says who owns it.
fn check_npu_log(text: &str) -> Result<()> {
    const LAYERS: [&str; 2] = ["aclrtMalloc", "rtMalloc"];
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let function = function_of(line)?;
        if function == "halMemAlloc" || function == "halMemCreate" {
            let flag =
                field(line, "flag").with_context(|| format!("has a {function} without a flag"))?;
            u64::from_str_radix(flag.trim_start_matches("0x"), 16)?;
        }
        let allocates = LAYERS.iter().any(|layer| function.starts_with(layer));
        if !allocates || field(line, "result") != Some("0") {
            continue;
        }
        // Inner calls end first, so they come first in the log.
        let inside = at
            .checked_sub(1)
            .and_then(|before| lines.get(before))
            .with_context(|| format!("begins with {function}"))?;
        if depth_of(inside)? != depth_of(line)? + 1
            || field(inside, "pointer") != field(line, "pointer")
        {
            bail!("has a {function} without its call of the layer below: {line}");
        }
    }
    Ok(())
}

fn compile(source: &Path, flags: &[String], out: &Path) -> Result<PathBuf> {
    let program = out.join("selftest");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(compiler::common()).arg("-o").arg(&program);
    compiler.arg(source).args(flags);
    process::output(&mut compiler).context("cannot compile selftest.c")?;
    Ok(program)
}

fn in_python(suite: &Suite, environment: &Path, options: &Options) -> Result<()> {
    let options = Options {
        device: options.device,
        torch: options.torch.clone(),
        ..Options::default()
    };
    let mut command = process::command(resolve(&"python".into(), environment));
    command
        .arg(process::root().join(suite.folder).join("selftest.py"))
        .envs(environment::environment(&options)?)
        // What is imported is compiled here once, and not by each process of the tests that follow.
        .env_remove("PYTHONDONTWRITEBYTECODE");
    let status = command.status().context("cannot start python")?;
    if !status.success() {
        bail!("selftest.py: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAL: &str = "{\"depth\":2,\"function\":\"halMemAlloc\",\"pointer\":\"0x10\",\"result\":0,\"flag\":\"0x2100000000004400\"}";
    const RUNTIME: &str =
        "{\"depth\":1,\"function\":\"rtMalloc\",\"pointer\":\"0x10\",\"result\":0}";
    const ACL: &str =
        "{\"depth\":0,\"function\":\"aclrtMalloc\",\"pointer\":\"0x10\",\"result\":0}";

    #[test]
    fn each_layer_has_the_one_below_inside() {
        assert!(check_npu_log(&[HAL, RUNTIME, ACL].join("\n")).is_ok());
        assert!(check_npu_log(&[HAL, ACL].join("\n")).is_err());
        assert!(check_npu_log(RUNTIME).is_err());
        let other = RUNTIME.replace("0x10", "0x20");
        assert!(check_npu_log(&[HAL, &other, ACL].join("\n")).is_err());
    }
}
