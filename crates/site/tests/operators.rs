//! The operators of the PyTorch that the tests use: every symbol is understood, PyTorch's own list of schemas says the
//! same of it, and the C++ compiler passes the types of the arguments as it is assumed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_arch = "x86_64")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use memscope_site::elf::{Elf, FileBytes};
use memscope_site::operators::schema::{Holds, Returns, Term};
use memscope_site::operators::signature::{self, Place};
use memscope_site::operators::{self, Access, Operator, Unusable};
use memscope_site::place::Emulation;
use memscope_units::demangle;

/// The folder of the PyTorch that `cargo xtask setup` has installed.
fn torch() -> PathBuf {
    memscope_tests::sim().site_packages().join("torch")
}

fn library() -> FileBytes {
    let path = torch().join("lib/libtorch_cpu.so");
    FileBytes::new(std::fs::File::open(path).unwrap()).unwrap()
}

/// The symbols of all functions `at::_ops::NAME::call`, found by nothing but their demangled names.
fn symbols(elf: &Elf<'_, FileBytes>) -> Vec<String> {
    let exported = elf.exported_symbols().unwrap().unwrap();
    let operators = exported.defined_like(|name| name.starts_with(b"_ZN2at4_ops"));
    operators
        .map(|symbol| String::from_utf8(symbol.name.to_vec()).unwrap())
        .filter(|symbol| {
            let name = demangle(symbol, 8192);
            let name = name.strip_prefix("at::_ops::").unwrap();
            name.split_once("::")
                .is_some_and(|(_, rest)| rest.starts_with("call("))
        })
        .collect()
}

/// What PyTorch itself says of an operator.
struct Told {
    name: String,
    arguments: Vec<Term>,
    results: Vec<Term>,
    /// The types of the results.
    types: Vec<String>,
}

/// Prints the name of each schema that is registered, and for each argument and result its type, and whether it is
/// aliased and written.
const TELL: &str = r#"
import torch
def terms(of):
    # As text, a number that may be symbolic is an int; only the kind of its type differs.
    kind = lambda one: str(one).replace(' ', '') if 'Tensor' in str(one) else one.kind()
    said = ((kind(one.real_type), one.alias_info) for one in of)
    return ' '.join(f'{kind}:{int(info is not None)}{int(bool(info and info.is_write))}' for kind, info in said)
for one in torch._C._jit_get_all_schemas():
    if one.name.startswith('aten::'):
        name = one.name.removeprefix('aten::') + ('.' + one.overload_name if one.overload_name else '')
        print(name, terms(one.arguments), terms(one.returns), sep='\t')
"#;

/// The schemas that PyTorch itself lists, by the structure in `at::_ops` that would stand for them. Other operators than
/// those with a structure are among them.
fn told() -> BTreeMap<String, Vec<Told>> {
    let mut python = memscope_tests::sim().script(std::path::Path::new("-c"));
    let output = python.arg(TELL).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let term = |said: &str| -> (String, Term) {
        let (kind, flags) = said.rsplit_once(':').unwrap();
        let holds = match kind {
            "Tensor" => Some(Holds::One),
            "Optional[Tensor]" => Some(Holds::Maybe),
            "List[Tensor]" => Some(Holds::List),
            "List[Optional[Tensor]]" => Some(Holds::MaybeList),
            _ => None,
        };
        let term = Term {
            holds,
            aliased: holds.is_some() && flags.starts_with('1'),
            written: holds.is_some() && flags.ends_with('1'),
        };
        (kind.to_owned(), term)
    };
    let mut all: BTreeMap<String, Vec<Told>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, arguments, results] = fields[..] else {
            // What PyTorch prints while it is imported.
            continue;
        };
        let (types, results) = results.split_whitespace().map(term).unzip();
        all.entry(name.replace('.', "_")).or_default().push(Told {
            name: name.to_owned(),
            arguments: arguments
                .split_whitespace()
                .map(|said| term(said).1)
                .collect(),
            results,
            types,
        });
    }
    all
}

#[test]
fn every_symbol_has_the_tensors_that_pytorch_names() {
    let file = library();
    let elf = Elf::read(&file).unwrap();
    let told = told();
    let symbols = symbols(&elf);
    let (mut arguments, mut tensors, mut alone) = (0, 0, 0);
    for symbol in &symbols {
        let structure = signature::structure(symbol.as_bytes()).unwrap();
        let by_value = signature::of_symbol(symbol, false)
            .unwrap_or_else(|why| panic!("{structure}: {why} in {symbol}"));
        let by_address = signature::of_symbol(symbol, true).unwrap();
        assert_eq!(by_value.len(), by_address.len());
        let holds: Vec<Option<Holds>> = by_value.iter().map(|one| Some((*one)?.holds)).collect();
        let same = |one: &&Told| {
            let terms = one.arguments.iter();
            let mutable = by_value.iter().zip(&one.arguments).all(|(mine, term)| {
                // Only a single tensor shows in C++ that it is written to.
                mine.is_none_or(|mine| !mine.mutable || term.written)
            });
            mutable && terms.map(|term| term.holds).eq(holds.iter().copied())
        };
        let candidates = told
            .get(structure)
            .unwrap_or_else(|| panic!("no {structure}"));
        assert!(candidates.iter().any(|one| same(&one)), "{symbol}");
        alone += usize::from(candidates.len() == 1);
        arguments += holds.len();
        tensors += holds.iter().flatten().count();
    }
    println!(
        "{} symbols with {arguments} arguments, of which {tensors} hold tensors; {alone} have one schema only",
        symbols.len()
    );
    assert!(symbols.len() > 3000, "{}", symbols.len());
    assert!(
        symbols.len() - alone <= 10,
        "{alone} of {} can be told apart",
        symbols.len()
    );
}

#[test]
fn every_operator_of_pytorch_is_understood() {
    let file = library();
    let elf = Elf::read(&file).unwrap();
    let began = std::time::Instant::now();
    let found = operators::find(&elf, Emulation::of_this_kernel()).unwrap();
    let took = began.elapsed();
    let mut why: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (structure, reason) in &found.refused {
        why.entry(reason.to_string()).or_default().push(structure);
    }
    let ends: usize = found.usable.iter().map(|one| one.ends.len()).sum();
    println!(
        "{} usable, {ends} ends, {} refused, {took:?}: {why:#?}",
        found.usable.len(),
        found.refused.len()
    );
    assert_eq!(
        found.usable.len() + found.refused.len(),
        symbols(&elf).len()
    );
    // Two are left through a table of jumps, and one has a name with which those of others end.
    assert!(found.refused.len() <= 8, "{why:#?}");
    let known = |why: &Unusable| matches!(why, Unusable::Ends(_) | Unusable::Disagree);
    assert!(found.refused.iter().all(|(_, why)| known(why)), "{why:#?}");
    let named =
        |name: &str| -> &Operator { found.usable.iter().find(|one| one.name == name).unwrap() };
    let accesses =
        |name: &str| -> Vec<Access> { named(name).operands.iter().map(|one| one.access).collect() };
    assert_eq!(accesses("add.Tensor"), [Access::Read, Access::Read]);
    assert_eq!(accesses("add_.Tensor"), [Access::Write, Access::Read]);
    assert_eq!(
        accesses("mm.out"),
        [Access::Read, Access::Read, Access::Write]
    );
    assert_eq!(accesses("view"), []);
    assert!(named("mm").fills_result);
    assert!(!named("view").fills_result && !named("empty.memory_format").fills_result);
    assert_eq!(
        accesses("_foreach_add_.List"),
        [Access::Write, Access::Read]
    );
    assert_eq!(accesses("cat"), [Access::Read]);
}

/// How an operator returns what PyTorch says that it returns.
fn returns(told: &Told) -> Returns {
    let fresh = |term: &Term| term.holds == Some(Holds::One) && !term.written;
    let numbers = [
        "BoolType",
        "IntType",
        "FloatType",
        "ScalarTypeType",
        "QSchemeType",
    ];
    match told.results.as_slice() {
        [] => Returns::Register,
        all if all.iter().all(fresh) => Returns::Tensors(u8::try_from(all.len()).unwrap()),
        [one] if one.holds == Some(Holds::One) => Returns::Register,
        [one] if one.holds == Some(Holds::List) => Returns::Vector,
        [_] if numbers.contains(&told.types[0].as_str()) => Returns::Register,
        _ => Returns::Memory,
    }
}

#[test]
fn what_operators_read_write_and_return_is_what_pytorch_says() {
    let file = library();
    let elf = Elf::read(&file).unwrap();
    let found = operators::find(&elf, Emulation::of_this_kernel()).unwrap();
    let told = told();
    let (mut reads, mut writes, mut wrong) = (0, 0, Vec::new());
    for operator in &found.usable {
        let theirs = told.get(&operator.name.replace('.', "_"));
        let mut theirs = theirs.into_iter().flatten();
        let theirs = theirs
            .find(|one| one.name == operator.name)
            .unwrap_or_else(|| panic!("no {}", operator.name));
        let mine: Vec<(Holds, Access)> = operator
            .operands
            .iter()
            .map(|one| (one.tensors.holds, one.access))
            .collect();
        let terms = theirs.arguments.iter();
        let terms: Vec<(Holds, Access)> = terms
            .filter(|term| term.written || !term.aliased)
            .filter_map(|term| {
                let access = [Access::Read, Access::Write][usize::from(term.written)];
                Some((term.holds?, access))
            })
            .collect();
        let view = theirs.results.iter().any(|one| one.aliased && !one.written);
        if mine != terms || operator.returns != returns(theirs) || (view && operator.fills_result) {
            wrong.push(format!(
                "{}: {mine:?} {terms:?}, {:?} {:?}",
                operator.name, operator.returns, theirs.types
            ));
        }
        let written = mine.iter().filter(|one| one.1 == Access::Write).count();
        reads += mine.len() - written;
        writes += written;
    }
    println!(
        "{} operators read {reads} arguments and write {writes}",
        found.usable.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The types of the arguments of a function, as they stand in its demangled name.
fn types(name: &str) -> Vec<String> {
    let (_, arguments) = name.split_once("::call(").unwrap();
    let mut depth = 0;
    let mut types = vec![String::new()];
    for letter in arguments.strip_suffix(')').unwrap().chars() {
        depth += i32::from("<(".contains(letter)) - i32::from(">)".contains(letter));
        match letter {
            ',' if depth == 0 => types.push(String::new()),
            _ => types.last_mut().unwrap().push(letter),
        }
    }
    let trimmed = types.iter().map(|one| one.trim().to_owned());
    trimmed.filter(|one| !one.is_empty()).collect()
}

/// What the C++ compiler says of a type.
struct Facts {
    words: u8,
    trivial: bool,
}

/// Prints for each type its size, and whether the ABI lets it be copied without a call.
const MEASURE: &str = r#"
#include <ATen/core/TensorBody.h>
#include <ATen/core/Dimname.h>
#include <ATen/core/List.h>
#include <c10/core/Stream.h>
#include <c10/util/OptionalArrayRef.h>
#include <cstdio>
#include <type_traits>
template <class T> void say(const char *name) {
    bool trivial = std::is_trivially_copy_constructible_v<T> && std::is_trivially_move_constructible_v<T>
        && std::is_trivially_destructible_v<T>;
    printf("%s\t%zu\t%d\n", name, sizeof(T), trivial);
}
int main() {
"#;

/// Types of results that the caller provides memory for.
const BY_ADDRESS: [&str; 8] = [
    "at::Tensor",
    "c10::Scalar",
    "c10::SymInt",
    "c10::SymBool",
    "std::tuple<at::Tensor, at::Tensor>",
    "std::tuple<at::Tensor&, at::Tensor&>",
    "std::tuple<double, long>",
    "std::vector<at::Tensor>",
];

/// Asks the C++ compiler about types. It sees PyTorch's own headers.
fn measured(types: &BTreeSet<String>) -> BTreeMap<String, Facts> {
    let mut source = MEASURE.to_owned();
    for name in types {
        source.push_str(&format!("    say<{name}>(\"{name}\");\n"));
    }
    source.push('}');
    let include = format!("-I{}", torch().join("include").display());
    let arguments = [
        "-std=c++20",
        "-w",
        &include,
        "-Wl,--unresolved-symbols=ignore-all",
    ];
    let fixtures = common::Fixtures::new();
    let program = fixtures.program_of_cpp("measure", &source, &arguments);
    let output = std::process::Command::new(program).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let facts = text.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let facts = Facts {
            words: u8::try_from(fields[1].parse::<usize>().unwrap().div_ceil(8)).unwrap(),
            trivial: fields[2] == "1",
        };
        (fields[0].to_owned(), facts)
    });
    facts.collect()
}

/// Where the arguments are, by the rules of the ABI and what the compiler says of their types.
fn places(types: &[String], facts: &BTreeMap<String, Facts>, by_address: bool) -> Vec<Place> {
    let (mut integers, mut floats, mut stack) = (u8::from(by_address), 0, 0);
    let places = types.iter().map(|name| {
        // Integer registers, registers for floating-point numbers, and words of the stack.
        let (integer, float, words) = match facts.get(name) {
            _ if name == "double" => (0, 1, 1),
            _ if name == "std::optional<double>" => (1, 1, 2),
            Some(facts) if facts.trivial && facts.words > 2 => (99, 0, facts.words),
            Some(facts) if facts.trivial => (facts.words, 0, facts.words),
            // A reference, or what is passed by the address of a copy.
            _ => (1, 0, 1),
        };
        if integers + integer <= 6 && floats + float <= 8 {
            integers += integer;
            floats += float;
            return Place::Register(integers - integer);
        }
        stack += words;
        Place::Stack(stack - words)
    });
    places.collect()
}

#[test]
fn arguments_are_where_the_compiler_puts_their_types() {
    let file = library();
    let elf = Elf::read(&file).unwrap();
    let symbols = symbols(&elf);
    let lists: Vec<Vec<String>> = symbols
        .iter()
        .map(|symbol| types(&demangle(symbol, 8192)))
        .collect();
    let values = lists.iter().flatten().filter(|one| !one.ends_with('&'));
    let mut values: BTreeSet<String> = values.cloned().collect();
    values.extend(BY_ADDRESS.iter().map(|one| (*one).to_owned()));
    let facts = measured(&values);
    assert_eq!(facts.len(), values.len());
    // These two are what only the rules for floating-point numbers are for.
    assert!(facts["double"].words == 1 && facts["std::optional<double>"].words == 2);
    assert!(facts["std::optional<double>"].trivial);
    assert!(BY_ADDRESS.iter().all(|one| !facts[*one].trivial));
    assert_eq!(facts["at::Tensor"].words, 1);
    let mut on_stack = 0;
    for (symbol, types) in symbols.iter().zip(&lists) {
        for by_address in [false, true] {
            let mine = signature::of_symbol(symbol, by_address).unwrap();
            let theirs = places(types, &facts, by_address);
            assert_eq!(mine.len(), theirs.len());
            for (mine, theirs) in mine.iter().zip(&theirs) {
                let Some(mine) = mine else { continue };
                assert_eq!(mine.place, *theirs, "{symbol}, {by_address}");
                on_stack += usize::from(matches!(theirs, Place::Stack(_)) && by_address);
            }
        }
    }
    let most = lists.iter().map(Vec::len).max();
    println!(
        "{} types by value or of results; at most {most:?} arguments; {on_stack} tensors on the stack, if all results were returned by address",
        values.len()
    );
    assert!(on_stack > 0);
}
