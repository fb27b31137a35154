//! What torch_npu's queue of tasks means for stacks.
//!
//! By default torch_npu issues work from a thread of its own. An operator's outputs are allocated before that, by the
//! thread that runs the program. That thread also allocates the operator's workspace, unless `TASK_QUEUE_ENABLE` is
//! 2: then the queue's thread asks how large the workspace must be, and allocates it.

use memscope_site::Resolved;

use super::Tracer;

impl Tracer {
    /// Records which stacks are the program's, if torch_npu is in the process.
    pub(super) fn say_task_queue(&mut self, pid: u32, resolved: &Resolved) {
        let Some(traced) = self.traced.get(&pid).filter(|_| resolved.torch_npu) else {
            return;
        };
        let text = sentence(&traced.facts.environment);
        self.note(pid, "npu_task_queue", text.unwrap_or_default());
    }
}

/// The note's text, by the environment with which the process was started. A script may have set the variables later,
/// before it imported torch_npu.
fn sentence(environment: &[(String, String)]) -> Option<&'static str> {
    let of = |wanted: &str| {
        let found = environment.iter().find(|(name, _)| name == wanted);
        found.and_then(|(_, value)| value.trim().parse::<i64>().ok())
    };
    if of("ASCEND_LAUNCH_BLOCKING") == Some(1) {
        return None;
    }
    match of("TASK_QUEUE_ENABLE").unwrap_or(1) {
        0 => None,
        2 => Some(
            "TASK_QUEUE_ENABLE is 2: torch_npu issues work from a thread of its own, which also allocates \
             workspaces, so that those have no Python stack; all other allocations have the stack that they were \
             made from",
        ),
        _ => Some(
            "torch_npu issues work from a thread of its own (TASK_QUEUE_ENABLE is 1): allocations have the stack \
             that they were made from, and kernels are launched by that thread, a little later",
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_says() {
        let say = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            sentence(&pairs)
        };
        assert!(say(&[]).unwrap().contains("is 1"));
        assert!(
            say(&[("TASK_QUEUE_ENABLE", "1")])
                .unwrap()
                .contains("later")
        );
        let two = say(&[("TASK_QUEUE_ENABLE", "2"), ("ASCEND_LAUNCH_BLOCKING", "0")]);
        assert!(two.unwrap().contains("no Python stack"));
        assert_eq!(say(&[("TASK_QUEUE_ENABLE", "0")]), None);
        assert_eq!(say(&[("ASCEND_LAUNCH_BLOCKING", "1")]), None);
    }
}
