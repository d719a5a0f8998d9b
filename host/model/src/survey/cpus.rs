//! CPUs with their clusters and caches (Devicetree Specification 0.4, 3.8 and 3.9; Linux, bindings/cpu/cpu-topology.txt).

use serde::Serialize;

use crate::board::{Entry, Tree};

/// Affinity fields of an MPIDR in a `reg` of /cpus.
const AFFINITY: u64 = 0xff_00ff_ffff;
/// Most caches behind each other that are followed.
const LEVELS: usize = 8;

/// A CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Affinity fields of its MPIDR_EL1.
    pub mpidr: u64,
    /// First word of `compatible`.
    pub kind: String,
    /// Method by which it is started (`enable-method`).
    pub enable_method: Option<String>,
    /// Whether firmware leaves it for use.
    pub enabled: bool,
    /// Path of its node.
    pub path: String,
}

/// CPUs that belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// Name in the tree's `cpu-map`, or the affinity that its CPUs have in common.
    pub name: String,
    /// Numbers of its CPUs.
    pub cpus: Vec<usize>,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Level: 1 is nearest to the CPU.
    pub level: u32,
    /// `data`, `instruction`, `unified`.
    pub kind: &'static str,
    /// Bytes, if the tree says.
    pub size: Option<u32>,
    /// Bytes of a line, if the tree says.
    pub line: Option<u32>,
    /// Sets, if the tree says.
    pub sets: Option<u32>,
    /// Ways, which follow from the others.
    pub ways: Option<u32>,
    /// Numbers of the CPUs that share it.
    pub cpus: Vec<usize>,
}

/// CPUs, their clusters and caches.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cpus {
    /// CPUs in the order of the tree; the first one boots.
    pub cpus: Vec<Cpu>,
    /// Clusters.
    pub clusters: Vec<Cluster>,
    /// Whether the tree says so (`cpu-map`); else they follow from the MPIDRs.
    pub clusters_stated: bool,
    /// Caches, by level.
    pub caches: Vec<Cache>,
}

/// Whether a node is a CPU.
fn is_cpu(entry: &Entry) -> bool {
    let below = entry.path.strip_prefix("/cpus/");
    let direct = below.is_some_and(|name| !name.contains('/'));
    direct && entry.text("device_type").as_deref() == Some("cpu")
}

/// Reads all of it.
pub(super) fn read(tree: &Tree) -> Cpus {
    let nodes: Vec<&Entry> = tree.entries.iter().filter(|entry| is_cpu(entry)).collect();
    let cpus: Vec<Cpu> = nodes.iter().map(|node| cpu(node)).collect();
    let stated = stated_clusters(tree, &nodes);
    let clusters_stated = !stated.is_empty();
    Cpus {
        clusters: if clusters_stated {
            stated
        } else {
            by_affinity(&cpus)
        },
        clusters_stated,
        caches: caches(tree, &nodes),
        cpus,
    }
}

fn cpu(node: &Entry) -> Cpu {
    let reg = node.cells("reg").unwrap_or_default();
    let mpidr = reg
        .iter()
        .fold(0, |sum: u64, cell| sum << 32 | u64::from(*cell));
    Cpu {
        mpidr: mpidr & AFFINITY,
        kind: node.compatible().into_iter().next().unwrap_or_default(),
        enable_method: node.text("enable-method"),
        enabled: node.is_enabled(),
        path: node.path.clone(),
    }
}

/// Clusters of `/cpus/cpu-map`: a node for each that holds cores, perhaps with threads.
fn stated_clusters(tree: &Tree, nodes: &[&Entry]) -> Vec<Cluster> {
    let mut clusters: Vec<Cluster> = Vec::new();
    for entry in &tree.entries {
        let Some(path) = entry.path.strip_prefix("/cpus/cpu-map/") else {
            continue;
        };
        let phandle = entry.cell("cpu");
        let number = nodes
            .iter()
            .position(|node| phandle.is_some() && node.cell("phandle") == phandle);
        let Some(number) = number else {
            continue;
        };
        let is_cluster = |part: &&str| part.starts_with("socket") || part.starts_with("cluster");
        let names: Vec<&str> = path.split('/').take_while(is_cluster).collect();
        let name = names.join("/");
        add(&mut clusters, name, number);
    }
    clusters
}

/// Puts a CPU into the cluster of that name.
fn add(clusters: &mut Vec<Cluster>, name: String, number: usize) {
    match clusters.iter_mut().find(|cluster| cluster.name == name) {
        Some(cluster) => cluster.cpus.push(number),
        None => clusters.push(Cluster {
            name,
            cpus: vec![number],
        }),
    }
}

/// Clusters by all affinity levels but the lowest.
fn by_affinity(cpus: &[Cpu]) -> Vec<Cluster> {
    let mut clusters: Vec<Cluster> = Vec::new();
    for (number, cpu) in cpus.iter().enumerate() {
        let name = format!("affinity {:#x}", cpu.mpidr & !0xff);
        add(&mut clusters, name, number);
    }
    clusters
}

/// Properties of one cache of a node: `prefix` is "d-", "i-" or nothing.
fn cache(node: &Entry, level: u32, kind: &'static str, prefix: &str) -> Option<Cache> {
    let number = |name: &str| node.cell(&format!("{prefix}cache-{name}"));
    let (size, sets) = (number("size"), number("sets"));
    let line = number("line-size").or_else(|| number("block-size"));
    if size.is_none() && sets.is_none() && line.is_none() {
        return None;
    }
    let ways = || size?.checked_div(line?.checked_mul(sets?)?);
    Some(Cache {
        level,
        kind,
        size,
        line,
        sets,
        ways: ways().filter(|ways| *ways > 0),
        cpus: Vec::new(),
    })
}

/// The caches of one node: data and instruction, or one for both.
fn of_node(node: &Entry, level: u32) -> Vec<Cache> {
    let all = [("data", "d-"), ("instruction", "i-"), ("unified", "")];
    all.iter()
        .filter_map(|(kind, prefix)| cache(node, level, kind, prefix))
        .collect()
}

/// All caches: those of the CPUs themselves, and those that they lead to.
fn caches(tree: &Tree, nodes: &[&Entry]) -> Vec<Cache> {
    let mut caches = Vec::new();
    // Shared ones by the path of their node, so that CPUs that lead to the same meet there.
    let mut shared: Vec<(String, Vec<Cache>)> = Vec::new();
    for (number, node) in nodes.iter().enumerate() {
        caches.extend(of_node(node, 1).into_iter().map(|cache| Cache {
            cpus: vec![number],
            ..cache
        }));
        let mut above: Entry = (*node).clone();
        for level in 2..2 + LEVELS as u32 {
            let next = above.cell("next-level-cache").or(above.cell("l2-cache"));
            let Some(next) = next.and_then(|phandle| tree.by_phandle(phandle)) else {
                break;
            };
            let index = shared.iter().position(|(path, _)| *path == next.path);
            let index = index.unwrap_or_else(|| {
                let level = next.cell("cache-level").unwrap_or(level);
                let mut own = of_node(next, level);
                if own.is_empty() {
                    // The cache exists, but the tree does not state its size.
                    own.push(Cache {
                        level,
                        kind: "unified",
                        size: None,
                        line: None,
                        sets: None,
                        ways: None,
                        cpus: Vec::new(),
                    });
                }
                shared.push((next.path.clone(), own));
                shared.len() - 1
            });
            for cache in shared.get_mut(index).into_iter().flat_map(|(_, own)| own) {
                if !cache.cpus.contains(&number) {
                    cache.cpus.push(number);
                }
            }
            above = next.clone();
        }
    }
    caches.extend(shared.into_iter().flat_map(|(_, own)| own));
    caches.sort_by_key(|cache| cache.level);
    caches
}
