//! Schemas of operators, as PyTorch registers them: which arguments are tensors, which of these are written to, and what
//! is returned. The text lies among the constants of the library, because the library registers its operators with it.

use super::commas::parts;

/// How an argument or a result holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holds {
    /// One tensor (`Tensor`).
    One,
    /// One tensor, or none (`Tensor?`).
    Maybe,
    /// A list of tensors (`Tensor[]`).
    List,
    /// A list, in which some may be missing (`Tensor?[]`).
    MaybeList,
}

/// What a schema says of one argument or result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// How it holds tensors. This is `None` for everything that is no tensor.
    pub holds: Option<Holds>,
    /// The schema says that it may share memory with another argument or result (`Tensor(a)`).
    pub aliased: bool,
    /// The schema says that the operator writes to it (`Tensor(a!)`).
    pub written: bool,
}

/// What an operator returns, as far as the calling convention cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// The operator returns nothing, a number, or a reference to an argument. The result is in a register, and no
    /// tensor is new.
    Register,
    /// The operator returns an object in memory that the caller has provided, and where tensors lie in it is not known.
    Memory,
    /// The operator returns that many tensors and nothing else, in memory that the caller has provided.
    Tensors(u8),
    /// The operator returns a vector of tensors, in memory that the caller has provided.
    Vector,
}

impl Returns {
    /// Says whether the caller passes the address for the result in the first register.
    pub fn by_address(self) -> bool {
        self != Returns::Register
    }
}

/// A schema that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// The name with the overload, as PyTorch writes it: `add.Tensor`.
    pub name: String,
    /// The arguments in their order.
    pub arguments: Vec<Term>,
    /// What the operator returns, and how.
    pub returns: Returns,
    /// Some result may share the memory of an argument that is not written to, so the operator may make a view.
    pub view: bool,
}

/// The longest schema that is read, in bytes. The longest one of PyTorch 2.11 has less than a quarter of that.
pub const LONGEST: usize = 4096;

/// Reads a schema. The answer is `None` for any other text, for a form of `Tensor` that is not in [`Holds`], and for a
/// result of which it is not known how it is returned.
pub fn read(text: &str) -> Option<Schema> {
    if text.len() > LONGEST {
        return None;
    }
    let open = text.find('(')?;
    let name = &text[..open];
    let name = name.strip_prefix("aten::").unwrap_or(name);
    if !is_name(name) {
        return None;
    }
    let close = open + matching(&text[open..])?;
    let arguments = split(&text[open + 1..close])?
        .into_iter()
        .filter(|argument| *argument != "*")
        .map(term)
        .collect::<Option<Vec<Term>>>()?;
    let result = text[close + 1..].strip_prefix(" -> ")?.trim();
    let results: Vec<&str> = match result.strip_prefix('(') {
        Some(inner) => split(inner.strip_suffix(')')?)?,
        None => vec![result],
    };
    let is_tuple = results.len() > 1;
    let terms: Vec<Term> = results
        .iter()
        .map(|result| term(result))
        .collect::<Option<_>>()?;
    let view = terms.iter().any(|term| term.aliased && !term.written);
    let returns = match terms.as_slice() {
        [] => Returns::Register,
        [one] => match one.holds {
            // A result that the operator writes to is a reference to an argument.
            Some(Holds::One) if one.written => Returns::Register,
            Some(Holds::One) => Returns::Tensors(1),
            Some(Holds::List) => Returns::Vector,
            Some(_) => Returns::Memory,
            None => plain(results.first()?)?,
        },
        // A tuple is returned in memory, whatever is in it, because libstdc++'s cannot be copied trivially.
        all if is_tuple
            && all
                .iter()
                .all(|term| term.holds == Some(Holds::One) && !term.written) =>
        {
            Returns::Tensors(u8::try_from(all.len()).ok()?)
        }
        _ => Returns::Memory,
    };
    Some(Schema {
        name: name.to_owned(),
        arguments,
        returns,
        view,
    })
}

impl Schema {
    /// Name of the structure in `at::_ops` that stands for the operator.
    pub fn structure(&self) -> String {
        self.name.replace('.', "_")
    }
}

fn is_name(name: &str) -> bool {
    let mut parts = name.split('.');
    let fits = |part: &str| {
        let mut bytes = part.bytes();
        let first = bytes
            .next()
            .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        first && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let named = parts.next().is_some_and(fits);
    named && parts.next().is_none_or(fits) && parts.next().is_none()
}

/// How a result that holds no tensor is returned.
fn plain(result: &str) -> Option<Returns> {
    match result.split_whitespace().next()? {
        "bool" | "int" | "float" | "ScalarType" | "Layout" | "Device" | "MemoryFormat"
        | "QScheme" => Some(Returns::Register),
        // These classes have destructors.
        "Scalar" | "SymInt" | "SymFloat" | "SymBool" => Some(Returns::Memory),
        _ => None,
    }
}

/// Index of the parenthesis that closes the one with which the text begins.
fn matching(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The parts between commas that lie in no parentheses or brackets.
fn split(text: &str) -> Option<Vec<&str>> {
    parts(text, b"([", b")]")
}

/// What stands before the name of an argument, or is a result. `None` for a form of `Tensor` that is not known.
fn term(text: &str) -> Option<Term> {
    let Some(rest) = text.strip_prefix("Tensor") else {
        return Some(Term {
            holds: None,
            aliased: false,
            written: false,
        });
    };
    let (alias, rest) = match rest.strip_prefix('(') {
        Some(inner) => {
            let (alias, rest) = inner.split_once(')')?;
            (Some(alias), rest)
        }
        None => (None, rest),
    };
    // Behind the type comes a space, then the argument's name.
    let holds = match rest.split(' ').next()? {
        "" => Holds::One,
        "?" => Holds::Maybe,
        "?[]" => Holds::MaybeList,
        // A list may have a length: `Tensor[3]`.
        list => {
            let length = list.strip_prefix('[')?.strip_suffix(']')?;
            if !length.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            Holds::List
        }
    };
    Some(Term {
        holds: Some(holds),
        aliased: alias.is_some(),
        written: alias.is_some_and(|alias| alias.contains('!')),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(schema: &Schema) -> Vec<(Holds, bool)> {
        let terms = schema.arguments.iter();
        terms.filter_map(|t| Some((t.holds?, t.written))).collect()
    }

    #[test]
    fn what_pytorch_writes() {
        let add =
            read("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor").unwrap();
        assert_eq!(
            (add.name.as_str(), add.structure().as_str()),
            ("add.Tensor", "add_Tensor")
        );
        assert_eq!(holds(&add), [(Holds::One, false), (Holds::One, false)]);
        assert_eq!(add.arguments.len(), 3);
        assert_eq!((add.returns, add.view), (Returns::Tensors(1), false));
        let inplace = read(
            "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
        )
        .unwrap();
        assert_eq!(holds(&inplace), [(Holds::One, true), (Holds::One, false)]);
        assert_eq!((inplace.returns, inplace.view), (Returns::Register, false));
        let view = read("view(Tensor(a) self, SymInt[] size) -> Tensor(a)").unwrap();
        assert!(view.view && view.returns == Returns::Tensors(1));
        let split =
            read("split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]")
                .unwrap();
        assert!(split.view && split.returns == Returns::Vector, "{split:?}");
        let max = read(
            "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        )
        .unwrap();
        assert_eq!(max.returns, Returns::Tensors(2));
        let out = read("max.dim_max(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) max, Tensor(b!) max_values) -> (Tensor(a!) values, Tensor(b!) indices)").unwrap();
        assert_eq!((out.returns, out.view), (Returns::Memory, false));
        let foreach =
            read("_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()")
                .unwrap();
        assert_eq!(holds(&foreach), [(Holds::List, true), (Holds::List, false)]);
        assert_eq!(foreach.returns, Returns::Register);
        let index = read("index.Tensor(Tensor self, Tensor?[] indices) -> Tensor").unwrap();
        assert_eq!(
            holds(&index),
            [(Holds::One, false), (Holds::MaybeList, false)]
        );
        let item = read("_local_scalar_dense(Tensor self) -> Scalar").unwrap();
        assert_eq!(item.returns, Returns::Memory);
    }

    #[test]
    fn what_is_no_schema() {
        for text in [
            "",
            "add",
            "add(",
            "add() ->",
            "a b() -> Tensor",
            "add(Tensor self) -> str",
            "a.b.c() -> ()",
            "add)(Tensor -> ()",
            // Forms of `Tensor` of which it is not known how C++ holds them.
            "add(Tensor[]? self) -> ()",
            "add(Tensor[n] self) -> ()",
            "add(Tensor2 self) -> ()",
            "add(Tensor(a self) -> ()",
            "add(Tensor self) -> Tensor[][]",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "\\PC{0,80}",
            near in "[a-z_.]{0,6}\\((Tensor|\\(a!?\\)|[()\\[\\]?!, ->aé2]){0,20}\\) -> [()Tensor\\[\\]]{0,12}",
        ) {
            let _ = read(&text);
            if let Some(schema) = read(&near) {
                proptest::prop_assert!(is_name(&schema.name), "{schema:?}");
                proptest::prop_assert!(schema.arguments.len() <= near.len());
            }
        }

        #[test]
        fn arguments_keep_their_places(kinds in proptest::collection::vec(0usize..5, 0..12)) {
            const WORDS: [&str; 5] = ["Tensor", "Tensor?", "Tensor(a!)[]", "int[2]", "SymInt"];
            let list: Vec<String> = kinds.iter().enumerate().map(|(n, kind)| format!("{} x{n}=[1, 2]", WORDS[*kind])).collect();
            let schema = read(&format!("op.x({}) -> ()", list.join(", "))).unwrap();
            let found: Vec<Option<Holds>> = schema.arguments.iter().map(|term| term.holds).collect();
            let want: Vec<Option<Holds>> = kinds.iter().map(|kind| [Some(Holds::One), Some(Holds::Maybe), Some(Holds::List), None, None][*kind]).collect();
            proptest::prop_assert_eq!(found, want);
        }
    }
}
