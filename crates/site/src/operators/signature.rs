//! Where the arguments of an operator's C++ function are: which registers or words of the stack hold them. The mangled
//! name of the function has their types.
//!
//! The rules are those of the System V ABI for x86-64: what is trivially copied goes in registers, eight bytes in each,
//! if it has at most two of them and all of it finds room; else it lies on the stack. What has a destructor is passed by
//! the address of a copy. A type that is not in the list makes the whole function unknown, because everything behind an
//! argument of unknown size is at an unknown place.

use super::commas::parts;
use super::schema::Holds;
use memscope_units::demangle;

/// What the names of all operators' functions begin with.
pub(super) const PREFIX: &str = "_ZN2at4_ops";
/// What stands between the name of the structure and the types of the arguments.
const CALL: &str = "4callE";
/// The most bytes of a demangled name.
const LONGEST_NAME: usize = 8192;

/// Where an argument is when the function is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// It is in an integer register. They are counted from 0, in the order in which arguments take them: `rdi` is 0.
    Register(u8),
    /// It is in a word of the stack. They are counted from 0, beginning with the word above the return address.
    Stack(u8),
}

/// How an argument that holds tensors is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensors {
    /// How the argument holds tensors.
    pub holds: Holds,
    /// The argument is a reference that is not `const`: `at::Tensor&`.
    pub mutable: bool,
    /// The argument is an address and a length in two places (`c10::ArrayRef`); any other is one address.
    pub by_value: bool,
    /// The place of the address.
    pub place: Place,
}

/// The arguments of a function in their order, with `None` for each that holds no tensor.
pub type Arguments = Vec<Option<Tensors>>;

/// How the ABI passes a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// So many integer registers, or as many words of the stack.
    Integers(u8),
    /// A register for floating-point numbers.
    Float,
    /// A register for floating-point numbers and one for integers.
    FloatAndInteger,
    /// So many words of the stack.
    Memory(u8),
}

const INTEGERS: u8 = 6;
const FLOATS: u8 = 8;
/// The most arguments that are followed. The functions of PyTorch 2.11 have at most 30.
const MOST: usize = 120;

/// The name of the structure in `at::_ops` whose function `call` has this symbol, for example `add_Tensor`. Any other
/// symbol gives `None`.
pub fn structure(symbol: &[u8]) -> Option<&str> {
    let symbol = std::str::from_utf8(symbol).ok()?;
    let rest = symbol.strip_prefix(PREFIX)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (length, rest) = rest.split_at_checked(digits)?;
    let (name, rest) = rest.split_at_checked(length.parse().ok()?)?;
    rest.starts_with(CALL).then_some(name)
}

/// Finds the arguments of the function `call` of an operator by its symbol. `by_address` says that the first register
/// holds the address for the result, which the symbol does not tell.
///
/// # Errors
/// The symbol is that of another function, or a type is not known. The text says which, for users.
pub fn of_symbol(symbol: &str, by_address: bool) -> Result<Arguments, String> {
    structure(symbol.as_bytes()).ok_or("it is no operator's symbol")?;
    let text = demangle(symbol, LONGEST_NAME);
    let (_, inside) = text.split_once("::call(").ok_or("it is not demangled")?;
    let arguments = inside.strip_suffix(')').ok_or("its name is too long")?;
    read(arguments, by_address)
}

/// Reads the demangled arguments of a function, as they stand between its parentheses.
fn read(arguments: &str, by_address: bool) -> Result<Arguments, String> {
    let mut integers = u8::from(by_address);
    let mut floats = 0;
    let mut words = 0u8;
    let mut found = Vec::new();
    let types = parts(arguments, b"<(", b">)")
        .ok_or_else(|| "brackets that do not fit together".to_owned())?;
    if types.len() > MOST {
        return Err("more arguments than are read".to_owned());
    }
    for name in types {
        let class = class(name).ok_or_else(|| name.to_owned())?;
        let held = tensors(name);
        if held.is_none() && name.contains("at::Tensor") {
            return Err(name.to_owned());
        }
        let (need, floating, size) = match class {
            Class::Integers(n) => (n, 0, n),
            Class::Float => (0, 1, 1),
            Class::FloatAndInteger => (1, 1, 2),
            Class::Memory(n) => (u8::MAX, 0, n),
        };
        let fits = integers.saturating_add(need) <= INTEGERS && floats + floating <= FLOATS;
        let place = if fits {
            let place = Place::Register(integers);
            integers += need;
            floats += floating;
            place
        } else {
            let place = Place::Stack(words);
            let more = words.checked_add(size);
            words = more.ok_or("more words of arguments than are read")?;
            place
        };
        found.push(held.map(|(holds, mutable, by_value)| Tensors {
            holds,
            mutable,
            by_value,
            place,
        }));
    }
    Ok(found)
}

/// The type inside of `optional<…>`.
fn optional(name: &str) -> Option<&str> {
    let inner = name.strip_prefix("std::optional<")?.strip_suffix('>')?;
    Some(inner.trim())
}

/// How a type is passed. Other standard libraries than libstdc++ have other names (`std::__1::optional`), so what is
/// built with them is not known.
fn class(name: &str) -> Option<Class> {
    if name.ends_with('&') || name.ends_with('*') {
        return Some(Class::Integers(1));
    }
    if let Some(inner) = optional(name) {
        return Some(match inner {
            "bool" | "c10::ScalarType" | "c10::Layout" | "c10::MemoryFormat" | "c10::Device" => {
                Class::Integers(1)
            }
            "long" => Class::Integers(2),
            "double" => Class::FloatAndInteger,
            // These have destructors.
            "c10::SymInt" | "at::Generator" | "c10::Scalar" => Class::Integers(1),
            view if view.starts_with("c10::ArrayRef<") || is_string_view(view) => Class::Memory(3),
            _ => return None,
        });
    }
    if name.starts_with("c10::ArrayRef<") || is_string_view(name) || name == "c10::Stream" {
        return Some(Class::Integers(2));
    }
    if name.starts_with("c10::OptionalArrayRef<") {
        return Some(Class::Memory(3));
    }
    if name.starts_with("std::array<bool,") {
        // Demanglers write the length as `3ul` or as `(unsigned long)3`.
        let length = name.trim_end_matches('>').trim_end_matches(['u', 'l']);
        let length: u8 = length.rsplit([' ', ',', ')']).next()?.parse().ok()?;
        return (1..=8).contains(&length).then_some(Class::Integers(1));
    }
    Some(match name {
        "bool" | "long" | "int" | "signed char" | "c10::ScalarType" | "c10::Layout"
        | "c10::MemoryFormat" | "c10::Device" | "at::Dimname" => Class::Integers(1),
        "double" => Class::Float,
        // These have destructors.
        "c10::SymInt" | "c10::Storage" | "c10::Scalar" | "at::Generator" => Class::Integers(1),
        _ => return None,
    })
}

fn is_string_view(name: &str) -> bool {
    name.starts_with("std::basic_string_view<char")
}

/// How a type holds tensors, whether it may be written through, and whether a list is passed by value.
fn tensors(name: &str) -> Option<(Holds, bool, bool)> {
    Some(match name {
        "at::Tensor const&" => (Holds::One, false, false),
        "at::Tensor&" => (Holds::One, true, false),
        "c10::ArrayRef<at::Tensor>" => (Holds::List, false, true),
        "c10::IListRef<at::Tensor> const&" => (Holds::List, false, false),
        _ => {
            let inner = name.strip_suffix(" const&")?.trim();
            let listed = inner
                .strip_prefix("c10::List<")
                .and_then(|listed| listed.strip_suffix('>'));
            let holds = match listed {
                Some(_) => Holds::MaybeList,
                None => Holds::Maybe,
            };
            let one = optional(listed.unwrap_or(inner).trim())?;
            (one == "at::Tensor").then_some((holds, false, false))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(arguments: &str, by_address: bool) -> Vec<Place> {
        let found = read(arguments, by_address).unwrap();
        found.into_iter().flatten().map(|one| one.place).collect()
    }

    #[test]
    fn registers_then_the_stack() {
        use Place::{Register, Stack};
        assert_eq!(
            places(
                "at::Tensor const&, at::Tensor const&, c10::Scalar const&",
                true
            ),
            [Register(1), Register(2)]
        );
        assert_eq!(
            places("at::Tensor&, at::Tensor const&", false),
            [Register(0), Register(1)]
        );
        // Two words that do not fit into the last register both go on the stack; what comes behind may take it.
        assert_eq!(
            places(
                "bool, bool, bool, bool, bool, c10::ArrayRef<long>, at::Tensor&, at::Tensor&",
                false
            ),
            [Register(5), Stack(2)]
        );
        // Floating-point numbers take no integer register.
        assert_eq!(
            places("at::Tensor const&, double, double, at::Tensor const&", true),
            [Register(1), Register(2)]
        );
        // What has more than two words is on the stack from the start.
        assert_eq!(
            places(
                "std::optional<c10::ArrayRef<double> >, at::Tensor const&, long, long, long, long, long, at::Tensor&",
                false
            ),
            [Register(0), Stack(3)]
        );
        assert_eq!(
            places("std::optional<double>, at::Tensor&", false),
            [Register(1)]
        );
        assert_eq!(places("", true), []);
    }

    #[test]
    fn the_structure_is_in_the_symbol() {
        let add = "_ZN2at4_ops10add_Tensor4callERKNS_6TensorES4_RKN3c106ScalarE";
        assert_eq!(structure(add.as_bytes()), Some("add_Tensor"));
        let found = of_symbol(add, true).unwrap();
        let places: Vec<Option<Place>> =
            found.iter().map(|one| Some(one.as_ref()?.place)).collect();
        let registers = [Place::Register(1), Place::Register(2)];
        assert_eq!(places, [Some(registers[0]), Some(registers[1]), None]);
        for other in [
            "",
            "_ZN2at4_ops",
            "_ZN2at4_ops99x4callE",
            "_ZN2at4_ops3add10redispatchE",
            "_ZN2at4_ops99999999999999999999x4callE",
            "_ZN2at4_ops1é4callEv",
        ] {
            assert_eq!(structure(other.as_bytes()), None, "{other}");
            assert!(of_symbol(other, false).is_err(), "{other}");
        }
        assert_eq!(structure(b"_ZN2at4_ops1\xff4callEv"), None);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for name in [
            "at::Tensor",
            "at::Tensor&&",
            "at::Tensor*",
            "std::optional<at::Tensor>",
            "std::optional<at::Tensor>&",
            "std::optional<c10::ArrayRef<at::Tensor> > const&",
            "std::optional<c10::ArrayRef<at::Tensor> >",
            "std::vector<at::Tensor, std::allocator<at::Tensor> > const&",
            "std::__1::optional<long>",
            "std::array<bool, 9ul>",
            "std::array<bool, 0ul>",
            "float",
        ] {
            let around = format!("bool, {name}, at::Tensor&");
            assert_eq!(read(&around, true), Err(name.to_owned()));
        }
        let view = "std::optional<c10::ArrayRef<double> >, ";
        let many = view.repeat(86);
        assert!(read(&many, true).unwrap_err().starts_with("more words"));
        assert!(read(&"bool,".repeat(MOST), true).is_ok());
        assert!(read(&"bool,".repeat(MOST + 1), true).is_err());
    }

    /// The types, with the integer registers and words that each takes.
    const TYPES: [(&str, Option<u8>); 8] = [
        ("at::Tensor const&", Some(1)),
        ("at::Tensor&", Some(1)),
        ("c10::ArrayRef<at::Tensor>", Some(2)),
        ("long", Some(1)),
        ("std::optional<long>", Some(2)),
        ("double", None),
        ("std::array<bool, 3ul>", Some(1)),
        ("c10::SymInt", Some(1)),
    ];

    proptest::proptest! {
        #[test]
        fn no_two_arguments_share_a_place(kinds in proptest::collection::vec(0usize..8, 0..30), by_address: bool) {
            let names: Vec<&str> = kinds.iter().map(|kind| TYPES[*kind].0).collect();
            let found = read(&names.join(", "), by_address).unwrap();
            proptest::prop_assert_eq!(found.len(), kinds.len());
            let mut taken = std::collections::BTreeSet::new();
            if by_address {
                taken.insert(Place::Register(0));
            }
            for (kind, one) in kinds.iter().zip(&found) {
                let Some(one) = one else { continue };
                for more in 0..TYPES[*kind].1.unwrap_or(0) {
                    let place = match one.place {
                        Place::Register(n) => Place::Register(n + more),
                        Place::Stack(n) => Place::Stack(n + more),
                    };
                    proptest::prop_assert!(!matches!(place, Place::Register(6..)));
                    proptest::prop_assert!(taken.insert(place), "{place:?} twice");
                }
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}", near in "[a-z0-9:<>, &*é]{0,60}", by_address: bool) {
            let _ = read(&text, by_address);
            let _ = read(&near, by_address);
        }

        /// Real types, of which some were cut short, in any number.
        #[test]
        fn damaged_types_are_read_or_refused(
            kinds in proptest::collection::vec((0usize..9, 0usize..40), 0..140),
            by_address: bool,
        ) {
            let names: Vec<&str> = kinds.iter().map(|(kind, length)| {
                let name = TYPES.get(*kind).map_or("std::optional<c10::ArrayRef<double> >", |one| one.0);
                name.get(..*length).unwrap_or(name)
            }).collect();
            if let Ok(found) = read(&names.join(", "), by_address) {
                proptest::prop_assert!(found.len() <= kinds.len());
            }
        }

        #[test]
        fn any_bytes_are_a_symbol_or_not(
            bytes: Vec<u8>,
            length in 0usize..30,
            name in "[a-zA-Z_é][a-zA-Z0-9_é]{0,20}",
            rest in "(4callE)?([0-9A-Za-z_]{0,40}|RKNS_6TensorE|S[0-9]_|St8optionalI|N3c10|E){0,12}",
        ) {
            let _ = structure(&bytes);
            let _ = of_symbol(&String::from_utf8_lossy(&bytes), true);
            let begun = [PREFIX.as_bytes(), &bytes].concat();
            let _ = structure(&begun);
            let _ = of_symbol(&String::from_utf8_lossy(&begun), true);
            for length in [length, name.len()] {
                let symbol = format!("{PREFIX}{length}{name}{rest}");
                let found = structure(symbol.as_bytes());
                proptest::prop_assert!(found.is_none_or(|found| found.len() == length));
                let _ = of_symbol(&symbol, false);
            }
        }

        /// Any change of a byte of a real symbol.
        #[test]
        fn a_damaged_symbol_is_read_or_refused(at in 0usize..150, byte: u8, cut in 0usize..300) {
            const REAL: &str = "_ZN2at4_ops10index_put_4callERNS_6TensorERKN3c104ListISt8optionalIS2_EEERKS2_b";
            proptest::prop_assert!(of_symbol(REAL, true).is_ok());
            let mut bytes = REAL.as_bytes().to_vec();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            bytes.truncate(cut.max(30));
            let _ = structure(&bytes);
            let _ = of_symbol(&String::from_utf8_lossy(&bytes), true);
        }
    }
}
