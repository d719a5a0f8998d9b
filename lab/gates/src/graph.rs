//! The call graph from the roots: each function is explored by following its flow of control with the
//! stack depth, so that only code that can run is judged.

use std::collections::{BTreeMap, BTreeSet};

use crate::decode::{self, Flow, SP, Stack};
use crate::image::Image;

/// Deepest stack that is followed, in bytes; beyond it a function grows its stack in a loop.
const DEEPEST: i64 = 1 << 20;
/// Instructions before a `BR` in which the parts of its jump table are looked for.
const TABLE_WINDOW: u64 = 16;

/// Something in a function that no gate lets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Defect {
    /// `BLR`: the callee can't be known.
    IndirectCall,
    /// `BR` that is no jump table within its function.
    IndirectJump,
    /// `BRK`, `HLT` or `UDF`.
    Trap,
    /// Control leaves the code of the image.
    OutsideCode,
    /// The stack pointer is written from a value that is not followed.
    StackPointer,
    /// The stack grows without a bound that can be seen.
    StackGrowth,
}

/// A call, or a jump to another function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    /// Entry of the callee.
    pub to: u64,
    /// Address of the instruction.
    pub at: u64,
    /// Bytes of stack in use there.
    pub depth: i64,
}

/// A function as it is entered at one address.
#[derive(Debug, Default)]
pub struct Node {
    /// Most bytes of stack that it uses itself.
    pub frame: i64,
    /// Calls and jumps to other functions.
    pub edges: BTreeSet<Edge>,
    /// Defects and where they are.
    pub defects: BTreeSet<(u64, Defect)>,
    /// Whether it can return to its caller.
    pub returns: bool,
    /// Whether it sets the stack pointer anew, to a stack of its own.
    pub resets: bool,
}

/// Everything that can be reached, by entry address.
#[derive(Debug, Default)]
pub struct Graph {
    /// The functions.
    pub nodes: BTreeMap<u64, Node>,
    /// Calls, as (address of the `BL`, entry of the callee); all other edges are jumps.
    pub calls: BTreeSet<(u64, u64)>,
    open: BTreeSet<u64>,
}

/// Stack depth and the registers that hold a copy of the stack pointer (as depths).
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    depth: i64,
    copies: BTreeMap<u8, i64>,
}

impl State {
    /// Merges `other` in; whether anything became deeper or less known. A copy that ways disagree about is none: it points into something on
    /// the stack, as one that a loop moves, and is never given back to it.
    fn merge(&mut self, other: &Self) -> bool {
        let mut copies = self.copies.clone();
        copies.retain(|register, depth| other.copies.get(register) == Some(depth));
        let merged = Self {
            depth: self.depth.max(other.depth),
            copies,
        };
        let changed = merged != *self;
        *self = merged;
        changed
    }

    /// Applies the effect of an instruction; false when the stack pointer is no longer known.
    fn apply(&mut self, effect: Stack) -> bool {
        let read = |state: &Self, register: u8| match register {
            SP => Some(state.depth),
            _ => state.copies.get(&register).copied(),
        };
        let (to, depth) = match effect {
            Stack::Keep => return true,
            Stack::Unknown => return false,
            Stack::Copy { to, from, add } => (to, read(self, from).map(|depth| depth - add)),
            Stack::Align { from, align } => (SP, read(self, from).map(|depth| depth + align - 1)),
        };
        match (to, depth) {
            (SP, Some(depth)) => self.depth = depth,
            (SP, None) => return false,
            (_, Some(depth)) => {
                self.copies.insert(to, depth);
            }
            (_, None) => {
                self.copies.remove(&to);
            }
        }
        true
    }
}

impl Graph {
    /// Explores the function entered at `entry` and all that it reaches; whether it can return.
    pub fn explore(&mut self, image: &Image<'_>, entry: u64, stack_setters: &[String]) -> bool {
        if let Some(node) = self.nodes.get(&entry) {
            return node.returns;
        }
        // Entered again while it is explored: recursion, which the judge reports. Calls return, as a rule.
        if !self.open.insert(entry) {
            return true;
        }
        let node = Walk::new(self, image, entry, stack_setters).run();
        let returns = node.returns;
        self.open.remove(&entry);
        self.nodes.insert(entry, node);
        returns
    }
}

/// The exploration of one function.
struct Walk<'a, 'data> {
    graph: &'a mut Graph,
    image: &'a Image<'data>,
    setters: &'a [String],
    entry: u64,
    start: u64,
    end: u64,
    seen: BTreeMap<u64, State>,
    todo: Vec<u64>,
    table: Option<State>,
    node: Node,
}

impl<'a, 'data> Walk<'a, 'data> {
    fn new(
        graph: &'a mut Graph,
        image: &'a Image<'data>,
        entry: u64,
        setters: &'a [String],
    ) -> Self {
        let (start, end) = image
            .function(entry)
            .map_or((entry, entry), |f| (f.start, f.end));
        Self {
            graph,
            image,
            setters,
            entry,
            start,
            end,
            seen: BTreeMap::new(),
            todo: Vec::new(),
            table: None,
            node: Node::default(),
        }
    }

    fn run(mut self) -> Node {
        self.go(
            self.entry,
            self.entry,
            &State {
                depth: 0,
                copies: BTreeMap::new(),
            },
        );
        loop {
            while let Some(pc) = self.todo.pop() {
                self.step(pc);
            }
            // A jump table can lead to any block of the function. Blocks that nothing else leads to start
            // at the first instruction not seen yet.
            let Some(state) = self.table.clone() else {
                break;
            };
            let unseen = (self.start..self.end)
                .step_by(4)
                .find(|pc| !self.seen.contains_key(pc));
            match unseen {
                Some(pc) => self.go(pc, pc, &state),
                None => break,
            }
        }
        self.node
    }

    /// Control goes from `at` to `to`.
    fn go(&mut self, at: u64, to: u64, state: &State) {
        self.node.frame = self.node.frame.max(state.depth);
        if to < self.start || to >= self.end {
            self.leave(at, to, state.depth);
            return;
        }
        if state.depth > DEEPEST {
            self.node.defects.insert((at, Defect::StackGrowth));
            return;
        }
        let deeper = match self.seen.get_mut(&to) {
            Some(known) => known.merge(state),
            None => {
                self.seen.insert(to, state.clone());
                true
            }
        };
        if deeper {
            self.todo.push(to);
        }
    }

    /// Control leaves the function by a jump or by running on into the next one.
    fn leave(&mut self, at: u64, to: u64, depth: i64) {
        if self.image.word(to).is_none() {
            self.node.defects.insert((at, Defect::OutsideCode));
            return;
        }
        self.node.edges.insert(Edge { to, at, depth });
        self.node.returns |= self.graph.explore(self.image, to, self.setters);
    }

    fn step(&mut self, pc: u64) {
        let Some(word) = self.image.word(pc) else {
            self.node.defects.insert((pc, Defect::OutsideCode));
            return;
        };
        let mut state = self.seen[&pc].clone();
        match decode::flow(pc, word) {
            Flow::Next => {
                if !state.apply(decode::stack(word)) {
                    let names = &self.image.function(pc).map_or(&[][..], |f| &f.names);
                    if names.iter().any(|name| self.setters.contains(name)) {
                        self.node.resets = true;
                    } else {
                        self.node.defects.insert((pc, Defect::StackPointer));
                    }
                    state.depth = 0;
                }
                self.go(pc, pc + 4, &state);
            }
            Flow::Jump(to) => self.go(pc, to, &state),
            Flow::Branch(to) => {
                self.go(pc, to, &state);
                self.go(pc, pc + 4, &state);
            }
            Flow::Call(to) => {
                let known = self.image.word(to).is_some();
                if known {
                    self.graph.calls.insert((pc, to));
                    self.node.edges.insert(Edge {
                        to,
                        at: pc,
                        depth: state.depth,
                    });
                } else {
                    self.node.defects.insert((pc, Defect::OutsideCode));
                }
                if known && self.graph.explore(self.image, to, self.setters) {
                    self.go(pc, pc + 4, &state);
                }
            }
            Flow::JumpRegister(register) => {
                if self.is_table(pc, register) {
                    match &mut self.table {
                        Some(table) => {
                            table.merge(&state);
                        }
                        None => self.table = Some(state),
                    }
                } else {
                    self.node.defects.insert((pc, Defect::IndirectJump));
                }
            }
            Flow::CallRegister(_) => {
                self.node.defects.insert((pc, Defect::IndirectCall));
                self.go(pc, pc + 4, &state);
            }
            Flow::Return => self.node.returns = true,
            Flow::ExceptionReturn => {}
            // Words that only a jump table could lead to may be padding behind a call that never returns.
            Flow::Trap => {
                if self.table.is_none() {
                    self.node.defects.insert((pc, Defect::Trap));
                }
            }
        }
    }

    /// Whether the `BR` at `pc` goes through a jump table: its register is a base in this function or a
    /// table's address, plus an entry that was loaded from the table.
    fn is_table(&self, pc: u64, register: u8) -> bool {
        let before = || {
            (1..=TABLE_WINDOW)
                .map(|back| pc - 4 * back)
                .take_while(|at| *at >= self.start)
        };
        let add = before().find_map(|at| {
            let (rd, rn, rm) = decode::add_registers(self.image.word(at)?)?;
            (rd == register).then_some((at, rn, rm))
        });
        let Some((add_at, rn, rm)) = add else {
            return false;
        };
        // The base may have been formed long before, outside a loop.
        let forms = |wanted: u8| {
            (self.start..add_at).step_by(4).any(|at| {
                let formed = self
                    .image
                    .word(at)
                    .and_then(|word| decode::address(at, word));
                formed.is_some_and(|(rd, _)| rd == wanted)
            })
        };
        let loads = |wanted: u8| {
            before()
                .filter(|at| *at < add_at)
                .any(|at| self.image.word(at).and_then(decode::table_load) == Some(wanted))
        };
        let based = |base: u8, entry: u8| forms(base) && loads(entry);
        based(rn, rm) || based(rm, rn)
    }
}
