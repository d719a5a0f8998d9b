//! Link-time gates of the EL2 image.
//!
//! [`judge`] walks the call graph of the linked image from the exception vectors and from where threads start, as the machine would, and
//! refuses what must not be there: a panic, an indirect call, recursion, a stack that may run over, an
//! allocator. It judges the binary and not the source, so it sees what the compiler could not prove away.
#![forbid(unsafe_code)]

pub mod decode;
mod depth;
mod graph;
mod image;
mod report;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

pub use graph::Defect;
use graph::Graph;
pub use image::Error;
pub use image::{Function, Image};
pub use report::{Finding, Frame, Report, Step};

/// Bytes of the vector table and of one of its 16 entries (Arm DDI 0487, D1.3.2).
const VECTORS_SIZE: u64 = 0x800;
const VECTOR_SIZE: u64 = 0x80;
/// Entries below this offset take exceptions from EL2 itself; they come on top of what EL2 was doing.
const LOWER_EL: u64 = 0x400;

/// Criteria by which an image is judged.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Symbols of the vector tables: the 16 entries of each are roots of the call graph.
    pub vectors: Vec<String>,
    /// More roots: functions that start with an empty stack.
    pub entries: Vec<String>,
    /// Functions that may set the stack pointer anew (assembly that switches to a stack of its own).
    pub stack_setters: Vec<String>,
    /// Most bytes of stack.
    pub stack: u64,
    /// Code that is there at first only.
    pub unmapped: Option<Unmapped>,
    /// Parts of names of functions that the image has to do without, called or not.
    pub absent: Vec<String>,
}

/// Code that is unmapped at some time. What stays must not call it any more.
#[derive(Clone, Debug)]
pub struct Unmapped {
    /// Symbol of its first byte.
    pub start: String,
    /// Symbol of the byte behind it.
    pub end: String,
    /// Functions that call it all the same: before it is unmapped.
    pub callers: Vec<String>,
}

impl Default for Limits {
    /// Vectors only, two pages of stack as the plan gives to each pCPU, the way out when EL2 itself has failed, which
    /// leaves that stack, the way into a guest, which starts the stack anew for the next exit, and the way to another
    /// thread, which goes on with its own stack where it left it.
    fn default() -> Self {
        let vectors = ["vectors", "guarded_vectors"];
        Self {
            stack_setters: [
                "el2_fault_at",
                "start_guest",
                "switch_stack",
                "rest_thread",
                "pass_to_guest",
            ]
            .map(str::to_owned)
            .to_vec(),
            vectors: vectors.map(str::to_owned).to_vec(),
            entries: Vec::new(),
            stack: 8192,
            unmapped: None,
            absent: Vec::new(),
        }
    }
}

/// Names of functions that end in a panic (demangled, by their beginning).
const PANICS: [&str; 19] = [
    "core::panicking::",
    "std::panicking::",
    "core::option::unwrap_failed",
    "core::option::expect_failed",
    "core::result::unwrap_failed",
    "core::slice::index::slice_index_fail",
    "core::slice::index::slice_start_index",
    "core::slice::index::slice_end_index",
    "core::slice::index::slice_index_order_fail",
    "core::slice::copy_from_slice_impl::len_mismatch_fail",
    "core::str::slice_error_fail",
    "core::cell::panic_already",
    "core::hint::unreachable_unchecked::precondition_check",
    "rust_begin_unwind",
    "__rustc::rust_begin_unwind",
    "rust_panic",
    "__rustc::rust_panic",
    "panic_fmt",
    "panic_bounds_check",
];

/// Names of an allocator's functions (demangled, by their beginning).
const ALLOCATORS: [&str; 8] = [
    "__rust_alloc",
    "__rust_realloc",
    "__rg_alloc",
    "__rdl_alloc",
    "__rustc::__rust_alloc",
    "__rustc::__rust_realloc",
    "alloc::alloc::",
    "alloc::raw_vec::",
];

fn is_panic(name: &str) -> bool {
    PANICS.iter().any(|panic| name.starts_with(panic))
        || name.contains("::len_mismatch_fail")
        || name.contains("::panic_const")
        || name.contains("::precondition_check")
}

/// Judges the linked image `elf`.
///
/// # Errors
///
/// [`Error`] when the image can't be read or a root is missing: then nothing was judged.
pub fn judge(elf: &[u8], limits: &Limits) -> Result<Report, Error> {
    let image = Image::parse(elf)?;
    let symbol = |name: &str| {
        image
            .named(name)
            .map(|f| f.start)
            .ok_or_else(|| Error::NoRoot(name.to_owned()))
    };
    let (mut nested, mut roots) = (Vec::new(), Vec::new());
    for table in &limits.vectors {
        let table = symbol(table)?;
        for offset in (0..VECTORS_SIZE).step_by(usize::try_from(VECTOR_SIZE).unwrap_or(128)) {
            let kind = if offset < LOWER_EL {
                &mut nested
            } else {
                &mut roots
            };
            kind.push(table + offset);
        }
    }
    for entry in &limits.entries {
        roots.push(symbol(entry)?);
    }

    let unmapped = match &limits.unmapped {
        Some(code) => {
            let place = |name: &str| {
                let place = image.address(name);
                place.ok_or_else(|| Error::NoRoot(name.to_owned()))
            };
            place(&code.start)?..place(&code.end)?
        }
        None => 0..0,
    };
    let mut graph = Graph::default();
    for root in nested.iter().chain(&roots) {
        graph.explore(&image, *root, &limits.stack_setters);
    }
    let parents = parents(&graph, nested.iter().chain(&roots).copied());

    let callers = limits.unmapped.iter().flat_map(|code| &code.callers);
    let callers = callers.filter_map(|name| Some(image.named(name)?.start));
    let first = nested.iter().chain(&roots).copied().chain(callers);
    let stays = staying(&graph, &unmapped, first.collect());

    let mut findings = Vec::new();
    for (entry, node) in &graph.nodes {
        let names = image
            .function(*entry)
            .map_or(&[][..], |function| &function.names);
        if names.iter().any(|name| is_panic(name)) {
            // Only the first panic function on a way is told: what lies behind it follows from it.
            let path = path(&image, &parents, *entry);
            let first = path.iter().position(|step| is_panic(&step.name)) == Some(path.len() - 1);
            if first {
                findings.push(Finding::Panic { path });
            }
            continue;
        }
        let may_call = limits.unmapped.iter().flat_map(|code| &code.callers);
        let may_call = may_call.into_iter().any(|it| names.contains(it));
        let calls = node.edges.iter().filter(|_| !may_call);
        let calls = calls.filter(|edge| stays.contains(entry) && unmapped.contains(&edge.to));
        for edge in calls {
            let mut path = path(&image, &parents, *entry);
            if let Some(last) = path.last_mut() {
                last.lines = image.lines(edge.at);
                last.at = Some(edge.at);
            }
            let name = image.name(edge.to).into_owned();
            findings.push(Finding::Unmapped { name, path });
        }
        for (at, defect) in &node.defects {
            let mut path = path(&image, &parents, *entry);
            if path.iter().any(|step| is_panic(&step.name)) {
                continue;
            }
            if let Some(last) = path.last_mut() {
                last.lines = image.lines(*at);
                last.at = Some(*at);
            }
            findings.push(Finding::Code {
                defect: *defect,
                path,
            });
        }
    }
    for symbol in image.symbols() {
        if ALLOCATORS
            .iter()
            .any(|allocator| symbol.starts_with(allocator))
        {
            findings.push(Finding::Allocator {
                name: symbol.clone(),
            });
        }
        if limits.absent.iter().any(|part| symbol.contains(part)) {
            findings.push(Finding::Absent {
                name: symbol.clone(),
            });
        }
    }

    let stack = match depth::cycle(&graph) {
        Some(cycle) => {
            let names = cycle
                .iter()
                .map(|entry| image.name(*entry).into_owned())
                .collect();
            findings.push(Finding::Recursion { cycle: names });
            Vec::new()
        }
        None => deepest(&image, &graph, &roots, &nested),
    };
    let bytes = stack.iter().map(|frame| frame.bytes).sum::<i64>();
    let stack_bytes = u64::try_from(bytes).unwrap_or(0);
    if stack_bytes > limits.stack {
        findings.push(Finding::Stack {
            bytes: stack_bytes,
            limit: limits.stack,
        });
    }
    findings.sort_by_key(Finding::rank);
    Ok(Report {
        functions: graph.nodes.len(),
        stack,
        stack_bytes,
        stack_limit: limits.stack,
        findings,
    })
}

/// What can be reached of the code that stays, without the code that does not.
fn staying(graph: &Graph, unmapped: &Range<u64>, mut todo: Vec<u64>) -> BTreeSet<u64> {
    let mut stays = BTreeSet::new();
    while let Some(entry) = todo.pop() {
        if !unmapped.contains(&entry) && stays.insert(entry) {
            let node = graph.nodes.get(&entry);
            todo.extend(node.iter().flat_map(|node| &node.edges).map(|edge| edge.to));
        }
    }
    stays
}

/// For each reachable entry the caller nearest to a root, and where it calls.
fn parents(graph: &Graph, roots: impl Iterator<Item = u64>) -> BTreeMap<u64, Option<(u64, u64)>> {
    let mut parents: BTreeMap<u64, Option<(u64, u64)>> = roots.map(|root| (root, None)).collect();
    let mut queue: VecDeque<u64> = parents.keys().copied().collect();
    while let Some(entry) = queue.pop_front() {
        let Some(node) = graph.nodes.get(&entry) else {
            continue;
        };
        for edge in &node.edges {
            parents.entry(edge.to).or_insert_with(|| {
                queue.push_back(edge.to);
                Some((entry, edge.at))
            });
        }
    }
    parents
}

/// The shortest way from a root to `entry`.
fn path(image: &Image<'_>, parents: &BTreeMap<u64, Option<(u64, u64)>>, entry: u64) -> Vec<Step> {
    let mut steps = vec![Step {
        name: image.name(entry).into_owned(),
        at: None,
        lines: Vec::new(),
    }];
    let mut seen = BTreeSet::from([entry]);
    let mut here = entry;
    while let Some(Some((caller, at))) = parents.get(&here) {
        if !seen.insert(*caller) {
            break;
        }
        steps.push(Step {
            name: image.name(*caller).into_owned(),
            at: Some(*at),
            lines: image.lines(*at),
        });
        here = *caller;
    }
    steps.reverse();
    steps
}

/// The deepest path of stack frames: from the lower exception level or another entry, and on top of it what
/// an exception from EL2 itself takes, unless that starts on a stack of its own.
fn deepest(image: &Image<'_>, graph: &Graph, roots: &[u64], nested: &[u64]) -> Vec<Frame> {
    let depths = depth::depths(graph);
    let worst = |entries: &[u64]| {
        let entry = entries
            .iter()
            .copied()
            .max_by_key(|entry| depths.get(entry).copied().unwrap_or(0));
        entry.map_or_else(Vec::new, |entry| depth::deepest_path(graph, &depths, entry))
    };
    let size = |path: &[(u64, i64)]| path.iter().map(|(_, bytes)| *bytes).sum::<i64>();
    let resets = |entry: &u64| graph.nodes.get(entry).is_some_and(|node| node.resets);
    let (apart, on_top): (Vec<u64>, Vec<u64>) = nested.iter().copied().partition(resets);
    let mut deepest = worst(roots);
    deepest.extend(worst(&on_top));
    let apart = worst(&apart);
    if size(&apart) > size(&deepest) {
        deepest = apart;
    }
    let frame = |(entry, bytes)| Frame {
        name: image.name(entry).into_owned(),
        bytes,
    };
    deepest.into_iter().map(frame).collect()
}
