//! Stack depth over the call graph, and the cycles that would make it endless.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::Graph;

/// Depth in bytes of the deepest path that starts at an entry.
pub type Depths = BTreeMap<u64, i64>;

/// A cycle in which a call is made or stack is held, if there is one: entries in order, the first again at
/// the end. Cycles of plain jumps (a loop spread over several functions) hold no stack and are none.
pub fn cycle(graph: &Graph) -> Option<Vec<u64>> {
    for (entry, node) in &graph.nodes {
        for edge in &node.edges {
            let holds_stack = edge.depth > 0 || graph.calls.contains(&(edge.at, edge.to));
            if holds_stack && let Some(mut back) = way(graph, edge.to, *entry) {
                back.insert(0, *entry);
                return Some(back);
            }
        }
    }
    None
}

/// The shortest way from `from` to `to`, both included.
fn way(graph: &Graph, from: u64, to: u64) -> Option<Vec<u64>> {
    let mut parents = BTreeMap::from([(from, from)]);
    let mut queue = std::collections::VecDeque::from([from]);
    while let Some(here) = queue.pop_front() {
        if here == to {
            let mut path = vec![to];
            let mut at = to;
            while at != from {
                at = parents[&at];
                path.push(at);
            }
            path.reverse();
            return Some(path);
        }
        for edge in graph
            .nodes
            .get(&here)
            .into_iter()
            .flat_map(|node| &node.edges)
        {
            parents.entry(edge.to).or_insert_with(|| {
                queue.push_back(edge.to);
                here
            });
        }
    }
    None
}

/// Depths of all entries. The graph has no [`cycle`], so each round settles at least one level of calls.
pub fn depths(graph: &Graph) -> Depths {
    let mut depths: Depths = graph
        .nodes
        .iter()
        .map(|(entry, node)| (*entry, node.frame))
        .collect();
    for _ in 0..=graph.nodes.len() {
        let mut changed = false;
        for (entry, node) in &graph.nodes {
            let below = node
                .edges
                .iter()
                .map(|edge| edge.depth + depths.get(&edge.to).copied().unwrap_or(0));
            let deepest = below.max().unwrap_or(0).max(node.frame);
            changed |= depths.insert(*entry, deepest) != Some(deepest);
        }
        if !changed {
            break;
        }
    }
    depths
}

/// The deepest path from `entry`: each entry with the stack that it holds there.
pub fn deepest_path(graph: &Graph, depths: &Depths, entry: u64) -> Vec<(u64, i64)> {
    let mut path = Vec::new();
    let mut seen = BTreeSet::new();
    let mut here = entry;
    while seen.insert(here) {
        let Some(node) = graph.nodes.get(&here) else {
            break;
        };
        let wanted = depths.get(&here).copied().unwrap_or(0);
        let next = node.edges.iter().find(|edge| {
            edge.depth + depths.get(&edge.to).copied().unwrap_or(0) == wanted && wanted > node.frame
        });
        match next {
            Some(edge) => {
                path.push((here, edge.depth));
                here = edge.to;
            }
            None => {
                path.push((here, node.frame));
                break;
            }
        }
    }
    path
}
