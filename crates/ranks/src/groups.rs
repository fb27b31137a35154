//! Groups of ranks that look alike: values between whose neighbours there is no gap.

/// The ranks of which a number must be known before it is judged. Fewer ranks are too few to tell a rank that is odd from
/// a job whose ranks have different tasks.
pub const JUDGED_FROM: usize = 8;
/// Ranks that are at least necessary for a group.
pub(crate) const COMPANY: usize = 3;

/// Values that look alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Places of the values in the input, by value.
    pub members: Vec<usize>,
    /// The smallest value.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The largest value.
    pub high: f64,
    /// All values, smallest first.
    pub(crate) values: Vec<f64>,
}

impl Group {
    fn of(sorted: &[(usize, f64)]) -> Option<Group> {
        let values: Vec<f64> = sorted.iter().map(|(_, value)| *value).collect();
        Some(Group {
            members: sorted.iter().map(|(place, _)| *place).collect(),
            low: *values.first()?,
            median: median(&values)?,
            high: *values.last()?,
            values,
        })
    }
}

/// Cuts the values into groups, each of those between whose neighbours there is no gap of more than `alike` of the smaller
/// one. A value that has no company is a group of its own.
#[must_use]
pub fn groups(values: &[(usize, f64)], alike: f64) -> Vec<Group> {
    let mut sorted: Vec<(usize, f64)> = values
        .iter()
        .copied()
        .filter(|(_, value)| value.is_finite())
        .collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let runs = sorted.chunk_by(|left, right| right.1 - left.1 <= alike * left.1.abs());
    runs.filter_map(Group::of).collect()
}

/// Groups with company, and the values that have none.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) groups: Vec<Group>,
    pub(crate) strays: Vec<(usize, f64)>,
}

impl Split {
    /// The finest split in which all but a few values have company. Where ranks differ by more than `alike` by themselves,
    /// a coarser one is taken. `None` if too many have no company in any.
    pub(crate) fn of(values: &[(usize, f64)], alike: f64) -> Option<Split> {
        [1.0, 2.0, 4.0].into_iter().find_map(|factor| {
            let all = groups(values, alike * factor);
            let (groups, alone): (Vec<Group>, Vec<Group>) = all
                .into_iter()
                .partition(|group| group.members.len() >= COMPANY);
            let smallest = groups.iter().map(|group| group.members.len()).min()?;
            let strays: Vec<(usize, f64)> = alone
                .into_iter()
                .flat_map(|group| group.members.into_iter().zip(group.values))
                .collect();
            (strays.len() <= few(smallest)).then_some(Split { groups, strays })
        })
    }

    /// Whether the groups are so far apart that it is certain to which each of their members belongs: each gap is wider than
    /// the groups beside it.
    pub(crate) fn is_clear(&self) -> bool {
        self.groups.windows(2).all(|pair| match pair {
            [left, right] => {
                let gap = right.low - left.high;
                gap > (left.high - left.low).max(right.high - right.low)
            }
            _ => true,
        })
    }
}

/// Number of ranks that may be in no group: a small part of the smallest group, so that they are few
/// compared with each of the groups.
fn few(smallest: usize) -> usize {
    (smallest / 8).clamp(1, 4)
}

/// Median of sorted values.
pub(crate) fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(middle.checked_sub(1)?)?;
    Some(f64::midpoint(lower, upper))
}
