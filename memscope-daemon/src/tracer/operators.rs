//! Places probes on PyTorch's operators, where it is to be followed which of them use which memory.

use memscope_common::{
    Cookie, OPERAND_STACK, OPERANDS, OperandForm, RETURNS_NOTHING, RETURNS_VECTOR, Signature,
    StorageEntry, operand,
};
use memscope_log::records::{DaemonRecord, SiteDefined};
use memscope_rpc::Refusal;
use memscope_site::ProcessOperators;
use memscope_site::operators::schema::{Holds, Returns};
use memscope_site::operators::signature::Place;
use memscope_site::operators::{Access, Operand, Operator};

use super::Tracer;
use super::attach::internal;
use crate::panics::guarded;
use crate::probe::ProbeError;
use crate::probe::load::Program;
use crate::probe::multi::Point;

/// Coverage: of some operators, or of all, it is not seen which memory they use.
const PARTLY: &str = "accesses_partly";
/// Operators that coverage names.
const NAMED: usize = 10;

impl Tracer {
    /// Places probes on the operators, if that was asked for, PyTorch is there, and it has none yet. Where they stand already, libraries
    /// may have come that hold the memory of tensors in their own way.
    pub(super) fn place_operators(&mut self, pid: u32) -> Result<(), Refusal> {
        let Some(traced) = self.traced.get(&pid) else {
            return Ok(());
        };
        let has_them = traced
            .links
            .iter()
            .any(|link| link.program() == Program::OperatorEntry);
        if !traced.options.accesses {
            return Ok(());
        }
        if has_them {
            return self.see_storages(pid);
        }
        let why = if cfg!(not(target_arch = "x86_64")) {
            Some("it can be followed on x86-64 only")
        } else if !self.kernel.follows_operators() {
            Some("it can be followed from Linux 6.6 on, with multi-uprobe links")
        } else {
            None
        };
        if let Some(why) = why {
            self.note(
                pid,
                PARTLY,
                &format!("which operators use which blocks is not seen: {why}"),
            );
            return Ok(());
        }
        let found = guarded("searching PyTorch's library for operators", || {
            self.resolver.operators(pid)
        });
        match found {
            Some(Ok(Some(found))) => self.place_found(pid, &found),
            // PyTorch may come later.
            Some(Ok(None)) => Ok(()),
            Some(Err(error)) => {
                let text = crate::error_chain(&error);
                self.note(
                    pid,
                    PARTLY,
                    &format!("which operators use which blocks is not seen: {text}"),
                );
                Ok(())
            }
            None => {
                self.note(
                    pid,
                    PARTLY,
                    "which operators use which blocks is not seen: the search for operators failed",
                );
                Ok(())
            }
        }
    }

    /// Tells the programs by what they know the memory of tensors, if that has changed.
    fn see_storages(&mut self, pid: u32) -> Result<(), Refusal> {
        let found = guarded(
            "searching PyTorch's libraries for the memory of tensors",
            || self.resolver.storages(pid),
        );
        match found {
            Some(Ok(storages)) => self.set_storages(pid, storages),
            Some(Err(error)) => {
                let error = crate::error_chain(&error);
                tracing::warn!(pid, error, "the memory of tensors is known as before");
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn set_storages(&mut self, pid: u32, storages: StorageEntry) -> Result<(), Refusal> {
        let Some(traced) = self.traced.get_mut(&pid) else {
            return Ok(());
        };
        if traced.storages == Some(storages) {
            return Ok(());
        }
        self.kernel
            .set_storage(traced.handle.0, storages)
            .map_err(internal("the operators could not be probed"))?;
        traced.storages = Some(storages);
        Ok(())
    }

    fn place_found(&mut self, pid: u32, found: &ProcessOperators) -> Result<(), Refusal> {
        let Some(traced) = self.traced.get(&pid) else {
            return Ok(());
        };
        let uid = traced.facts.uids[0];
        let (mut entries, mut ends, mut new) = (Vec::new(), Vec::new(), Vec::new());
        let refused = found.operators.refused.iter();
        let mut refused: Vec<&str> = refused.map(|(name, _)| name.as_str()).collect();
        let mut full = None;
        for operator in &found.operators.usable {
            let Some(signature) = signature(operator) else {
                refused.push(&operator.name);
                continue;
            };
            let cookie = match self.cookie_of(found, operator, &signature, uid, &mut new) {
                Ok(cookie) => cookie,
                Err(error) => {
                    full = Some(error);
                    break;
                }
            };
            entries.push(Point {
                offset: operator.entry,
                cookie,
            });
            ends.extend(operator.ends.iter().map(|end| Point {
                offset: *end,
                cookie,
            }));
        }
        // Those that have a number keep it, whatever becomes of the others: the next process that has them finds them known.
        self.define(new);
        if let Some(full) = full {
            return Err(internal("the operators could not be probed")(full));
        }
        self.set_storages(pid, found.storages)?;
        // Ends first: an end without its beginning is nothing, but a beginning without its end would go on.
        for (program, points) in [
            (Program::OperatorEnd, ends),
            (Program::OperatorEntry, entries),
        ] {
            self.place_points(
                pid,
                program,
                &found.open_path,
                &found.display_path,
                &found.identity,
                points,
            )?;
        }
        if !refused.is_empty() {
            let more = match refused.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named: Vec<&str> = refused.iter().take(NAMED).copied().collect();
            self.note(
                pid,
                PARTLY,
                &format!(
                    "of {} of PyTorch's {} operators it is not known how they are called, so their use of blocks is not seen: {}{more}",
                    refused.len(),
                    found.operators.usable.len() + found.operators.refused.len(),
                    named.join(", ")
                ),
            );
        }
        Ok(())
    }

    fn cookie_of(
        &mut self,
        found: &ProcessOperators,
        operator: &Operator,
        signature: &Signature,
        uid: u32,
        new: &mut Vec<DaemonRecord>,
    ) -> Result<u64, ProbeError> {
        let function = (
            found.identity.clone(),
            operator.entry,
            operator.symbol.clone(),
        );
        let (site, is_new) = self.sites.number(function, uid)?;
        if is_new {
            new.push(DaemonRecord::SiteDefined(SiteDefined {
                site,
                function: operator.name.clone(),
                layer: None,
                vendor: None,
                op: None,
                library: found.display_path.clone(),
                offset: operator.entry,
            }));
        }
        let number = self.kernel.signature(signature)?;
        Ok(Cookie::new(site, 0).with_signature(number).0)
    }
}

/// What the programs must know of an operator. `None` if it has more arguments than they read.
fn signature(operator: &Operator) -> Option<Signature> {
    let mut signature = Signature {
        returns: match operator.returns {
            Returns::Tensors(count) if operator.fills_result => u32::from(count),
            Returns::Vector if operator.fills_result => RETURNS_VECTOR,
            _ => RETURNS_NOTHING,
        },
        ..Signature::default()
    };
    if operator.operands.len() > OPERANDS {
        return None;
    }
    for (to, one) in signature.operands.iter_mut().zip(&operator.operands) {
        *to = operand_of(one)?;
        signature.count += 1;
    }
    Some(signature)
}

fn operand_of(one: &Operand) -> Option<u32> {
    let place = match one.tensors.place {
        Place::Register(number) if u32::from(number) < OPERAND_STACK => number,
        Place::Register(_) => return None,
        Place::Stack(word) => word.checked_add(OPERAND_STACK as u8)?,
    };
    let form = match (one.tensors.holds, one.tensors.by_value) {
        (Holds::One, _) => OperandForm::Tensor,
        (Holds::Maybe, _) => OperandForm::Maybe,
        (Holds::List, true) => OperandForm::Array,
        (Holds::List, false) => OperandForm::ListRef,
        (Holds::MaybeList, _) => OperandForm::List,
    };
    Some(operand(place, form, one.access == Access::Write))
}
