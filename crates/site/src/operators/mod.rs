//! Finds PyTorch's operators in its library, and how each of them is called.
//!
//! Every operator has one exported function, `at::_ops::NAME::call`. Two texts in the library say what is needed of it:
//! its mangled name has the types of its arguments ([`signature`]), and the schema with which the library registers the
//! operator says what is returned, and what is written to ([`schema`]). An operator of which the two disagree, or whose
//! schema is missing, is refused. The places at which it ends are its `ret` instructions, because a probe on the return
//! itself is out of the question: an exception that passes through a frame whose return address was replaced ends the
//! process. An operator that is left in another way than by `ret` (a jump to another function) is refused, too.
//!
//! Owns: the search in one file. It is given the file's bytes, and looks at no process. Refuses: other machines than
//! x86-64, and guesses.

mod commas;
mod ends;
pub mod schema;
pub mod signature;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use object::elf::STT_FUNC;

use crate::elf::{Elf, ElfError, ReadAt};
use crate::place::{self, Code, Emulation, Machine, Wants};
use schema::{Returns, Schema};
use signature::{PREFIX, Tensors};

/// The most operators of one file that are read. PyTorch 2.11 has 3,194.
pub const MOST_OPERATORS: usize = 8192;
/// The longest function that is read, in bytes. Real ones have about a thousand.
const LONGEST_FUNCTION: u64 = 1 << 16;
/// The longest name in a schema that is read, in bytes. The longest one of PyTorch 2.11 has 62.
const LONGEST_OPERATOR: usize = 128;
/// The most schemas of one name that are compared.
const MOST_SCHEMAS: usize = 16;
/// The most bytes of the section with constants that are searched. PyTorch 2.11 has 18 MB there.
const MOST_CONSTANTS: u64 = 64 << 20;

/// What an operator does to the memory of an argument, as far as its schema tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// The schema says that the operator does not write to it, so it may only read it.
    Read,
    /// The schema says that the operator writes to it. It may read it as well.
    Write,
}

/// An argument that holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// How the argument holds tensors, and where it is when the function is entered.
    pub tensors: Tensors,
    /// What the operator does to the tensors.
    pub access: Access,
}

/// An operator of which everything is known that probes need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The name as PyTorch writes it, with the overload: `add.Tensor`.
    pub name: String,
    /// The symbol of the function.
    pub symbol: String,
    /// The offset in the file of the place for a probe at the entry. The stack pointer and the arguments are there still
    /// as they were when the function was entered.
    pub entry: u64,
    /// The offsets in the file of all `ret` instructions of the function.
    pub ends: Vec<u64>,
    /// The arguments with tensors that the operator reads or writes, in their order. An argument of which the operator
    /// may only make a view is not among them.
    pub operands: Vec<Operand>,
    /// What the operator returns, and how.
    pub returns: Returns,
    /// The operator returns new tensors with contents. This is false where a result may be a view of an argument, and
    /// for operators whose name begins with `empty` or `new_empty`, because nobody has written to what they return.
    pub fills_result: bool,
}

/// Why an operator is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// The library does not have the schema.
    #[error("its schema is not in the library")]
    NoSchema,
    /// No schema of this name has the arguments of the function.
    #[error("its schema and its C++ arguments differ")]
    Differs,
    /// There are several schemas of this name, and they say different things.
    #[error("its schemas disagree")]
    Disagree,
    /// An argument has a type of which it is not known how it is passed.
    #[error("its C++ arguments are not known ({0})")]
    Type(String),
    /// The function has the code of other operators as well, so it is not known which of them a call means.
    #[error("another operator has the same code")]
    Shared,
    /// The places at which the function ends are not all known.
    #[error("where it ends is not known ({0})")]
    Ends(&'static str),
    /// No probe may stand at the entry of the function.
    #[error("no probe may stand at its entry ({0})")]
    Entry(String),
}

/// The operators of a file.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    /// The operators of which everything is known, by the address of their function.
    pub usable: Vec<Operator>,
    /// The operators that are refused: the name of the structure in `at::_ops`, and the reason.
    pub refused: Vec<(String, Unusable)>,
}

/// A function `at::_ops::NAME::call`.
struct Function {
    structure: String,
    symbol: String,
    address: u64,
    size: u64,
}

/// Finds the operators of a file. A file of another machine than x86-64 and a file without exported functions have none.
///
/// # Errors
/// The file cannot be read, is damaged, or has more operators than [`MOST_OPERATORS`].
pub fn find<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    emulation: Emulation,
) -> Result<Operators, ElfError> {
    let mut found = Operators::default();
    if Machine::from_elf(elf.machine) != Machine::X86_64 {
        return Ok(found);
    }
    let functions = functions(elf)?;
    let all = functions.values().flatten();
    let wanted: HashSet<&str> = all.map(|one| one.structure.as_str()).collect();
    let schemas = schemas(elf, &wanted)?;
    let cold = cold_parts(elf)?;
    for at_address in functions.values() {
        let [function] = at_address.as_slice() else {
            let shared = at_address.iter();
            let shared = shared.map(|one| (one.structure.clone(), Unusable::Shared));
            found.refused.extend(shared);
            continue;
        };
        let cold = cold.get(&function.symbol).copied();
        let schemas = schemas.get(&function.structure);
        match operator(elf, emulation, function, cold, schemas)? {
            Ok(operator) => found.usable.push(operator),
            Err(why) => found.refused.push((function.structure.clone(), why)),
        }
    }
    Ok(found)
}

/// The functions by their addresses. A linker may have stored equal code only once.
fn functions<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
) -> Result<BTreeMap<u64, Vec<Function>>, ElfError> {
    let mut functions: BTreeMap<u64, Vec<Function>> = BTreeMap::new();
    let Some(exported) = elf.exported_symbols()? else {
        return Ok(functions);
    };
    let mut count = 0;
    for symbol in exported.defined_like(|name| name.starts_with(PREFIX.as_bytes())) {
        let (Some(structure), true) =
            (signature::structure(symbol.name), symbol.kind == STT_FUNC.0)
        else {
            continue;
        };
        count += 1;
        if count > MOST_OPERATORS {
            return Err(ElfError::TooMany {
                what: "operators",
                whole: crate::elf::Whole::File,
                most: MOST_OPERATORS as u64,
            });
        }
        functions.entry(symbol.address).or_default().push(Function {
            structure: structure.to_owned(),
            symbol: String::from_utf8_lossy(symbol.name).into_owned(),
            address: symbol.address,
            size: symbol.size,
        });
    }
    Ok(functions)
}

/// Address and size of the parts of operators that run seldom, by the symbol of the whole function. Compilers put such a
/// part elsewhere, under the function's name with `.cold` behind it. A library that was stripped does not name them.
fn cold_parts<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
) -> Result<HashMap<String, (u64, u64)>, ElfError> {
    let Some(all) = elf.all_symbols()? else {
        return Ok(HashMap::new());
    };
    let symbols = all.defined_like(|name| name.starts_with(PREFIX.as_bytes()));
    let parts = symbols.filter_map(|symbol| {
        let whole = symbol.name.strip_suffix(b".cold")?;
        let whole = std::str::from_utf8(whole).ok()?.to_owned();
        Some((whole, (symbol.address, symbol.size)))
    });
    Ok(parts.take(MOST_OPERATORS * 2).collect())
}

/// The schemas of these structures, by structure.
fn schemas<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    wanted: &HashSet<&str>,
) -> Result<HashMap<String, Vec<Schema>>, ElfError> {
    let Some(constants) = elf.section(".rodata").copied() else {
        return Ok(HashMap::new());
    };
    let size = constants.size.min(MOST_CONSTANTS);
    let bytes = elf.bytes_at(constants.offset, size, "the section with constants")?;
    Ok(schemas_in(&bytes, wanted))
}

/// The schemas in the constants of a library.
///
/// The linker stores a text that is the end of another one only once: `erfinv(…)` is the end of `special_erfinv(…)`. So
/// the name is also looked for with its beginning left out. Such a find counts only where there is no schema that is a
/// text of its own, because `stride.int` is also the end of another operator's name, `sym_stride.int`.
fn schemas_in(constants: &[u8], wanted: &HashSet<&str>) -> HashMap<String, Vec<Schema>> {
    const ARROW: &[u8] = b") -> ";
    let mut found: HashMap<String, Vec<Schema>> = HashMap::new();
    let mut parts: HashMap<String, Vec<Schema>> = HashMap::new();
    let mut done = 0;
    for arrow in memchr::memmem::find_iter(constants, ARROW) {
        if arrow < done {
            continue;
        }
        let Some(text) = text_around(constants, arrow) else {
            continue;
        };
        done = text.end;
        let text = constants
            .get(text)
            .and_then(|text| std::str::from_utf8(text).ok());
        let Some((text, open)) = text.and_then(|text| Some((text, text.find('(')?))) else {
            continue;
        };
        let (text, namespace) = match text.strip_prefix("aten::") {
            Some(rest) => (rest, "aten::".len()),
            None => (text, 0),
        };
        let Some(names) = open
            .checked_sub(namespace)
            .filter(|length| *length <= LONGEST_OPERATOR)
            .and_then(|open| text.get(..open))
        else {
            continue;
        };
        let names = names.replace('.', "_");
        for (at, _) in names.char_indices() {
            let name = &names[at..];
            if !wanted.contains(name) {
                continue;
            }
            if let Some(schema) = text.get(at..).and_then(schema::read) {
                let of = if at == 0 { &mut found } else { &mut parts };
                let known = of.entry(name.to_owned()).or_default();
                if known.len() <= MOST_SCHEMAS && !known.contains(&schema) {
                    known.push(schema);
                }
            }
        }
    }
    for (name, schemas) in parts {
        found.entry(name).or_insert(schemas);
    }
    found
}

/// Where the text lies that is ended by a zero byte and has this place in it. `None` if it is too long for a schema.
fn text_around(constants: &[u8], place: usize) -> Option<Range<usize>> {
    let floor = place.saturating_sub(schema::LONGEST);
    let from = match memchr::memrchr(0, constants.get(floor..place)?) {
        Some(zero) => floor + zero + 1,
        None if floor == 0 => 0,
        None => return None,
    };
    let rest = constants.get(from..)?;
    let rest = rest.get(..=schema::LONGEST).unwrap_or(rest);
    Some(from..from + memchr::memchr(0, rest)?)
}

/// Says whether the function's arguments are those of the schema.
fn agrees(schema: &Schema, arguments: &signature::Arguments) -> bool {
    schema.arguments.len() == arguments.len()
        && schema
            .arguments
            .iter()
            .zip(arguments)
            .all(|(term, argument)| match (term.holds, argument) {
                (None, None) => true,
                // What the schema calls written, C++ may call const: it is the tensor's memory that is written to.
                (Some(holds), Some(tensors)) => {
                    holds == tensors.holds && (term.written || !tensors.mutable)
                }
                _ => false,
            })
}

/// The schema of a function, with where its arguments are.
fn describe(
    symbol: &str,
    schemas: Option<&Vec<Schema>>,
) -> Result<(Schema, signature::Arguments), Unusable> {
    let schemas = schemas.ok_or(Unusable::NoSchema)?;
    if schemas.len() > MOST_SCHEMAS {
        return Err(Unusable::Disagree);
    }
    let mut chosen: Option<(Schema, signature::Arguments)> = None;
    for schema in schemas {
        let places =
            signature::of_symbol(symbol, schema.returns.by_address()).map_err(Unusable::Type)?;
        if !agrees(schema, &places) {
            continue;
        }
        match &mut chosen {
            None => chosen = Some((schema.clone(), places)),
            Some((known, _)) if known.returns != schema.returns => return Err(Unusable::Disagree),
            Some((known, _)) => {
                // Older forms of a schema lack the letters of aliases.
                if schema.view && !known.view {
                    *known = schema.clone();
                }
                for (mine, other) in known.arguments.iter_mut().zip(&schema.arguments) {
                    mine.written |= other.written;
                }
            }
        }
    }
    chosen.ok_or(Unusable::Differs)
}

/// Operators that make a tensor whose contents nobody has written yet.
fn leaves_result_unwritten(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    name.starts_with("empty") || name.starts_with("new_empty")
}

fn operator<R: ReadAt + ?Sized>(
    elf: &Elf<'_, R>,
    emulation: Emulation,
    function: &Function,
    cold: Option<(u64, u64)>,
    schemas: Option<&Vec<Schema>>,
) -> Result<Result<Operator, Unusable>, ElfError> {
    let (schema, arguments) = match describe(&function.symbol, schemas) {
        Ok(described) => described,
        Err(why) => return Ok(Err(why)),
    };
    let Some((offset, available)) = elf.code_offset_of(function.address) else {
        return Ok(Err(Unusable::Entry(
            "its symbol does not lie in code".to_owned(),
        )));
    };
    if !(1..=LONGEST_FUNCTION.min(available)).contains(&function.size) {
        return Ok(Err(Unusable::Ends("its length is not known")));
    }
    elf.look_at(function.size)?;
    let bytes = elf.bytes_at(offset, function.size, "the code of an operator")?;
    let mut parts = vec![ends::Part {
        bytes: bytes.clone(),
        address: function.address,
        offset,
    }];
    if let Some((address, size)) = cold
        && let Some((offset, available)) = elf.code_offset_of(address)
        && (1..=LONGEST_FUNCTION.min(available)).contains(&size)
    {
        elf.look_at(size)?;
        parts.push(ends::Part {
            bytes: elf.bytes_at(offset, size, "the code of an operator")?,
            address,
            offset,
        });
    }
    let ends = match ends::find(&parts) {
        Ok(ends) => ends,
        Err(why) => return Ok(Err(Unusable::Ends(why))),
    };
    let code = Code {
        bytes: &bytes,
        whole: true,
        address: function.address,
        entries: &[],
    };
    let wants = Wants {
        returns: false,
        // Arguments and the return address are found by the stack pointer.
        stack: true,
    };
    let placement = match place::place(Machine::X86_64, &code, wants, emulation) {
        Ok(placement) => placement,
        Err(why) => return Ok(Err(Unusable::Entry(why.to_string()))),
    };
    let operands = schema
        .arguments
        .iter()
        .zip(&arguments)
        // An argument that shares its memory with a result and is not written to is only looked at: a view is made.
        .filter(|(term, _)| term.written || !term.aliased)
        .filter_map(|(term, tensors)| {
            let access = match term.written {
                true => Access::Write,
                false => Access::Read,
            };
            Some(Operand {
                tensors: (*tensors)?,
                access,
            })
        })
        .collect();
    let fills_result = !schema.view
        && matches!(schema.returns, Returns::Tensors(_) | Returns::Vector)
        && !leaves_result_unwritten(&schema.name);
    Ok(Ok(Operator {
        name: schema.name,
        symbol: function.symbol.clone(),
        entry: offset + placement.entry_offset,
        ends,
        operands,
        returns: schema.returns,
        fills_result,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use signature::Place;

    #[test]
    fn a_schema_that_is_the_end_of_another_is_found() {
        let constants = b"x\0special_erfinv(Tensor self) -> Tensor\0add(Tensor self) -> Tensor\0";
        let wanted = HashSet::from(["erfinv", "special_erfinv", "add"]);
        let found = schemas_in(constants, &wanted);
        let mut names: Vec<&String> = found.keys().collect();
        names.sort();
        assert_eq!(names, ["add", "erfinv", "special_erfinv"]);
    }

    #[test]
    fn a_schema_of_its_own_comes_before_the_end_of_another() {
        let constants =
            b"sym_stride.int(Tensor self) -> SymInt\0aten::stride.int(Tensor self) -> int\0";
        let found = schemas_in(constants, &HashSet::from(["stride_int"]));
        let names: Vec<&str> = found["stride_int"]
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!(names, ["stride.int"]);
        assert_eq!(found["stride_int"][0].returns, Returns::Register);
    }

    #[test]
    fn what_is_too_long_or_too_much_is_left_out() {
        let wanted = HashSet::from(["add"]);
        let long = format!(
            "add(Tensor self, str s=\"{}\") -> Tensor\0",
            "x".repeat(schema::LONGEST)
        );
        assert!(schemas_in(long.as_bytes(), &wanted).is_empty());
        let long = format!(
            "{}add(Tensor self) -> Tensor\0",
            "x".repeat(LONGEST_OPERATOR)
        );
        assert!(schemas_in(long.as_bytes(), &wanted).is_empty());
        let many: String = (0..MOST_SCHEMAS * 2)
            .map(|n| format!("add({}) -> Tensor\0", "int a, ".repeat(n)))
            .collect();
        let found = schemas_in(many.as_bytes(), &wanted);
        assert_eq!(found["add"].len(), MOST_SCHEMAS + 1);
        let symbol = "_ZN2at4_ops3add4callERKNS_6TensorE";
        assert_eq!(describe(symbol, found.get("add")), Err(Unusable::Disagree));
    }

    proptest::proptest! {
        #[test]
        fn any_constants_are_searched(bytes: Vec<u8>, text in "(add|aten::|\\.|é|\\(|Tensor|\\) -> |\0| a){0,40}") {
            let wanted = HashSet::from(["add", "add_add"]);
            let _ = schemas_in(&bytes, &wanted);
            for (name, schemas) in schemas_in(text.as_bytes(), &wanted) {
                proptest::prop_assert!(schemas.iter().all(|one| one.structure() == name));
            }
        }
    }

    #[test]
    fn schema_and_symbol_have_to_agree() {
        let symbol = "_ZN2at4_ops11add__Tensor4callERNS_6TensorERKS2_RKN3c106ScalarE";
        let right = schema::read(
            "add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
        )
        .unwrap();
        let (_, arguments) = describe(symbol, Some(&vec![right.clone()])).unwrap();
        let places: Vec<Place> = arguments.iter().flatten().map(|one| one.place).collect();
        assert_eq!(places, [Place::Register(0), Place::Register(1)]);
        let shorter =
            schema::read("add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)").unwrap();
        assert_eq!(
            describe(symbol, Some(&vec![shorter])),
            Err(Unusable::Differs)
        );
        // The symbol says that the first argument may be written to.
        let reads =
            schema::read("add_.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")
                .unwrap();
        assert_eq!(describe(symbol, Some(&vec![reads])), Err(Unusable::Differs));
        let other =
            schema::read("add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor")
                .unwrap();
        assert_eq!(
            describe(symbol, Some(&vec![right, other])),
            Err(Unusable::Disagree)
        );
        assert_eq!(describe(symbol, None), Err(Unusable::NoSchema));
    }
}
