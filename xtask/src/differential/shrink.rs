//! Makes a failing program smaller while it still fails in the same key.

use serde_json::Value;

use super::program::Program;

/// Makes a program smaller by leaving out runs of elements, at first half of them at once, then fewer. `fails` plays a
/// program and says whether it still fails; it is called at most `tries` times. The attach is never left out.
pub fn shrink(program: &Program, tries: u32, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut smallest = program.clone();
    let mut left = tries;
    let mut length = smallest.elements.len().div_ceil(2);
    while length > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < smallest.elements.len() {
            let candidate = smallest.with(without(&smallest.elements, at, length));
            if candidate.elements.len() == smallest.elements.len() {
                at += length;
                continue;
            }
            if left == 0 {
                return smallest;
            }
            left -= 1;
            if fails(&candidate) {
                smallest = candidate;
                shorter = true;
            } else {
                at += length;
            }
        }
        // Single elements are tried again as long as that helps: an element may be needed only by others that are
        // gone by now.
        if length > 1 || !shorter {
            length /= 2;
        }
    }
    smallest
}

/// All elements but `length` of them from index `at` on. The attach is never left out.
fn without(elements: &[Value], at: usize, length: usize) -> Vec<Value> {
    let kept = |(place, element): &(usize, &Value)| {
        !(at..at + length).contains(place) || Program::does(element) == "attach"
    };
    let all = elements.iter().enumerate();
    all.filter(kept)
        .map(|(_, element)| element.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::program::generate;
    use super::*;

    fn needs(program: &Program, wanted: &[&Value]) -> bool {
        wanted
            .iter()
            .all(|element| program.elements.contains(element))
    }

    #[test]
    fn only_what_is_needed_is_left() -> anyhow::Result<()> {
        for program in generate(1, 20, &[])? {
            let plain = |element: &&Value| Program::does(element) != "attach";
            let own: Vec<&Value> = program.elements.iter().filter(plain).collect();
            let wanted = [own[0], own[own.len() / 2], own[own.len() - 1]];
            let mut asked = 0;
            let smallest = shrink(&program, 1000, |candidate| {
                asked += 1;
                assert!(candidate.elements.len() < program.elements.len());
                needs(candidate, &wanted)
            });
            assert!(needs(&smallest, &wanted));
            let names = smallest.elements.iter().map(Program::does);
            assert_eq!(names.filter(|does| *does == "attach").count(), 1);
            let different: std::collections::BTreeSet<String> =
                wanted.iter().map(ToString::to_string).collect();
            assert_eq!(
                smallest.elements.len(),
                different.len() + 1,
                "{:?}",
                smallest.elements
            );
            assert!(asked < 500, "{asked}");
        }
        Ok(())
    }

    #[test]
    fn tries_are_bounded() -> anyhow::Result<()> {
        let program = generate(3, 3, &[])?.remove(0);
        let mut asked = 0;
        let same = shrink(&program, 5, |_| {
            asked += 1;
            false
        });
        assert_eq!((asked, same), (5, program));
        Ok(())
    }
}
