//! Builds the result for one process, object by object.

use memscope_ledger::event::Level;

use super::found::{FoundSite, LoaderHook, Missing, ObjectSites, Resolved};
use crate::SiteError;
use crate::file_sites::{FileSite, FileSites, Why};
use crate::identity::FileIdentity;
use crate::mapped::{MappedObject, OpenError, OpenObject};
use crate::mounts::{Waits, waits};
use crate::settings::SettingsPlace;
use memscope_vendors::{Layer, Purpose, Row, Vendor};

/// The texts of an error and its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Whether a file was not delivered in time: a file system does not answer, but may do so later.
fn was_not_delivered(error: &(dyn std::error::Error + 'static)) -> bool {
    let all = std::iter::successors(Some(error), |error| error.source());
    let mut causes = all.filter_map(|error| error.downcast_ref::<std::io::Error>());
    causes.any(|cause| cause.kind() == std::io::ErrorKind::TimedOut)
}

/// The result for one process while it is being built.
pub(super) struct Answer {
    pub pid: u32,
    pub level: Level,
    /// Whether probes may stand in files for which a user could keep the kernel waiting.
    pub user_mounts: bool,
    pub resolved: Resolved,
    /// Set if an object is an ELF file of a kind that we cannot read, to a text that names the kind.
    pub foreign: Option<&'static str>,
    /// Whether any object is an ELF file for this machine.
    pub readable: bool,
    /// Number of names of allocators' functions in all files so far.
    pub names: usize,
}

impl Answer {
    pub fn missing(
        &mut self,
        object: &MappedObject,
        function: &str,
        layer: Option<Layer>,
        why: Why,
    ) {
        self.resolved.missing.push(Missing {
            library: object.display_path(),
            function: function.to_owned(),
            layer,
            why,
        });
    }

    pub fn unopened(&mut self, object: &MappedObject, error: &OpenError) {
        // What is not a regular file is no library. It may be memory of a device, mapped as executable.
        if !matches!(error, OpenError::NotRegular) {
            self.left_out(object, error);
        }
    }

    /// Names a file of which nothing is known but its name. That name still tells whether the process has a library of a
    /// device or PyTorch's, so that a process whose libraries cannot be read does not count as one that has none yet.
    pub fn left_out(&mut self, object: &MappedObject, error: &(dyn std::error::Error + 'static)) {
        let name = object.file_name();
        self.name(&name);
        // Its pointer to the allocator would have told this.
        self.resolved.pytorch |= self.resolved.torch_npu;
        self.resolved.undelivered |= was_not_delivered(error);
        self.missing(object, "*", None, Why::File(chain(error)));
    }

    /// Notes what the name of a mapped file tells.
    fn name(&mut self, name: &str) {
        self.resolved.torch_npu |= name.starts_with("libtorch_npu.so");
        self.resolved.pytorch |= name.starts_with("libc10_cuda.so");
        let known = memscope_vendors::library(name.as_bytes());
        self.resolved.device_library |= known.is_some_and(|library| !library.is_frameworks);
    }

    pub fn add(
        &mut self,
        object: &MappedObject,
        open: &OpenObject,
        identity: FileIdentity,
        base: Option<u64>,
        file: &FileSites,
    ) {
        let name = object.file_name();
        self.name(&name);
        self.resolved.device_library |= file.sites.iter().any(|site| is_device(site.row));
        // A PyTorch that was built for CUDA has an allocator for it, too. If torch_npu is there, its allocator counts.
        let outranked = self.resolved.torch_npu && !file.torch_npu;
        if let (Some(value), Some(base), false) = (file.allocator, base, outranked) {
            self.resolved.torch_npu |= file.torch_npu;
            self.resolved.allocator_address = Some(base.wrapping_add(value));
            self.resolved.allocator_file = Some(identity.clone());
            self.resolved.pytorch = true;
        }
        if let (Some(value), Some(base)) = (file.device_count, base) {
            self.resolved.device_count_address = Some(base.wrapping_add(value));
        }
        if let Some(base) = base {
            let object = file.settings.0.map(|value| base.wrapping_add(value));
            let pointer = file.settings.1.map(|value| base.wrapping_add(value));
            self.resolved
                .settings
                .extend(object.map(SettingsPlace::Object));
            self.resolved
                .settings
                .extend(pointer.map(SettingsPlace::Pointer));
        }
        self.name_missing(object, &name, file);
        let mut sites = Vec::new();
        let risk = match self.user_mounts {
            true => Waits::ForNobody,
            false => waits(self.pid, open.bytes.file()),
        };
        let why = match risk {
            Waits::ForNobody => None,
            Waits::ForServer => Some("it lies on a FUSE file system that a user serves"),
            Waits::ForOverlay => Some("it lies on an overlay that a user mounted"),
        };
        if let (Some(why), false) = (why, file.sites.is_empty()) {
            self.missing(object, "*", None, Why::UserMount(why));
        }
        let usable = file.sites.iter().filter(|_| why.is_none());
        for site in usable {
            let hook = site.row.purpose == Purpose::Loader;
            if !hook && !at_level(site.row, self.level) {
                continue;
            }
            match found(object, site) {
                Some(found) if hook => {
                    self.resolved.loader_hook.get_or_insert_with(|| LoaderHook {
                        open_path: open.open_path.clone(),
                        display_path: object.display_path(),
                        identity: identity.clone(),
                        site: found,
                    });
                }
                Some(found) => sites.push(found),
                None => self.missing(object, &site.symbol, Some(site.row.layer), Why::NotMapped),
            }
        }
        if let (Some(first), false) = (sites.first(), sites.is_empty()) {
            let base = base.unwrap_or_else(|| {
                // Every site knows its address in memory and in the file's own numbering.
                file.sites
                    .iter()
                    .find(|site| site.symbol == first.symbol)
                    .map_or(0, |site| first.address.wrapping_sub(site.address))
            });
            self.resolved.objects.push(ObjectSites {
                open_path: open.open_path.clone(),
                opened_by: open.by,
                display_path: object.display_path(),
                identity,
                base,
                sites,
                deleted: object.deleted,
            });
        }
    }

    fn name_missing(&mut self, object: &MappedObject, name: &str, file: &FileSites) {
        let level = self.level;
        let wanted = |row: &Row| row.purpose == Purpose::Loader || at_level(row, level);
        for refusal in file.refused.iter().filter(|refusal| wanted(refusal.row)) {
            let why = refusal.why.clone();
            self.missing(object, &refusal.symbol, Some(refusal.row.layer), why);
        }
        for (row, why) in file.lacking(name) {
            if wanted(row) {
                self.missing(object, row.name, Some(row.layer), why);
            }
        }
    }

    /// Removes the sites and addresses of PyTorch's CUDA allocator, which is not in use beside torch_npu's.
    fn drop_unused_pool(&mut self) {
        let unused = |row: &Row| row.layer == Layer::Pool && row.vendor != Some(Vendor::Ascend);
        for object in &mut self.resolved.objects {
            object.sites.retain(|site| !unused(site.row));
        }
        self.resolved
            .objects
            .retain(|object| !object.sites.is_empty());
        self.resolved
            .missing
            .retain(|missing| !memscope_vendors::row(&missing.function).is_some_and(unused));
        self.resolved.device_count_address = None;
        self.resolved.settings.clear();
    }

    pub fn finish(mut self) -> Result<Resolved, SiteError> {
        if self.resolved.torch_npu {
            self.drop_unused_pool();
        }
        const HOOK: &str = "_dl_debug_state";
        let named = self.resolved.missing.iter().any(|m| m.function == HOOK);
        if self.resolved.loader_hook.is_none() && !named {
            self.resolved.missing.push(Missing {
                library: "the process".to_owned(),
                function: HOOK.to_owned(),
                layer: Some(Layer::Loader),
                why: Why::NotDefined,
            });
        }
        match self.foreign {
            Some(what) if !self.readable => Err(SiteError::UnsupportedMachine {
                pid: self.pid,
                machine: what.to_owned(),
            }),
            _ => Ok(self.resolved),
        }
    }
}

fn is_device(row: &Row) -> bool {
    matches!(row.layer, Layer::Runtime | Layer::Driver)
}

/// A site of the file with its address in this process; `None` if its code is not mapped.
fn found(object: &MappedObject, site: &FileSite) -> Option<FoundSite> {
    let address = object.code_address(site.offset)?;
    let placement = &site.placement;
    Some(FoundSite {
        row: site.row,
        variant: site.variant,
        symbol: site.symbol.clone(),
        aliases: site.aliases.clone(),
        function_offset: site.offset,
        entry_offset: site.offset + placement.entry_offset,
        return_offset: placement.return_offset.map(|offset| site.offset + offset),
        emulated: placement.emulated,
        pushed: placement.pushed,
        address,
        reason: placement.reason.clone(),
        calls: site.calls.clone(),
    })
}

/// Whether the function of the row gets a probe at this level. For the linker's hook this is false: it is looked for
/// separately, at every level.
///
/// Level `trace` includes the reporting function. Its totals are needed to find the offsets that `record_trace`'s probe
/// reads, and where these are not found the probe on the reporting function stays.
pub fn at_level(row: &Row, level: Level) -> bool {
    match row.purpose {
        Purpose::Call(_)
        | Purpose::Mark(_)
        | Purpose::Launch
        | Purpose::Region(_)
        | Purpose::Workspace => level >= Level::Segments,
        Purpose::Report | Purpose::Oom => level >= Level::Blocks,
        Purpose::Trace => level >= Level::Trace,
        Purpose::Loader => false,
    }
}
