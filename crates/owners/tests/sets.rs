//! The sets that come with memscope against plain programs that say the same, and rules that are none.

#![allow(clippy::unwrap_used)]

use memscope_owners::{
    AllocatedBy, Facts, Frame, FreedBy, Origin, Reason, Rules, RulesError, Use, Via,
};
use proptest::prelude::*;

fn facts<'f>(frames: &'f [Frame<'f>]) -> Facts<'f> {
    Facts {
        frames,
        holder: "",
        types: &[],
        via: None,
        origin: Origin::None,
        labels: &[],
        is_in_private_pool: false,
        allocated_by: None,
        freed_by: None,
        component: "",
    }
}

/// The category of torchtitan's analyzer, as its description says it.
fn torchtitan(frames: &[Frame<'_>]) -> &'static str {
    if frames.is_empty() {
        return "Unknown";
    }
    let by_file: [(&str, &[&str]); 9] = [
        ("Expert/MoE", &["expert", "moe"]),
        ("Attention", &["attention", "attn"]),
        ("Linear/MatMul", &["linear", "matmul"]),
        ("Embedding", &["embedding", "emb"]),
        ("Normalization", &["norm"]),
        ("Activation", &["activation"]),
        ("Gradient", &["gradient", "backward"]),
        ("Communication", &["all_to_all", "communication"]),
        ("FSDP", &["fsdp"]),
    ];
    for frame in frames {
        let file = frame.file.to_lowercase();
        if file.contains("optimizer") || frame.function.to_lowercase().contains("optimizer") {
            return "Optimizer State";
        }
        for (category, words) in by_file {
            if words.iter().any(|word| file.contains(word)) {
                return category;
            }
        }
    }
    "Other"
}

/// The category of mosaic, as its description says it.
fn mosaic(frames: &[Frame<'_>]) -> &'static str {
    let in_file = |part: &str| frames.iter().any(|frame| frame.file.contains(part));
    if in_file("fully_sharded_data_parallel.py") {
        return "FSDP";
    }
    for Frame { function, file } in frames {
        let has = |words: &[&str]| words.iter().any(|word| function.contains(word));
        match () {
            () if has(&["forward"]) => return "ACTIVATION",
            () if has(&["param"]) || file.contains("flatten_params_wrapper") => return "PARAMETER",
            () if has(&["build_norm_fn"]) => return "PARAMETER",
            () if has(&["__init__"]) && file.contains("parallel/layers.py") => return "PARAMETER",
            () if has(&["backward", "clip_grad_norm_", "calc_grad_norm"]) => return "BACKWARD",
            () if has(&["custom_adamw", "_init_group"]) || file.contains("custom_adamw") => {
                return "OPTIMIZER";
            }
            () if has(&["dist_max", "dist_mean", "dist_sum", "_aggregate"]) => return "NET",
            () if has(&["validate_process_group"]) => return "NET_SETUP",
            () if has(&["compute_grad_stats"]) => return "STATS",
            () => {}
        }
    }
    "UNKNOWN"
}

fn word() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "forward",
        "backward",
        "param",
        "__init__",
        "step",
        "_init_group",
        "clip_grad_norm_",
        "main",
        "dist_sum",
        "Optimizer",
        "build_norm_fn",
        "validate_process_group",
        "compute_grad_stats",
        "custom_adamw",
        "x",
    ];
    prop::sample::select(WORDS).prop_map(str::to_owned)
}

fn file() -> impl Strategy<Value = String> {
    const FILES: &[&str] = &[
        "torch/nn/modules/linear.py",
        "torch/optim/optimizer.py",
        "MOE.py",
        "attn.py",
        "parallel/layers.py",
        "fsdp/_fully_shard.py",
        "fully_sharded_data_parallel.py",
        "flatten_params_wrapper.py",
        "norm.py",
        "train.py",
        "embedding.py",
        "torch/autograd/gradient.py",
        "communication.py",
        "activation.py",
        "custom_adamw.py",
        "libtorch_cuda.so",
    ];
    prop::sample::select(FILES).prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn sets_say_what_the_programs_say_that_they_are_named_after(
        stack in prop::collection::vec((word(), file()), 0..8)
    ) {
        let frames: Vec<Frame<'_>> = stack
            .iter()
            .map(|(function, file)| Frame { function, file })
            .collect();
        for (name, plain) in [("torchtitan", torchtitan(&frames)), ("mosaic", mosaic(&frames))] {
            let set = Rules::named(name).unwrap();
            // These sets look at stacks alone, whatever else is known.
            let facts = Facts { holder: "__main__.model.weight", via: Some(Via::Graph), ..facts(&frames) };
            let decision = set.decide(None, Some(Use::Weights), &facts);
            prop_assert_eq!(&decision.category, plain, "{} of {:?}", name, &frames);
            prop_assert!(!set.needs_objects(None));
        }
    }

    #[test]
    fn any_text_is_a_set_or_says_why_not(text in "\\PC{0,200}", category in "[a-z]{0,9}", expression in "[ -&(-~]{0,40}") {
        let _ = Rules::parse(&text);
        let rule = format!("version = 1\nname = 'x'\n[[rule]]\ncategory = '{category}'\nholder = '{expression}'\n");
        if let Err(error) = Rules::parse(&rule) {
            let is_expression = matches!(error, RulesError::Expression { number: 1, what: "holder", .. });
            prop_assert!(is_expression, "{}", error);
        }
    }
}

#[test]
fn objects_are_believed_before_rules_and_rules_of_ones_own_before_the_set() {
    let set = Rules::named("memscope").unwrap();
    let own = Rules::parse(
        "version = 1\nname = 'mine'\n[names]\nweights = 'experts'\n[[rule]]\ncategory = 'replay buffer'\nholder = 'history'\n",
    )
    .unwrap();
    let held = Facts {
        holder: "__main__.trainer.history[*]",
        origin: Origin::Module,
        via: Some(Via::Tensor),
        ..facts(&[])
    };
    let decide = |known| set.decide(Some(&own), known, &held);
    assert_eq!(decide(Some(Use::Weights)).category, "experts");
    assert_eq!(decide(Some(Use::Gradients)).category, "gradients");
    let by_rule = decide(None);
    assert_eq!(by_rule.category, "replay buffer");
    assert_eq!(
        by_rule.reason,
        Reason::Rule {
            set: "mine".to_owned(),
            number: 1,
            frame: None
        }
    );
    assert_eq!(set.decide(None, None, &held).category, "program");
}

#[test]
fn what_ones_own_rules_say_beside_their_rules_counts() {
    let set = Rules::named("memscope").unwrap();
    let own = Rules::parse(
        "version = 1\nname = 'mine'\notherwise = 'mine'\nwithout_stack = 'early'\nobjects = false\nwith_labels = true\n[[rule]]\ncategory = 'none'\nlabel = '^none$'\n",
    )
    .unwrap();
    let here = [Frame {
        function: "f",
        file: "f.py",
    }];
    let stack = Facts {
        labels: &["kv"],
        origin: Origin::Unknown,
        ..facts(&here)
    };
    let decide = |known, facts: &Facts<'_>| set.decide(Some(&own), known, facts).category;
    assert_eq!(decide(Some(Use::Weights), &stack), "mine@kv");
    let none = Facts {
        frames: &[],
        ..stack
    };
    assert_eq!(decide(None, &none), "early@kv");
    // memscope's own set has rules that look at objects, so they are read all the same.
    assert!(set.needs_objects(Some(&own)));
    let by_stacks = Rules::named("torchtitan").unwrap();
    assert!(!by_stacks.needs_objects(Some(&own)));
    let believes = Rules::parse("version = 1\nname = 'mine'\nobjects = true\n").unwrap();
    assert!(by_stacks.needs_objects(Some(&believes)));
}

/// In the order of frames, a rule that looks at no frame is true where there is none, and names none.
#[test]
fn rules_without_frames_are_tried_without_a_stack() {
    let set = Rules::parse(
        "version = 1\nname = 'mine'\norder = 'frames'\n[[rule]]\ncategory = 'f'\nfunction = '^f$'\n[[rule]]\ncategory = 'graphs'\nprivate_pool = true\n",
    )
    .unwrap();
    let here = [Frame {
        function: "g",
        file: "g.py",
    }];
    for frames in [&[][..], &here[..]] {
        let facts = Facts {
            is_in_private_pool: true,
            ..facts(frames)
        };
        let decision = set.decide(None, None, &facts);
        assert_eq!(decision.category, "graphs", "{frames:?}");
        assert!(matches!(
            decision.reason,
            Reason::Rule {
                number: 2,
                frame: None,
                ..
            }
        ));
    }
}

#[test]
fn what_memscope_says_of_what_no_object_says() {
    let set = Rules::named("memscope").unwrap();
    let of = |holder, types: &[&str], via, origin, private| {
        let facts = Facts {
            holder,
            types,
            via,
            origin,
            is_in_private_pool: private,
            ..facts(&[])
        };
        set.decide(None, None, &facts).category
    };
    let tensor = Some(Via::Tensor);
    let (module, none) = (Origin::Module, Origin::None);
    let cases = [
        (
            "__main__.cache.layers[*].keys",
            &["module", "DynamicCache", "list", "DynamicLayer"][..],
            tensor,
            module,
            false,
            "kv_cache",
        ),
        (
            "__main__.engine.kv_caches[*]",
            &["module", "Engine", "list"],
            tensor,
            module,
            false,
            "kv_cache",
        ),
        (
            "__main__.cache[*]",
            &["module", "dict"],
            tensor,
            module,
            false,
            "program",
        ),
        (
            "__main__.loss.grad_fn",
            &["module", "Tensor"],
            Some(Via::Graph),
            module,
            false,
            "activations",
        ),
        (
            "__main__.w.grad",
            &["module", "Tensor"],
            Some(Via::Gradient),
            module,
            false,
            "gradients",
        ),
        (
            "step.<locals>.x",
            &["Tensor"],
            tensor,
            Origin::Local,
            false,
            "temporaries",
        ),
        (
            "forward.<locals>.args[*]",
            &["tuple", "Tensor"],
            tensor,
            Origin::Local,
            false,
            "temporaries",
        ),
        (
            "_multi_tensor_adamw.<locals>.exp_avg_sq_sqrt[*]",
            &["list", "Tensor"],
            tensor,
            Origin::Local,
            false,
            "temporaries",
        ),
        (
            "main.<locals>.history[*]",
            &["list", "Tensor"],
            tensor,
            Origin::Local,
            false,
            "program",
        ),
        (
            "main.<locals>.trainer.cache[*]",
            &["Trainer", "dict", "Tensor"],
            tensor,
            Origin::Local,
            false,
            "program",
        ),
        (
            "main.<locals>.trainer.last[*]",
            &["Trainer", "tuple", "Tensor"],
            tensor,
            Origin::Local,
            false,
            "program",
        ),
        (
            "<garbage Node>.x",
            &["Node"],
            tensor,
            Origin::Garbage,
            false,
            "garbage",
        ),
        (
            "__main__.static_input",
            &["module"],
            tensor,
            module,
            true,
            "private_pools",
        ),
        ("", &[], None, none, false, "native"),
    ];
    for (holder, types, via, origin, private, category) in cases {
        assert_eq!(
            of(holder, types, via, origin, private),
            category,
            "{holder}"
        );
    }
    let frames = [Frame {
        function: "at::cuda::getCurrentCUDABlasHandle()",
        file: "libtorch_cuda.so",
    }];
    assert_eq!(
        set.decide(None, None, &facts(&frames)).category,
        "workspaces"
    );
    let of_hccl = Facts {
        component: "HCCL",
        ..facts(&[])
    };
    assert_eq!(set.decide(None, None, &of_hccl).category, "communication");
    let msmemscope = Rules::named("msmemscope").unwrap();
    let label = |known| msmemscope.decide(None, known, &facts(&[])).category;
    assert_eq!(label(Some(Use::OptimizerState)), "PTA@optimizer_state");
    assert_eq!(label(None), "PTA");
    let labelled = Facts {
        labels: &["cache", "kv"],
        ..facts(&[])
    };
    let label = |known| msmemscope.decide(None, known, &labelled).category;
    assert_eq!(label(Some(Use::Weights)), "PTA@weight@cache@kv");
    assert_eq!(label(None), "PTA@cache@kv");
    let mine = "version = 1\nname = 'mine'\n[[rule]]\ncategory = 'cache'\nlabel = '^kv$'\n";
    let mine = Rules::parse(mine).unwrap();
    let category = |facts: &Facts<'_>| set.decide(Some(&mine), None, facts).category;
    assert_eq!(category(&labelled), "cache");
    assert_eq!(category(&facts(&[])), "native");
}

#[test]
fn what_threads_say_of_what_has_been_freed() {
    let set = Rules::named("memscope").unwrap();
    use AllocatedBy::{Backward, Hook, Program, Recompute};
    let cases = [
        (Some(Program), Some(FreedBy::Backward), "activations"),
        (Some(Program), Some(FreedBy::Program), "native"),
        (Some(Backward), Some(FreedBy::Program), "gradients"),
        (Some(Backward), Some(FreedBy::Backward), "temporaries"),
        (Some(Recompute), Some(FreedBy::Backward), "recomputed"),
        (Some(Recompute), Some(FreedBy::Program), "recomputed"),
        // It lives on, as the workspaces of a library do.
        (Some(Recompute), None, "native"),
        (Some(Hook), Some(FreedBy::Program), "native"),
        (Some(Hook), Some(FreedBy::Backward), "native"),
        (Some(Backward), None, "native"),
        (None, Some(FreedBy::Backward), "native"),
    ];
    for (allocated_by, freed_by, category) in cases {
        let facts = Facts {
            origin: Origin::Unknown,
            allocated_by,
            freed_by,
            ..facts(&[])
        };
        let said = set.decide(None, None, &facts);
        assert_eq!(said.category, category, "{facts:?}");
        assert_eq!(said.reason == Reason::NoRule, category == "native");
    }
    let mine = "version = 1\nname = 'mine'\n[[rule]]\ncategory = 'norms'\nallocated_by = 'hook'\nfreed_by = 'program'\n";
    let mine = Rules::parse(mine).unwrap();
    let facts = Facts {
        allocated_by: Some(Hook),
        freed_by: Some(FreedBy::Program),
        ..facts(&[])
    };
    assert_eq!(set.decide(Some(&mine), None, &facts).category, "norms");
}

#[test]
fn what_is_no_set_says_where() {
    let refused = |text: &str| Rules::parse(text).unwrap_err().to_string();
    assert!(refused("version = 1\nname = 'x'\ncolour = 'red'\n").contains("colour"));
    assert!(refused("version = 2\nname = 'x'\n").contains("version 2"));
    let rule = |rest: &str| {
        refused(&format!(
            "version = 1\nname = 'x'\n[[rule]]\ncategory = 'a'\n{rest}"
        ))
    };
    assert!(rule("").contains("rule 1 (a) has no condition"));
    assert!(rule("function = '('\n").starts_with("rule 1 (a): function:"));
    assert!(rule("function = '(a{1000}){1000}'\n").contains("size limit"));
    assert!(rule("via = 'air'\n").contains("air"));
    assert!(rule("freed_by = 'hook'\n").contains("hook"));
    let many = "[[rule]]\ncategory = 'a'\nfile = 'b'\n".repeat(501);
    assert!(refused(&format!("version = 1\nname = 'x'\n{many}")).contains("501 rules"));
    let unknown = Rules::named("vllm").unwrap_err().to_string();
    assert!(unknown.contains("torchtitan"), "{unknown}");
}
