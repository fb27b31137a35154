//! The sums of modules: what each part of a model takes, with all that is below it.

use std::collections::{BTreeMap, HashMap};

use crate::render::table::{Column, table};
use crate::units::{bytes, plain};
use memscope_proto::v1;

/// The categories that have a column.
const COLUMNS: [&str; 5] = [
    "weights",
    "gradients",
    "optimizer_state",
    "buffers",
    ACTIVATIONS,
];
/// What modules have made, instead of what they have.
const ACTIVATIONS: &str = "activations";

/// The bytes of each column.
type Sums = [u64; COLUMNS.len()];

/// The tree as a table, down to modules this deep. Parameters and buffers themselves are no rows.
pub(super) fn text(owners: &[v1::Owner], depth: usize) -> String {
    let named: Vec<(&v1::Owner, usize)> = owners
        .iter()
        .filter(|owner| !owner.name.is_empty() || !owner.model.is_empty())
        .filter_map(|owner| {
            let column = COLUMNS
                .iter()
                .position(|column| *column == owner.category)?;
            Some((owner, column))
        })
        .collect();
    // An optimizer's state is the parameter's: it goes to the model that has a parameter with this name. Where several have one, as a copy
    // of a model for its averages does, nobody knows whose it is, and it stays with the optimizer.
    let mut models: HashMap<&str, Option<&str>> = HashMap::new();
    for (owner, _) in named.iter().filter(|(_, column)| *column == 0) {
        let model = Some(owner.owner.as_str());
        let known = models.entry(owner.name.as_str()).or_insert(model);
        *known = known.filter(|_| *known == model);
    }
    let mut sums: BTreeMap<(&str, Vec<Part<'_>>), Sums> = BTreeMap::new();
    for (owner, column) in named {
        let model = match models.get(owner.name.as_str()) {
            Some(Some(model)) if COLUMNS[column] == "optimizer_state" => model,
            _ if COLUMNS[column] == ACTIVATIONS => owner.model.as_str(),
            _ => owner.owner.as_str(),
        };
        let module = match COLUMNS[column] {
            ACTIVATIONS => owner.module.as_str(),
            _ => owner.name.rsplit_once('.').map_or("", |(module, _)| module),
        };
        let parts = module.split('.').filter(|part| !part.is_empty());
        let parts: Vec<Part<'_>> = parts.map(Part::new).collect();
        for end in 0..=parts.len().min(depth) {
            let sums = sums.entry((model, parts[..end].to_vec())).or_default();
            sums[column] += owner.blocks.unwrap_or_default().bytes;
        }
    }
    let rows = sums.iter().map(|((model, parts), sums)| {
        let name = match parts.last() {
            None => plain(model),
            Some(Part(_, name)) => format!("{}{}", "  ".repeat(parts.len()), plain(name)),
        };
        let mut row = vec![name];
        row.extend(sums.iter().map(|sum| match sum {
            0 => String::new(),
            sum => bytes(*sum),
        }));
        row.push(bytes(sums.iter().sum()));
        row
    });
    let head = [
        Column::Left("MODULE"),
        Column::Right("WEIGHTS"),
        Column::Right("GRADIENTS"),
        Column::Right("OPTIMIZER"),
        Column::Right("BUFFERS"),
        Column::Right("ACTIVATIONS"),
        Column::Right("SUM"),
    ];
    table(&head, rows.collect())
}

/// A part of a name: numbers are ordered as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part<'n>(Option<u64>, &'n str);

impl<'n> Part<'n> {
    fn new(text: &'n str) -> Part<'n> {
        Part(text.parse().ok(), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(category: &str, owner: &str, name: &str, bytes: u64) -> v1::Owner {
        v1::Owner {
            category: category.to_owned(),
            owner: owner.to_owned(),
            name: name.to_owned(),
            blocks: Some(v1::Amount { count: 1, bytes }),
            ..v1::Owner::default()
        }
    }

    fn activation(module: &str, bytes: u64) -> v1::Owner {
        v1::Owner {
            model: "__main__.model".to_owned(),
            module: module.to_owned(),
            ..owner(ACTIVATIONS, "__main__.loss.grad_fn", "", bytes)
        }
    }

    #[test]
    fn the_state_of_a_name_that_two_models_have_is_the_optimizers() {
        let owners = [
            owner("weights", "__main__.model", "0.weight", 1 << 20),
            owner("weights", "__main__.averaged", "0.weight", 1 << 20),
            owner("optimizer_state", "__main__.optimizer", "0.weight", 4 << 20),
        ];
        let lines: Vec<String> = text(&owners, 0)
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "__main__.averaged 1.00 MiB 1.00 MiB",
                "__main__.model 1.00 MiB 1.00 MiB",
                "__main__.optimizer 4.00 MiB 4.00 MiB",
            ]
        );
    }

    #[test]
    fn sums_roll_up_to_the_model() {
        let owners = [
            owner("weights", "__main__.model", "layers.2.weight", 1 << 20),
            owner("weights", "__main__.model", "layers.10.weight", 2 << 20),
            owner(
                "optimizer_state",
                "__main__.optimizer",
                "layers.10.weight",
                4 << 20,
            ),
            owner("buffers", "__main__.model", "running", 1 << 10),
            activation("layers.10.mlp.up", 8 << 20),
            activation("", 16 << 20),
            owner("native", "", "", 1 << 30),
        ];
        let lines: Vec<String> = text(&owners, 2)
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "MODULE WEIGHTS GRADIENTS OPTIMIZER BUFFERS ACTIVATIONS SUM",
                "__main__.model 3.00 MiB 4.00 MiB 1.00 KiB 24.00 MiB 31.00 MiB",
                "layers 3.00 MiB 4.00 MiB 8.00 MiB 15.00 MiB",
                "2 1.00 MiB 1.00 MiB",
                "10 2.00 MiB 4.00 MiB 8.00 MiB 14.00 MiB",
            ]
        );
    }
}
