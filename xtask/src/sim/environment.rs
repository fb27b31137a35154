//! The environment variables with which a program finds a simulated device, and the Python that runs it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::options::{Device, Options};
use super::{cann, cuda};
use crate::setup::torch;

/// The environment variables under which a program finds the simulated device. Builds the libraries if
/// that is needed.
pub fn environment(options: &Options) -> Result<Vec<(String, String)>> {
    let found = torch::locate(options.torch.as_deref());
    let is_native = options.command.first().is_some_and(|it| !is_python(it));
    if found.is_err() && options.device == Device::Npu && is_native {
        // The simulated CANN libraries need no PyTorch, and most programs do not either.
        options.check()?;
        let libraries = cann::build(&options.compiler(), None)?;
        let mut variables = installation_of(&libraries)?;
        settings(options, &mut variables)?;
        return Ok(variables);
    }
    environment_of(&found?, options)
}

/// The same for a PyTorch that is named by its folder.
pub fn environment_of(installation: &Path, options: &Options) -> Result<Vec<(String, String)>> {
    options.check()?;
    let mut variables = match options.device {
        Device::Cuda => cuda_variables(installation, options)?,
        Device::Npu => npu_variables(installation, options)?,
    };
    settings(options, &mut variables)?;
    Ok(variables)
}

fn cuda_variables(installation: &Path, options: &Options) -> Result<Vec<(String, String)>> {
    let libraries = cuda::build(installation)?;
    Ok(vec![
        (
            "LD_PRELOAD".to_owned(),
            preload(libraries.preload(!options.no_nvml))?,
        ),
        // PyTorch can call cuDNN by two interfaces. The simulated cuDNN has only the older one.
        ("TORCH_CUDNN_V8_API_DISABLED".to_owned(), "1".to_owned()),
    ])
}

/// The variables of an installation, as CANN's own script sets them.
fn installation_of(libraries: &cann::Libraries) -> Result<Vec<(String, String)>> {
    let home = text(&libraries.home)?;
    Ok(vec![
        (
            "LD_LIBRARY_PATH".to_owned(),
            before("LD_LIBRARY_PATH", text(&libraries.folder())?),
        ),
        ("ASCEND_HOME_PATH".to_owned(), home.clone()),
        ("ASCEND_OPP_PATH".to_owned(), format!("{home}/opp")),
    ])
}

/// The same variables, and the folder of torch_npu, which `import torch` finds and loads.
fn npu_variables(installation: &Path, options: &Options) -> Result<Vec<(String, String)>> {
    let torch_npu = torch::locate_npu(options.torch.as_deref(), installation)?;
    let libraries = cann::build(&options.compiler(), Some(&torch_npu))?;
    let mut variables = installation_of(&libraries)?;
    variables.push((
        "PYTHONPATH".to_owned(),
        before("PYTHONPATH", text(&torch_npu)?),
    ));
    if options.mstx {
        variables.push(("LD_PRELOAD".to_owned(), preload(vec![libraries.hook()])?));
    }
    Ok(variables)
}

/// The value of a variable that lists folders, with one more folder at its beginning.
fn before(variable: &str, folder: String) -> String {
    match env::var(variable) {
        Ok(rest) if !rest.is_empty() => format!("{folder}:{rest}"),
        _ => folder,
    }
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str();
    Ok(text
        .with_context(|| format!("{} is not UTF-8", path.display()))?
        .to_owned())
}

fn preload(files: Vec<PathBuf>) -> Result<String> {
    let mut preload = Vec::new();
    for file in files {
        let file = text(&file).context("LD_PRELOAD cannot hold this path")?;
        if file.contains([' ', ':']) {
            bail!("LD_PRELOAD cannot hold a path with a space or a colon: {file}");
        }
        preload.push(file);
    }
    if let Ok(already) = env::var("LD_PRELOAD") {
        preload.push(already);
    }
    Ok(preload.join(":"))
}

/// Adds the settings of the device itself, under the names that it reads.
fn settings(options: &Options, variables: &mut Vec<(String, String)>) -> Result<()> {
    let prefix = match options.device {
        Device::Cuda => "SIMCUDA",
        Device::Npu => "SIMCANN",
    };
    let log = match &options.log {
        Some(log) => Some(text(
            &std::path::absolute(log).context("cannot find the current directory")?,
        )?),
        None => None,
    };
    for (name, value) in [
        ("DEVICES", options.devices.map(|number| number.to_string())),
        ("DEVICE_SIZE", options.device_size.clone()),
        ("COMPUTE_CAPABILITY", options.capability.clone()),
        ("FAIL", options.fail.clone()),
        (
            "EVENT_DELAY_US",
            options.event_delay_us.map(|number| number.to_string()),
        ),
        ("LOG", log),
    ] {
        if let Some(value) = value {
            variables.push((format!("{prefix}_{name}"), value));
        }
    }
    Ok(())
}

/// Path of a program: `python` and `python3` are the environment's, everything else is looked up as usual.
pub fn resolve(program: &OsString, environment: &Path) -> PathBuf {
    if is_python(program) {
        return environment.join("bin").join(program);
    }
    PathBuf::from(program)
}

/// Whether a program is the environment's Python.
pub fn is_python(program: &OsString) -> bool {
    program == "python" || program == "python3"
}
