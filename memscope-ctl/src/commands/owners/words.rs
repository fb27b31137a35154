//! Words for what memory is for.

use crate::units::plain;
use memscope_proto::v1::{self, OwnerEvidence};

/// `optimizer state`, as people write it.
pub(in crate::commands) fn words(category: &str) -> String {
    plain(&category.replace('_', " "))
}

/// `__main__.model.layers.0.weight`, `__main__.optimizer.state[layers.0.weight].exp_avg`
pub(in crate::commands) fn what(owner: &v1::Owner) -> String {
    let whole = match (owner.evidence(), owner.name.as_str(), owner.key.as_str()) {
        (_, "", _) => owner.owner.clone(),
        (OwnerEvidence::Object, name, "") if owner.category == "gradients" => {
            format!("{}.{name}.grad", owner.owner)
        }
        (_, name, "") => format!("{}.{name}", owner.owner),
        (_, name, key) => format!("{}.state[{name}].{key}", owner.owner),
    };
    match owner.also.len() {
        0 => plain(&whole),
        more => format!("{} and {more} more", plain(&whole)),
    }
}

/// The module in whose forward pass the graph has saved something: `__main__.model.layers.0.mlp`; nothing where that is not known.
pub(in crate::commands) fn module(owner: &v1::Owner) -> String {
    match owner.module.as_str() {
        "" => String::new(),
        module => plain(&format!("{}.{module}", owner.model)),
    }
}

/// A place without the folder of its file.
pub(in crate::commands) fn short(place: &str) -> String {
    match place.split_once(" in ") {
        Some((file, function)) if file.contains(':') => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{file} in {function}")
        }
        _ => place.to_owned(),
    }
}
