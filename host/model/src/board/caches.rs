//! The caches by whose colours memory is divided: for each CPU the last one on its way to memory. All CPUs have the same one, or each cluster has its own.

use bulkhead_abi::plan::{MAX_COLOURS, PAGE};

use super::tree::{Entry, Tree};
use crate::describe::{BoardSpec, CacheSpec, Code, Finding, Placed, colours_text};

/// A cache of the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// CPUs that use it, by their numbers.
    pub cpus: Vec<usize>,
    /// Its level by the tree, if that tells its colours; 0: the description does.
    pub level: u32,
    /// Its colours: the pages of one of its ways, up to [`MAX_COLOURS`].
    pub colours: u32,
}

/// What a device tree tells of caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachesTold {
    /// Whether the tree says which CPUs share which cache (`next-level-cache`). Else all are taken to share one.
    linked: bool,
    caches: Vec<CacheTold>,
}

/// What it tells of one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CacheTold {
    cpus: Vec<usize>,
    /// Level and colours; none: it does not tell enough.
    sizes: Option<(u32, u32)>,
}

impl CachesTold {
    /// Reads the caches of these CPUs. A tree that does not say of each CPU where its way to memory leads is taken to have one cache for all, by which nothing is
    /// promised that does not hold.
    pub fn read<'t, 'a: 't>(tree: &'t Tree<'a>, cpus: impl Iterator<Item = &'t Entry<'a>>) -> Self {
        let last: Vec<Option<&Entry>> = cpus.map(|cpu| last_of(tree, cpu)).collect();
        let count = last.len();
        let last: Option<Vec<&Entry>> = last.into_iter().collect();
        let Some(last) = last else {
            let all = CacheTold {
                cpus: (0..count).collect(),
                sizes: of_all(tree),
            };
            return Self {
                linked: false,
                caches: vec![all],
            };
        };
        let mut caches: Vec<(&str, CacheTold)> = Vec::new();
        for (cpu, cache) in last.into_iter().enumerate() {
            match caches.iter_mut().find(|(path, _)| *path == cache.path) {
                Some((_, known)) => known.cpus.push(cpu),
                None => {
                    let told = CacheTold {
                        cpus: vec![cpu],
                        sizes: sizes(cache),
                    };
                    caches.push((&cache.path, told));
                }
            }
        }
        Self {
            linked: true,
            caches: caches.into_iter().map(|(_, told)| told).collect(),
        }
    }

    /// Whether the tree has nothing against what is said of a cache.
    fn bears(&self, cpus: &[usize], colours: u32) -> bool {
        self.caches.iter().any(|told| {
            let same = told.cpus == cpus || !self.linked;
            same && told.sizes.is_none_or(|(_, told)| told == colours)
        })
    }

    /// What the tree tells, in words.
    fn text(&self) -> String {
        let each = self.caches.iter().map(|cache| {
            let of = format!("for {}", cpus_text(&cache.cpus));
            match (cache.sizes, self.linked) {
                (Some((_, colours)), true) => format!("{colours} colours {of}"),
                (None, true) => format!("one {of}"),
                (sizes, false) => format!("{} colours", sizes.map_or(0, |(_, colours)| colours)),
            }
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

/// The last cache on the way of a CPU to memory (Devicetree Specification 0.4, 3.9).
fn last_of<'a, 'b>(tree: &'a Tree<'b>, cpu: &Entry<'b>) -> Option<&'a Entry<'b>> {
    let next = |entry: &Entry| {
        tree.by_phandle({
            entry
                .cell("next-level-cache")
                .or_else(|| entry.cell("l2-cache"))?
        })
    };
    let mut last = next(cpu)?;
    // No CPU has more levels than CLIDR_EL1 tells of.
    for _ in 0..7 {
        match next(last) {
            Some(next) => last = next,
            None => return Some(last),
        }
    }
    None
}

/// Level and colours of a cache: the pages of one of its ways. More than a region has bits for are as many as it has: each of these is several of the
/// cache.
fn sizes(cache: &Entry) -> Option<(u32, u32)> {
    let level = cache.cell("cache-level").filter(|level| *level > 1)?;
    let [sets, line] = ["cache-sets", "cache-line-size"].map(|name| cache.cell(name));
    let pages = sets?.checked_mul(line?)? / PAGE as u32;
    let sound = pages.is_power_of_two() && pages > 1;
    sound.then(|| (level, pages.min(MAX_COLOURS)))
}

/// The same of the last caches of a tree that does not say whose they are. None if they differ.
fn of_all(tree: &Tree) -> Option<(u32, u32)> {
    let caches = tree.entries.iter().filter(|entry| entry.is("cache"));
    let level = |entry: &Entry| entry.cell("cache-level");
    let last = caches.clone().filter_map(level).max()?;
    let mut all = caches.filter(|entry| level(entry) == Some(last)).map(sizes);
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
}

impl Cache {
    /// The CPUs that use it, in words.
    pub fn cpus_text(&self) -> String {
        cpus_text(&self.cpus)
    }
}

/// `CPU 0`, `CPUs 1-3`.
fn cpus_text(numbers: &[usize]) -> String {
    let text = colours_text(numbers.iter().fold(0, |all, number| all | 1 << number));
    match numbers.len() {
        1 => format!("CPU {text}"),
        _ => format!("CPUs {text}"),
    }
}

/// The caches of a board with so many CPUs: what the description says, else what the tree tells. Empty: their colours are not known.
pub fn caches(
    spec: &BoardSpec,
    told: &CachesTold,
    cpus: usize,
    findings: &mut Vec<Finding>,
) -> Vec<Cache> {
    if let Some(colours) = &spec.colours {
        let said = told.caches.iter().map(|cache| Cache {
            cpus: cache.cpus.clone(),
            level: 0,
            colours: colours.value,
        });
        let said: Vec<Cache> = said.collect();
        if let Some(other) = said
            .iter()
            .find(|cache| !told.bears(&cache.cpus, cache.colours))
        {
            findings.push(
                contradiction(colours, told).help(match other.cpus.len() < cpus {
                    true => "say `caches` instead, or leave both out, or give a tree that is right",
                    false => "leave `colours` out, or give a tree that is right",
                }),
            );
        }
        return said;
    }
    if !spec.caches.is_empty() {
        return said(&spec.caches, told, cpus, findings);
    }
    let all = told.caches.iter().map(|cache| {
        let (level, colours) = cache.sizes?;
        Some(Cache {
            cpus: cache.cpus.clone(),
            level,
            colours,
        })
    });
    all.collect::<Option<_>>().unwrap_or_default()
}

/// That the tree has something against it.
fn contradiction<T>(said: &Placed<T>, told: &CachesTold) -> Finding {
    let what = "this is not what the board's device tree tells of its cache";
    let told = format!("the tree tells of {}", told.text());
    Finding::new(Code::ColoursBoard, what).at(said.span.clone(), told)
}

/// The caches that the description names. Each CPU has one.
fn said(
    caches: &[Placed<CacheSpec>],
    told: &CachesTold,
    cpus: usize,
    findings: &mut Vec<Finding>,
) -> Vec<Cache> {
    let mut all = Vec::new();
    let mut taken: Vec<Option<&Placed<CacheSpec>>> = vec![None; cpus];
    for said in caches {
        let own: Vec<usize> = said.value.cpus.iter().map(|cpu| *cpu as usize).collect();
        if let Some(beyond) = own.iter().find(|cpu| **cpu >= cpus) {
            findings.push(
                Finding::new(Code::ColoursBoard, format!("the board has no CPU {beyond}"))
                    .at(said.span.clone(), format!("it has {cpus}, counted from 0"))
                    .help("name each CPU of the board once"),
            );
            return Vec::new();
        }
        for cpu in &own {
            if let Some(before) = taken[*cpu].replace(said) {
                findings.push(
                    Finding::new(Code::ColoursBoard, format!("CPU {cpu} has two last caches"))
                        .at(said.span.clone(), "here again")
                        .also(Some(before.span.clone()), "first here")
                        .help("name each CPU of the board once"),
                );
                return Vec::new();
            }
        }
        if !told.bears(&own, said.value.colours) {
            findings.push(
                contradiction(said, told).help("leave `caches` out, or give a tree that is right"),
            );
        }
        all.push(Cache {
            cpus: own,
            level: 0,
            colours: said.value.colours,
        });
    }
    if let (Some(cpu), Some(last)) = (taken.iter().position(Option::is_none), caches.last()) {
        findings.push(
            Finding::new(Code::ColoursBoard, format!("CPU {cpu} has no cache here"))
                .at(last.span.clone(), "this is the last one")
                .help("name each CPU of the board once"),
        );
        return Vec::new();
    }
    all
}

#[cfg(test)]
mod tests {
    use dtoolkit::fdt::Fdt;
    use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

    use super::*;

    /// A cache of a tree: its handle, what follows it, its level, and sets, none if the tree does not tell.
    type Node = (u32, Option<u32>, u32, Option<u32>);

    fn node(name: &str, properties: &[(&str, Option<u32>)]) -> DeviceTreeNode {
        let mut node = DeviceTreeNode::new(name).expect("name");
        for (name, value) in properties {
            if let Some(value) = value {
                let property = DeviceTreeProperty::new(*name, value.to_be_bytes().to_vec());
                node.add_property(property.expect("property"));
            }
        }
        node
    }

    /// What is told by a tree with these caches, whose CPUs lead to these.
    fn told(caches: &[Node], cpus: &[Option<u32>]) -> CachesTold {
        let mut all = node("cpus", &[]);
        for (n, next) in cpus.iter().enumerate() {
            all.add_child(node(&format!("cpu@{n}"), &[("next-level-cache", *next)]));
        }
        for (handle, next, level, sets) in caches {
            let mut cache = node(
                &format!("l{level}-cache{handle}"),
                &[
                    ("phandle", Some(*handle)),
                    ("next-level-cache", *next),
                    ("cache-level", Some(*level)),
                    ("cache-sets", *sets),
                    ("cache-line-size", Some(64)),
                ],
            );
            let compatible = DeviceTreeProperty::new("compatible", b"cache\0".to_vec());
            cache.add_property(compatible.expect("property"));
            all.add_child(cache);
        }
        let mut root = node("", &[]);
        root.add_child(all);
        let mut tree = DeviceTree::new();
        tree.root = root;
        let bytes = tree.to_dtb();
        let tree = Tree::new(Fdt::new(&bytes).expect("a tree"));
        let cpus = { tree.entries.iter() }.filter(|entry| entry.path.contains("cpu@"));
        CachesTold::read(&tree, cpus)
    }

    /// What is told of a cache: CPUs, level and colours.
    type Told = (Vec<usize>, Option<(u32, u32)>);

    /// What a tree tells of each.
    fn found(caches: &[Node], cpus: &[Option<u32>]) -> Vec<Told> {
        let told = told(caches, cpus).caches.into_iter();
        told.map(|cache| (cache.cpus, cache.sizes)).collect()
    }

    const BIG: Node = (1, None, 2, Some(1024));
    const LITTLE: Node = (2, None, 2, Some(512));

    #[test]
    fn each_cluster_has_its_own_or_all_have_one_behind_theirs() {
        let cpus = [Some(1), Some(2), Some(1), Some(2)];
        let both = [(vec![0, 2], Some((2, 16))), (vec![1, 3], Some((2, 8)))];
        assert_eq!(found(&[BIG, LITTLE], &cpus), both);
        let behind = |own: Node| (own.0, Some(3), own.2, own.3);
        let last = (3, None, 3, Some(4096));
        let one = [(vec![0, 1, 2, 3], Some((3, 64)))];
        assert_eq!(found(&[behind(BIG), behind(LITTLE), last], &cpus), one);
        // More than a region has bits for.
        let last = (3, None, 3, Some(16384));
        assert_eq!(found(&[behind(BIG), behind(LITTLE), last], &cpus), one);
    }

    #[test]
    fn what_does_not_say_whose_it_is_is_of_all() {
        for cpus in [[None, None], [Some(1), None], [Some(1), Some(7)]] {
            assert_eq!(found(&[BIG], &cpus), [(vec![0, 1], Some((2, 16)))]);
            assert_eq!(found(&[BIG, LITTLE], &cpus), [(vec![0, 1], None)]);
        }
        // One that leads to itself.
        let round = (1, Some(1), 2, Some(1024));
        assert_eq!(found(&[round], &[Some(1)]), [(vec![0], Some((2, 16)))]);
    }

    #[test]
    fn a_cache_whose_colours_are_not_told_or_none_has_none() {
        for sets in [None, Some(64), Some(0), Some(768), Some(u32::MAX)] {
            let cache = (1, None, 2, sets);
            assert_eq!(found(&[cache], &[Some(1)]), [(vec![0], None)], "{sets:?}");
        }
        assert_eq!(
            found(&[(1, None, 1, Some(1024))], &[Some(1)]),
            [(vec![0], None)]
        );
    }

    #[test]
    fn a_tree_bears_what_it_does_not_contradict() {
        let clusters = told(&[BIG, LITTLE], &[Some(1), Some(1), Some(2)]);
        assert!(clusters.bears(&[0, 1], 16) && clusters.bears(&[2], 8));
        assert!(!clusters.bears(&[0, 1], 8) && !clusters.bears(&[0, 1, 2], 16));
        let unknown = told(&[(1, None, 2, None)], &[Some(1), Some(1)]);
        assert!(unknown.bears(&[0, 1], 16) && !unknown.bears(&[0], 16));
        let unlinked = told(&[BIG], &[None, None]);
        assert!(unlinked.bears(&[0], 16) && !unlinked.bears(&[0], 8));
    }
}
