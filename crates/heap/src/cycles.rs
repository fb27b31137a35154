//! Where garbage begins: in objects that refer to one another, and that no other garbage refers to.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

/// Of a graph with so many vertices and these edges, the vertices to which nothing leads but what they lead to themselves.
/// Each other vertex is reached from one of these.
pub(crate) fn beginnings(count: usize, edges: &[(u32, u32)]) -> Vec<bool> {
    let mut graph: DiGraph<(), ()> = DiGraph::with_capacity(count, edges.len());
    for _ in 0..count {
        graph.add_node(());
    }
    for (from, to) in edges {
        graph.add_edge(
            NodeIndex::new(*from as usize),
            NodeIndex::new(*to as usize),
            (),
        );
    }
    let mut component_of = vec![0_usize; count];
    let components = kosaraju_scc(&graph);
    for (number, component) in components.iter().enumerate() {
        for vertex in component {
            component_of[vertex.index()] = number;
        }
    }
    let mut is_first = vec![true; components.len()];
    for (from, to) in edges {
        let (from, to) = (component_of[*from as usize], component_of[*to as usize]);
        if from != to {
            is_first[to] = false;
        }
    }
    component_of
        .into_iter()
        .map(|number| is_first[number])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which vertices are reached from this one.
    fn reached(count: usize, edges: &[(u32, u32)], from: usize) -> Vec<bool> {
        let mut seen = vec![false; count];
        seen[from] = true;
        for _ in 0..count {
            for (from, to) in edges {
                if seen[*from as usize] {
                    seen[*to as usize] = true;
                }
            }
        }
        seen
    }

    #[test]
    fn they_are_those_that_reach_all_that_reaches_them() {
        let mut state = 1_u64;
        let mut chance = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as usize % below) as u32
        };
        for _ in 0..300 {
            let count = 1 + chance(12) as usize;
            let edges: Vec<(u32, u32)> = (0..chance(25))
                .map(|_| (chance(count), chance(count)))
                .collect();
            let from: Vec<Vec<bool>> = (0..count).map(|it| reached(count, &edges, it)).collect();
            let plain: Vec<bool> = (0..count)
                .map(|it| (0..count).all(|other| !from[other][it] || from[it][other]))
                .collect();
            assert_eq!(beginnings(count, &edges), plain, "{count} {edges:?}");
        }
    }
}
