//! Which ranks should be alike because of their numbers: jobs give the stages of a pipeline, or the places on a node, to
//! ranks that follow one another or in turn.

use crate::groups::{JUDGED_FROM, Split};
use crate::rank::Rank;

/// Into how many parts the ranks are divided, one after the other, until each part has the level of one group.
const PARTS: [usize; 11] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// The places of the ranks that should be in each group by their numbers, if the numbers tell: for all but a few ranks they
/// say in which group it is. A rank that is in another group by its value is then among those that it should be like.
pub(crate) fn expected(ranks: &[Rank], split: &Split) -> Option<Vec<Vec<usize>>> {
    if split.groups.len() < 2 {
        return None;
    }
    let mut group_of = vec![None; ranks.len()];
    for (number, group) in split.groups.iter().enumerate() {
        for place in &group.members {
            if let Some(slot) = group_of.get_mut(*place) {
                *slot = Some(number);
            }
        }
    }
    let known: Vec<usize> = members(split);
    let size = ranks.iter().map(|rank| rank.rank).max()?.checked_add(1)?;
    for parts in PARTS {
        if known.len() / parts < JUDGED_FROM {
            break;
        }
        let parts = parts as u64;
        let block = |rank: u64| u128::from(rank) * u128::from(parts) / u128::from(size);
        let turn = |rank: u64| u128::from(rank % parts);
        for part in [&block as &dyn Fn(u64) -> u128, &turn] {
            let mut classes = vec![Vec::new(); parts as usize];
            for place in &known {
                let number = part(ranks.get(*place)?.rank);
                classes.get_mut(usize::try_from(number).ok()?)?.push(*place);
            }
            if let Some(expected) = by_group(&classes, &group_of, split.groups.len()) {
                return Some(expected);
            }
        }
    }
    None
}

fn members(split: &Split) -> Vec<usize> {
    let strays = split.strays.iter().map(|(place, _)| *place);
    let groups = split.groups.iter().flat_map(|group| &group.members);
    groups.copied().chain(strays).collect()
}

/// The classes united by the group in which nearly all of their ranks are; `None` if that is not so of each class.
fn by_group(
    classes: &[Vec<usize>],
    group_of: &[Option<usize>],
    groups: usize,
) -> Option<Vec<Vec<usize>>> {
    let mut expected = vec![Vec::new(); groups];
    for class in classes {
        let mut counts = vec![0_usize; groups];
        for place in class {
            if let Some(count) = group_of
                .get(*place)
                .copied()
                .flatten()
                .and_then(|group| counts.get_mut(group))
            {
                *count += 1;
            }
        }
        let (group, count) = counts.iter().enumerate().max_by_key(|(_, count)| **count)?;
        let few = (class.len() / 8).clamp(1, 4);
        if class.len() < 2 || count + few < class.len() {
            return None;
        }
        expected.get_mut(group)?.extend(class);
    }
    expected.retain(|places| !places.is_empty());
    (expected.len() > 1).then_some(expected)
}
