//! What memory is for, against what PyTorch says of it in the same process.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;

use memscope_tests::{Calls, Daemon, Device, LONG, Program, sim_of, until, workload_line};
use serde_json::Value;

fn start(daemon: &Daemon, script: &str) -> (Program, Value) {
    let command = sim_of(Device::Cuda).python(&format!("owners/{script}"));
    started(daemon, script, command)
}

fn started(daemon: &Daemon, script: &str, command: Command) -> (Program, Value) {
    let mut program = Program::start(script, command);
    let told = program.hear();
    // Compiled frames name the functions that make workspaces.
    daemon.json(&["attach", "--pid", &program.pid_text(), "--stacks", "all"]);
    (program, told)
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap().to_owned()
}

/// Sizes of blocks by address, as PyTorch's own snapshot has them.
fn sizes(told: &Value) -> HashMap<u64, u64> {
    let sizes = told["sizes"].as_object().unwrap().iter();
    sizes
        .map(|(address, size)| (address.parse().unwrap(), size.as_u64().unwrap()))
        .collect()
}

fn bytes_of(addresses: &Value, sizes: &HashMap<u64, u64>) -> (u64, u64) {
    let addresses: BTreeSet<u64> = addresses
        .as_array()
        .unwrap()
        .iter()
        .map(|address| address.as_u64().unwrap())
        .collect();
    let bytes = addresses.iter().map(|address| sizes[address]).sum();
    (addresses.len() as u64, bytes)
}

fn category(answer: &Value, name: &str) -> (u64, u64) {
    let categories = answer["devices"][0]["categories"].as_array().unwrap();
    let found = categories.iter().find(|one| one["category"] == name);
    let found = found.unwrap_or_else(|| panic!("no {name}: {:#}", answer["devices"]));
    assert_eq!(found["unsure"]["count"], 0, "{found}");
    let number = |key: &str| found["blocks"][key].as_u64().unwrap();
    (number("count"), number("bytes"))
}

/// Category, owner, name and key.
type Named = (String, String, String, String);

/// What a program has of each name is what PyTorch itself says that it has.
fn named_as_pytorch_names_it(answer: &Value, told: &Value) {
    let sizes = sizes(told);
    // PyTorch's own: the blocks of each name.
    let mut expected: BTreeMap<Named, BTreeSet<u64>> = BTreeMap::new();
    for row in told["rows"].as_array().unwrap() {
        let key = ["category", "owner", "name", "key"].map(|key| text(row, key));
        let blocks = expected.entry(key.into()).or_default();
        blocks.insert(row["block"].as_u64().unwrap());
    }
    assert!(expected.len() > 500, "{}", expected.len());
    // Of names that share their memory the first has it, and the others are told beside it.
    let mut named: BTreeMap<Named, (u64, u64)> = BTreeMap::new();
    let mut also: BTreeSet<Named> = BTreeSet::new();
    for row in answer["owners"].as_array().unwrap() {
        let [category, owner, name, key] =
            ["category", "owner", "name", "key"].map(|key| text(row, key));
        if row["evidence"] != "object" {
            assert!(["native", "kv_cache"].contains(&&*category), "{row}");
            continue;
        }
        for other in row["also"].as_array().unwrap() {
            let other = other.as_str().unwrap().to_owned();
            also.insert((category.clone(), owner.clone(), other, key.clone()));
        }
        let blocks = |which: &str| row["blocks"][which].as_u64().unwrap();
        named.insert(
            (category, owner, name, key),
            (blocks("count"), blocks("bytes")),
        );
    }
    let mut wrong = Vec::new();
    for (key, blocks) in &expected {
        let bytes: u64 = blocks.iter().map(|block| sizes[block]).sum();
        let is_told = match named.remove(key) {
            Some(told) => told == (blocks.len() as u64, bytes),
            None => also.contains(key),
        };
        if !is_told {
            wrong.push(format!("{key:?}: {blocks:x?}"));
        }
    }
    wrong.extend(
        named
            .keys()
            .map(|key| format!("{key:?} is none of PyTorch's")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_tensor_of_a_model_is_named_as_pytorch_names_it() {
    let daemon = Daemon::start();
    let (program, told) = start(&daemon, "models.py");
    assert_eq!(told["left_out"], serde_json::json!({}));
    let answer = daemon.json(&["owners", "--pid", &program.pid_text()]);
    named_as_pytorch_names_it(&answer, &told);

    // The sums of a part of a model, and what a block is explained with.
    let pid = program.pid_text();
    let part = daemon.json(&["owners", "--pid", &pid, "--below", "blocks.1"]);
    let names = part["owners"].as_array().unwrap().iter();
    let names: Vec<String> = names.map(|row| text(row, "name")).collect();
    assert!(names.len() > 10, "{names:?}");
    assert!(
        names.iter().all(|name| name.starts_with("blocks.1.")),
        "{names:?}"
    );
    let said = daemon.ctl(&["owners", "--pid", &pid, "--tree", "--depth", "1"]);
    let tree = said.text();
    assert!(tree.contains("__main__.checkpointed.model"), "{tree}");
    let row = &told["rows"][0];
    let address = format!("{:#x}", row["block"].as_u64().unwrap() + 1);
    let one = daemon.json(&["owners", "--pid", &pid, "--explain", &address]);
    let why = &one["explained"][0]["why"][0];
    let (name, owner) = (text(row, "name"), text(row, "owner"));
    assert_eq!(
        *why,
        format!("it is the parameter {name} of {owner}"),
        "{one:#}"
    );
}

#[test]
fn each_tensor_of_transformers_is_named_as_pytorch_names_it() {
    let daemon = Daemon::start();
    let command = sim_of(Device::Cuda).python_with_transformers("owners/hugging_face.py");
    let (program, told) = started(&daemon, "hugging_face.py", command);
    assert_eq!(told["left_out"], serde_json::json!({}));
    let answer = daemon.json(&["owners", "--pid", &program.pid_text()]);
    named_as_pytorch_names_it(&answer, &told);
    assert_eq!(
        category(&answer, "kv_cache"),
        bytes_of(&told["kv_cache"], &sizes(&told))
    );
}

#[test]
fn activations_are_what_the_backward_pass_frees() {
    let daemon = Daemon::start();
    let (mut program, told) = start(&daemon, "forward.py");
    let sizes = sizes(&told);
    let pid = program.pid_text();
    let answer = daemon.json(&["owners", "--pid", &pid]);
    for name in ["kv_cache", "program", "private_pools"] {
        assert_eq!(
            category(&answer, name),
            bytes_of(&told[name], &sizes),
            "{name}"
        );
    }
    // All blocks of PyTorch's own snapshot are in a category, each once.
    let all = (sizes.len() as u64, sizes.values().sum());
    let number = |key: &str| answer["devices"][0]["blocks"][key].as_u64().unwrap();
    assert_eq!((number("count"), number("bytes")), all);

    program.tell("backward");
    let freed = program.hear();
    let (count, bytes) = bytes_of(&freed["freed"], &sizes);
    let (kept, kept_bytes) = bytes_of(&told["kept_by_function"], &sizes);
    assert!(count > 20, "{freed}");
    // An attribute of a function's context goes with the graph, and not with the backward pass.
    assert_eq!(
        category(&answer, "activations"),
        (count + kept, bytes + kept_bytes)
    );
    // Compiled frames get their names a moment later.
    let after = until(LONG, "the workspace of the new stream", || {
        let after = daemon.json(&["owners", "--pid", &pid]);
        let of_device = after["devices"][0]["categories"].as_array().unwrap();
        let mut names = of_device.iter().map(|one| &one["category"]);
        names.any(|name| name == "workspaces").then_some(after)
    });
    assert_eq!(category(&after, "activations"), (kept, kept_bytes));
    let (count, bytes) = category(&after, "workspaces");
    assert!(count > 0 && bytes > 1 << 20, "{:#}", after["devices"]);
    // What the program took from the driver itself.
    assert_eq!(category(&after, "beside_pool"), (1, 3 << 20));
    let mut rows = after["owners"].as_array().unwrap().iter();
    let beside = rows.find(|row| row["category"] == "beside_pool").unwrap();
    let place = text(beside, "place");
    assert!(place.ends_with(" in beside_the_pool"), "{place}");
    assert!(place.contains("forward.py:"), "{place}");
}

#[test]
fn rules_are_tried_before_the_set_and_refused_where_they_are_none() {
    let daemon = Daemon::start();
    let (program, told) = start(&daemon, "forward.py");
    let pid = program.pid_text();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let set = |text: &str| std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    set("version = 1\nname = \"mine\"\n[[rule]]\ncategory = \"replay\"\nholder = \"history\"\n");
    let answer = daemon.json(&["owners", "--pid", &pid, "--rules", path]);
    assert_eq!(category(&answer, "replay").0, 5, "{told}");
    let row = answer["owners"].as_array().unwrap().iter();
    let row = row
        .into_iter()
        .find(|row| row["category"] == "replay")
        .unwrap();
    let address = format!("{:#x}", row["address"].as_u64().unwrap());
    let ask = [
        "owners",
        "--pid",
        &pid,
        "--rules",
        path,
        "--explain",
        &address,
    ];
    let said = daemon.ctl(&ask);
    let why = said.text();
    assert!(
        why.contains("rule 1 of the set mine (replay) is true"),
        "{why}"
    );
    set("version = 1\nname = \"mine\"\n[[rule]]\ncategory = \"replay\"\nholder = \"(\"\n");
    let refused = daemon.ctl(&["owners", "--pid", &pid, "--rules", path]);
    refused.refused(2, &["rule 1 (replay): holder"]);
    let missing = daemon.ctl(&["owners", "--pid", &pid, "--rules", "/nowhere/mine.toml"]);
    missing.refused(2, &["cannot read /nowhere/mine.toml"]);
    // torchtitan's categories look at stacks alone, and nothing has one here.
    let answer = daemon.json(&["owners", "--pid", &pid, "--rule-set", "torchtitan"]);
    let all = sizes(&told).len() as u64;
    assert_eq!(category(&answer, "Unknown").0, all);
    assert_eq!(answer["objects"], 0);
}

#[test]
fn without_python_rules_still_answer() {
    let daemon = Daemon::start();
    let mut calls = Calls::start(&[]);
    daemon.attach(calls.pid(), "segments");
    calls.call("cudaSetDevice 0");
    calls.call("cudaMalloc first 3145728");
    let answer = daemon.json(&["owners", "--pid", &calls.pid().to_string()]);
    assert_eq!(category(&answer, "native"), (1, 3 << 20));
    let notes = answer["coverage"].as_array().unwrap().iter();
    let mut codes = notes.map(|note| note["code"].as_str().unwrap());
    assert!(codes.any(|code| code == "objects_not_read"), "{answer:#}");
}

/// Labels, as words.
fn words(value: &Value) -> Vec<String> {
    let words = value.as_array().unwrap().iter();
    words
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn labels_of_the_program_are_on_the_blocks_that_it_labels() {
    let daemon = Daemon::start();
    let command = sim_of(Device::Cuda).python_with_package("owners/labelled.py");
    let mut program = Program::start("labelled.py", command);
    program.hear();
    let pid = program.pid_text();
    daemon.json(&["attach", "--pid", &pid]);
    let told = program.ask("go");
    let sizes = sizes(&told);
    // By the program: the blocks of each combination of labels, and of each label.
    let mut expected: BTreeMap<Vec<String>, (u64, u64)> = BTreeMap::new();
    let mut by_label: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for one in told["told"].as_array().unwrap() {
        let size = sizes[&one["address"].as_u64().unwrap()];
        let labels = words(&one["labels"]);
        for label in &labels {
            let sum = by_label.entry(label.clone()).or_default();
            (sum.0, sum.1) = (sum.0 + 1, sum.1 + size);
        }
        let sum = expected.entry(labels).or_default();
        (sum.0, sum.1) = (sum.0 + 1, sum.1 + size);
    }
    assert!(expected.len() > 10, "{expected:?}");
    let amount = |one: &Value| {
        let number = |key: &str| one["blocks"][key].as_u64().unwrap();
        (number("count"), number("bytes"))
    };
    let answer = daemon.json(&["owners", "--pid", &pid]);
    let mut rows: BTreeMap<Vec<String>, (u64, u64)> = BTreeMap::new();
    for row in answer["owners"].as_array().unwrap() {
        let sum = rows.entry(words(&row["labels"])).or_default();
        let (count, bytes) = amount(row);
        (sum.0, sum.1) = (sum.0 + count, sum.1 + bytes);
    }
    assert_eq!(rows, expected);
    let sums = answer["devices"][0]["labels"].as_array().unwrap().iter();
    let sums: BTreeMap<String, (u64, u64)> = sums
        .map(|one| (text(one, "category"), amount(one)))
        .collect();
    assert_eq!(sums, by_label);

    // In words, in msMemScope's, and by a rule of one's own.
    let said = daemon.ctl(&["owners", "--pid", &pid]);
    let said = said.text();
    assert!(
        said.contains("LABEL") && said.contains("by address"),
        "{said}"
    );
    let theirs = daemon.json(&["owners", "--pid", &pid, "--rule-set", "msmemscope"]);
    let blocks = expected[&["a", "b", "c"].map(str::to_owned).to_vec()];
    assert_eq!(category(&theirs, "PTA@a@b@c"), blocks);
    // Two parameters of a model were made in `a`.
    assert_eq!(category(&theirs, "PTA@weight@a").0, 2);
    let rules = tempfile::NamedTempFile::new().unwrap();
    let text = "version = 1\nname = 'mine'\n[[rule]]\ncategory = 'late'\nlabel = '^viewed$'\n";
    std::fs::write(rules.path(), text).unwrap();
    let path = rules.path().to_str().unwrap();
    let mine = daemon.json(&["owners", "--pid", &pid, "--rules", path]);
    assert_eq!(category(&mine, "late"), by_label["viewed"]);
    let address = told["told"].as_array().unwrap();
    let address = address
        .iter()
        .find(|one| one["labels"][0] == "viewed")
        .unwrap();
    let address = format!("{:#x}", address["address"].as_u64().unwrap());
    let why = daemon.ctl(&["owners", "--pid", &pid, "--explain", &address]);
    let why = why.text();
    assert!(why.contains("the program labels it viewed"), "{why}");
    // They are no moments.
    let marks = daemon.json(&["marks", "--pid", &pid]).to_string();
    assert!(!marks.contains("memscope:owner"), "{marks}");
}

/// What has several of these modules, each told as its model and the module's parts; `None` if that is nothing, or one of them is none.
fn in_common(modules: &Value) -> Option<(String, Vec<String>)> {
    let modules = modules.as_array().unwrap().iter();
    let parts = |module: &Value| {
        let [model, name] = &module.as_array()?[..] else {
            panic!("{module} is no module");
        };
        let parts = name.as_str()?.split('.').filter(|part| !part.is_empty());
        Some((
            model.as_str()?.to_owned(),
            parts.map(str::to_owned).collect(),
        ))
    };
    let all: Option<Vec<(String, Vec<String>)>> = modules.map(parts).collect();
    all?.into_iter().reduce(|one, two| {
        let same = one.1.iter().zip(&two.1).take_while(|(one, two)| one == two);
        let model = if one.0 == two.0 {
            one.0.clone()
        } else {
            String::new()
        };
        (model, same.map(|(part, _)| part.clone()).collect())
    })
}

/// In which module the graph has saved a block, against PyTorch's own numbers of the nodes and hooks that note where modules begin and end. What
/// is said is the module itself or what has it; where a module consists of one operation with a parameter, it is nearly always the module itself
/// (what is left in a node's memory from before may look like a tensor that it saved).
#[test]
fn activations_are_told_by_the_module_that_made_them() {
    let daemon = Daemon::start();
    let (program, told) = start(&daemon, "made_in.py");
    let pid = program.pid_text();
    let saved = told["saved"].as_object().unwrap();
    let sizes = sizes(&told);
    let addresses = saved.keys().map(|address| address.parse::<u64>().unwrap());
    let asked: Vec<String> = addresses
        .filter(|address| sizes.contains_key(address))
        .map(|address| format!("--explain={address:#x}"))
        .collect();
    let mut question = vec!["owners", "--pid", &pid];
    question.extend(asked.iter().map(String::as_str));
    let answer = daemon.json(&question);
    let exact = told["exact"].as_array().unwrap();
    let (mut same, mut of_one, mut of_one_same) = (0, 0, 0);
    let explained = answer["explained"].as_array().unwrap();
    assert_eq!(explained.len(), asked.len());
    for one in explained {
        let owner = &one["owner"];
        if owner["category"] != "activations" {
            // The graph has saved a buffer.
            assert_eq!(owner["category"], "buffers", "{one}");
            continue;
        }
        let model = text(owner, "model").replace("__main__.", "");
        let module = text(owner, "module");
        let said: Vec<&str> = module.split('.').filter(|part| !part.is_empty()).collect();
        let address = one["address"].as_u64().unwrap();
        let expected = in_common(&saved[&address.to_string()]);
        let Some((of, parts)) = expected else {
            // It is saved outside of all modules.
            assert!(said.is_empty(), "{one}");
            continue;
        };
        assert!(model == of || model.is_empty(), "{of}: {one}");
        assert!(parts.iter().take(said.len()).eq(&said), "{parts:?}: {one}");
        same += usize::from(said.len() == parts.len());
        if exact.contains(&Value::from(address)) {
            of_one += 1;
            of_one_same += usize::from(said.iter().eq(&parts));
        }
    }
    assert!(
        of_one > 80 && of_one_same * 10 >= of_one * 9,
        "{of_one_same} of {of_one}"
    );
    assert!(same > 150, "{same}");

    // The rows, the part of a model, and the sums say the same.
    let part = daemon.json(&["owners", "--pid", &pid, "--below", "layers.4.mlp"]);
    let saved: Vec<&Value> = part["owners"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["category"] == "activations")
        .collect();
    assert!(saved.len() >= 2, "{part:#}");
    let sum: u64 = saved
        .iter()
        .map(|row| row["blocks"]["bytes"].as_u64().unwrap())
        .sum();
    let mut of_part = explained
        .iter()
        .filter(|one| text(&one["owner"], "module").starts_with("layers.4.mlp"));
    assert_eq!(
        sum,
        of_part
            .by_ref()
            .map(|one| one["size_bytes"].as_u64().unwrap())
            .sum::<u64>()
    );
    let tree = daemon.ctl(&["owners", "--pid", &pid, "--tree"]);
    assert!(tree.text().contains("ACTIVATIONS"), "{tree}");
    let rows = daemon.ctl(&["owners", "--pid", &pid, "--below", "layers.4.mlp"]);
    assert!(
        rows.text().contains("__main__.model.layers.4.mlp.3"),
        "{rows}"
    );
    let relu = explained
        .iter()
        .find(|one| one["owner"]["kind"] == "ReluBackward0");
    let relu = relu.unwrap()["why"].to_string();
    assert!(
        relu.contains("the graph has saved it in __main__.model.layers."),
        "{relu}"
    );
}

/// What has been freed since a moment of a training step is known by the threads that allocated and freed it.
#[test]
fn of_an_earlier_moment_activations_and_gradients_are_what_pytorch_says() {
    let daemon = Daemon::start();
    let (mut program, _) = start(&daemon, "passes.py");
    let pid = program.pid_text();
    // While the program waits nothing happens, so any time there is the same moment.
    let moments = ["forward", "inside", "further", "backward", "cleared"].map(|_| {
        program.tell("go on");
        let told = program.hear();
        let snapshot = daemon.json(&["snapshot", "--pid", &pid, "--format", "json"]);
        (
            snapshot["header"]["as_of"].to_string().replace('"', ""),
            told,
        )
    });
    let answers = moments.clone().map(|(as_of, told)| {
        let answer = daemon.json(&["owners", "--pid", &pid, "--at", &as_of]);
        let sizes = sizes(&told);
        let all = &answer["devices"][0]["blocks"];
        assert_eq!(all["count"], sizes.len() as u64);
        assert_eq!(all["bytes"], sizes.values().sum::<u64>());
        assert_eq!(
            category(&answer, "weights"),
            bytes_of(&told["weights"], &sizes)
        );
        answer
    });
    let of = |moment: usize, name: &str| category(&answers[moment], name);
    let has = |moment: usize, name: &str| {
        let mut all = answers[moment]["devices"][0]["categories"]
            .as_array()
            .unwrap()
            .iter();
        all.any(|one| one["category"] == name)
    };
    let [
        (at_forward, forward),
        inside @ ..,
        (_, backward),
        (_, cleared),
    ] = &moments;
    let before = sizes(forward);
    let after = sizes(backward);

    // After the forward pass: activations are what the backward pass then freed. Of what stayed, addresses are the same, unless they
    // were given to something new.
    let is_new = |address: &u64| {
        let is_in = |list: &Value| list.as_array().unwrap().contains(&Value::from(*address));
        is_in(&backward["gradients"]) || is_in(&backward["norms"])
    };
    let freed = before
        .keys()
        .filter(|address| !after.contains_key(address) || is_new(address));
    let freed = Value::from(freed.copied().collect::<Vec<u64>>());
    let activations = bytes_of(&freed, &before);
    assert!(activations.0 > 20, "{freed}");
    assert_eq!(of(0, "activations"), activations);
    assert!(!has(0, "gradients"), "{:#}", answers[0]["devices"]);
    let address = format!("{:#x}", freed[0].as_u64().unwrap());
    let explain = [
        "owners",
        "--pid",
        &pid,
        "--at",
        at_forward,
        "--explain",
        &address,
    ];
    let said = daemon.ctl(&explain);
    let words = "the program allocated it, and the backward pass freed it";
    assert!(said.text().contains(words), "{said}");

    // In the middle of the backward pass: some of both, and what a checkpoint computes again.
    for (moment, (_, told)) in (1..).zip(inside) {
        assert!(of(moment, "activations") < of(moment - 1, "activations"));
        assert!(of(moment, "recomputed").0 > 0);
        assert!(of(moment, "gradients") >= bytes_of(&told["gradients"], &sizes(told)));
        assert!(of(moment, "gradients") < of(3, "gradients"));
    }

    // After it: nothing is saved any more, and all gradients are there. What a hook keeps is none of them.
    assert_eq!(of(3, "gradients"), bytes_of(&backward["gradients"], &after));
    assert!(
        !has(3, "activations") && !has(3, "recomputed"),
        "{:#}",
        answers[3]["devices"]
    );
    let (loss, _) = bytes_of(&backward["loss"], &after);
    let (norms, _) = bytes_of(&backward["norms"], &after);
    assert_eq!(of(3, "freed_since").0, loss + norms);

    // Side by side they are the same, in the order in which they are asked for.
    let two = [
        "owners",
        "--pid",
        &pid,
        "--at",
        &moments[3].0,
        "--at",
        at_forward,
    ];
    let lines = daemon.ask(&[&["--json"], &two[..]].concat()).ask();
    let lines = lines
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    assert_eq!(lines.len(), 2);
    for (line, moment) in lines.iter().zip([3, 0]) {
        assert_eq!(line["devices"], answers[moment]["devices"]);
    }
    let said = daemon.ctl(&two);
    let (sums, changes) = said.text().split_once("\nFrom ").unwrap();
    assert!(
        sums.contains("CHANGE") && sums.contains("gradients"),
        "{said}"
    );
    assert!(changes.contains("passes.py:"), "{said}");
    daemon
        .ctl(&[&two[..], &["--tree"]].concat())
        .refused(2, &["for one moment"]);

    // In the end all of that is gone.
    for name in ["activations", "gradients", "recomputed", "freed_since"] {
        assert!(!has(4, name), "{cleared}");
    }
    program.tell("end");
    program.wait();
}

/// At the peak: all blocks that PyTorch had then, each in one row; what is still there is for what objects say, and what has been freed since is
/// told by the line that allocated it.
#[test]
fn at_the_peak_all_of_pytorchs_blocks_are_for_something() {
    let daemon = Daemon::start();
    let (mut program, _) = start(&daemon, "peak.py");
    let pid = program.pid_text();
    program.tell("go on");
    let told = program.hear();
    let sizes = sizes(&told);
    let all: u64 = sizes.values().sum();

    let stats = daemon.stats(program.pid());
    assert_eq!(stats["devices"][0]["peak_allocated_bytes"], all);
    let event = stats["devices"][0]["peak_event"].as_u64().unwrap();
    // The picture of that moment is PyTorch's own.
    let words = ["snapshot", "--pid", &pid, "--format", "json", "--at"];
    let [peak, by_event] =
        ["peak:0", &format!("event:{event}")].map(|at| daemon.json(&[&words[..], &[at]].concat()));
    assert_eq!(peak["segments"], by_event["segments"]);
    let segments = peak["segments"].as_array().unwrap().iter();
    let blocks = segments.flat_map(|segment| segment["blocks"].as_array().unwrap());
    let active = blocks.filter(|block| block["state"] == "active");
    let number = |block: &Value, key: &str| block[key].as_u64().unwrap();
    let picture: HashMap<u64, u64> = active
        .map(|block| (number(block, "address"), number(block, "size_bytes")))
        .collect();
    assert_eq!(picture, sizes);

    let answer = daemon.json(&["owners", "--pid", &pid, "--at", "peak"]);
    let sums = &answer["devices"][0]["blocks"];
    assert_eq!(sums["count"], sizes.len() as u64);
    assert_eq!(sums["bytes"], all);
    assert_eq!(answer["as_of"], peak["header"]["as_of"]);
    assert_eq!(
        category(&answer, "weights"),
        bytes_of(&told["parameters"], &sizes)
    );
    let rows = || answer["owners"].as_array().unwrap().iter();
    let kept = rows().find(|row| row["owner"] == "__main__.kept").unwrap();
    assert_eq!(
        kept["blocks"]["bytes"],
        sizes[&told["kept"].as_u64().unwrap()]
    );
    let freed: Vec<_> = rows()
        .filter(|row| row["category"] == "freed_since")
        .collect();
    let line = workload_line("owners/peak.py", "for number in range(5)]");
    let place = format!("peak.py:{line} ");
    let large = freed.iter().find(|row| text(row, "place").contains(&place));
    let large = large.unwrap_or_else(|| panic!("{freed:#?}"));
    assert_eq!(large["blocks"]["count"], 5);
    let bytes: u64 = (0..5_u64)
        .map(|n| ((100_000 + n) * 4).next_multiple_of(512))
        .sum();
    assert_eq!(large["blocks"]["bytes"], bytes);
    // Another block is at that address by now, if any.
    let address = large["address"].as_u64().unwrap();
    let explain = format!("{address:#x}");
    let said = daemon.ctl(&[
        "owners",
        "--pid",
        &pid,
        "--at",
        "peak",
        "--explain",
        &explain,
    ]);
    assert!(said.text().contains("freed since"), "{said}");

    // Now there is nothing of it.
    let now = daemon.json(&["owners", "--pid", &pid]);
    let mut categories = now["devices"][0]["categories"].as_array().unwrap().iter();
    assert!(
        categories.all(|one| one["category"] != "freed_since"),
        "{now:#}"
    );

    let refused = daemon.ctl(&["owners", "--pid", &pid, "--at", "peak:3"]);
    refused.refused(2, &["no memory on device 3", "device 0"]);

    // Of a process that has ended rules still say something by stacks.
    program.tell("end");
    program.wait();
    until(LONG, "the end is seen", || {
        daemon
            .process(program.pid())
            .filter(|one| one["state"] != "attached")
    });
    daemon
        .ctl(&["owners", "--pid", &pid])
        .refused(4, &["ended"]);
    let ended = daemon.json(&["owners", "--pid", &pid, "--at", "peak"]);
    assert_eq!(ended["devices"][0]["blocks"]["bytes"], all);
    let mut codes = ended["coverage"].as_array().unwrap().iter();
    assert!(
        codes.any(|note| note["code"] == "objects_not_read"),
        "{ended:#}"
    );
    let unknown = category(&ended, "unknown");
    assert!(unknown.0 > 0, "{ended:#}");
}

/// The names of a category's rows, of all names of one block, and what each is for the optimizer: all of them that `owner` has, and those
/// that are sure, with those of other owners.
fn told_names(answer: &Value, category: &str, owner: &str) -> [BTreeSet<(String, String)>; 2] {
    let rows = answer["owners"].as_array().unwrap().iter();
    let [mut all, mut sure] = [BTreeSet::new(), BTreeSet::new()];
    for row in rows.filter(|row| row["category"] == category && row["evidence"] == "object") {
        let is_sure = row["unsure"]["count"] == 0;
        let also = row["also"].as_array().unwrap().iter();
        for name in std::iter::once(&row["name"]).chain(also) {
            let name = name.as_str().unwrap().replace("_fsdp_wrapped_module.", "");
            let name = (name, text(row, "key"));
            if row["owner"] != owner {
                sure.insert((text(row, "owner"), name.0));
                continue;
            }
            if is_sure {
                sure.insert(name.clone());
            }
            all.insert(name);
        }
    }
    [all, sure]
}

/// Whoever asks does so at any moment of a step. Libraries that divide a model have other tensors in its modules then, and the frames of
/// whatever runs just now have the modules as well.
#[test]
fn names_are_the_same_at_any_moment_of_a_step() {
    let mut wrong = Vec::new();
    for how in ["plain", "fsdp2", "fsdp1", "fsdp1_orig"] {
        let daemon = Daemon::start();
        let mut command = sim_of(Device::Cuda).python("owners/in_step.py");
        command.arg(how);
        let (program, told) = started(&daemon, "in_step.py", command);
        let weights = told["weights"].as_array().unwrap().iter();
        let weights: BTreeSet<_> = weights
            .map(|name| (name.as_str().unwrap().to_owned(), String::new()))
            .collect();
        let state = told["state"].as_array().unwrap().iter();
        let state: BTreeSet<_> = state
            .map(|one| [0, 1].map(|at| one[at].as_str().unwrap().to_owned()))
            .map(|[name, key]| (name, key))
            .collect();
        assert!(state.len() > 10, "{told}");
        for asked in 0..6 {
            let answer = daemon.json(&["owners", "--pid", &program.pid_text()]);
            let mut found = String::new();
            for (category, owner, expected) in [
                ("weights", "main.<locals>.model", &weights),
                ("optimizer_state", "main.<locals>.optimizer", &state),
            ] {
                let [all, sure] = told_names(&answer, category, owner);
                let other: Vec<_> = sure.difference(expected).collect();
                let missing: Vec<_> = expected.difference(&all).collect();
                if !other.is_empty() || !missing.is_empty() {
                    found += &format!(" {category}: {other:?}, missing {missing:?}");
                }
            }
            if !found.is_empty() {
                wrong.push(format!("{how}, answer {asked}:{found}"));
            }
        }
    }
    // A thread that is stopped in the middle of a call for longer than a reading waits hides its variables.
    assert!(wrong.len() <= 1, "{}", wrong.join("\n"));
}

#[test]
fn each_tensor_of_training_libraries_is_named_as_they_name_it() {
    let daemon = Daemon::start();
    let command = sim_of(Device::Cuda).python_with_transformers("owners/frameworks.py");
    let (program, told) = started(&daemon, "frameworks.py", command);
    assert_eq!(told["left_out"], serde_json::json!({}));
    let answer = daemon.json(&["owners", "--pid", &program.pid_text()]);
    named_as_pytorch_names_it(&answer, &told);
}

/// Answers are bounded whatever a program keeps: of a long way the beginning and the end are told, and of uses as many as have room.
#[test]
fn what_is_deep_and_what_is_much_is_answered() {
    let daemon = Daemon::start();
    let program_of = |how: &str| {
        let mut command = sim_of(Device::Cuda).python("owners/deep.py");
        command.arg(how);
        started(&daemon, how, command)
    };
    let (program, told) = program_of("deep");
    let holders = daemon.json(&[
        "holders",
        "--timeout",
        "120",
        "--pid",
        &program.pid_text(),
        "--limit",
        "0",
    ]);
    let rows = holders["holders"].as_array().unwrap();
    let blocks = |of: &dyn Fn(&str) -> bool| -> u64 {
        let rows = rows.iter().filter(|row| of(row["path"].as_str().unwrap()));
        rows.map(|row| row["blocks"]["count"].as_u64().unwrap())
            .sum()
    };
    let of_list = |path: &str| path.starts_with("__main__.head.");
    assert_eq!(blocks(&of_list), told["list"].as_u64().unwrap());
    // Those that are further away than a way is told are one row.
    let deep = rows
        .iter()
        .filter(|row| of_list(row["path"].as_str().unwrap()));
    let deep: Vec<&Value> = deep
        .filter(|row| row["path"].as_str().unwrap().contains('…'))
        .collect();
    assert_eq!(deep.len(), 1, "{deep:#?}");
    assert!(deep[0]["blocks"]["count"].as_u64().unwrap() > 1_000);
    let of_graph = |path: &str| path.starts_with("__main__.hidden.grad_fn");
    let graph = told["graph"].as_u64().unwrap();
    let found = blocks(&of_graph);
    let paths: Vec<&Value> = rows.iter().map(|row| &row["path"]).collect();
    assert!(
        (graph - 2..=graph + 1).contains(&found),
        "{found} of {paths:?}"
    );
    let longest = rows.iter().map(|row| row["way"].as_array().unwrap().len());
    assert!(longest.max().unwrap() <= 256);
    // The names of all uses would take more bytes than an answer of a reader may have.
    let (program, _) = program_of("much");
    // Few of its tensors have a gradient or a graph, and these are found among the others.
    let holders = daemon.json(&["holders", "--timeout", "120", "--pid", &program.pid_text()]);
    let codes: Vec<&str> = holders["coverage"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note["code"].as_str().unwrap())
        .collect();
    assert!(!codes.contains(&"graphs_unknown"), "{codes:?}");
    let owners = daemon.json(&["owners", "--timeout", "120", "--pid", &program.pid_text()]);
    let notes = owners["coverage"].as_array().unwrap();
    let codes: Vec<&str> = notes
        .iter()
        .map(|note| note["code"].as_str().unwrap())
        .collect();
    assert!(codes.contains(&"uses_left_out"), "{codes:?}");
    assert!(!codes.contains(&"objects_not_read"), "{codes:?}");
    let (count, _) = category(&owners, "weights");
    assert!(count > 5_000, "{count}");
}
