//! Which modules import which, read from the sources of crates.
//!
//! A module imports another one by a `use` or by a path in its code, wherever the name in it is defined: a `pub use`
//! passes names on and imports nothing by itself. What only tests have (`#[cfg(test)]`) does not count, nor do methods,
//! which no path names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A module by its path, from the name of its crate on.
pub type Name = Vec<String>;

/// Imports of each module, with one of the paths by which each is imported.
pub type Graph = BTreeMap<Name, BTreeMap<Name, String>>;

/// Keywords behind which stands the name of an item.
const ITEMS: [&str; 9] = [
    "const", "enum", "fn", "macro", "static", "struct", "trait", "type", "union",
];

/// A name that a `use` brings.
struct Import {
    path: Vec<String>,
    /// `*` for all names.
    name: String,
    public: bool,
}

/// A module as its file has it, without other modules in it.
#[derive(Default)]
struct Module {
    /// Names of the modules in it.
    inner: BTreeSet<String>,
    /// Names of items.
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths in the code, single names among them.
    paths: Vec<Vec<String>>,
}

/// The modules of some crates.
#[derive(Default)]
pub struct Modules(BTreeMap<Name, Module>);

impl Modules {
    /// Adds the modules of the crate `name`. `read` gives the text of a file, if there is such a file; `root` is the
    /// first one, `lib.rs` or `main.rs`.
    pub fn add(&mut self, name: &str, root: &Path, read: &dyn Fn(&Path) -> Option<String>) {
        let text = read(root).unwrap_or_else(|| panic!("there is no {}", root.display()));
        let folder = root.parent().unwrap_or(Path::new(""));
        self.add_text(vec![name.to_owned()], &text, folder, read);
    }

    /// Adds the module with this text; files of modules in it are in `folder`.
    fn add_text(
        &mut self,
        name: Name,
        text: &str,
        folder: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) {
        let stream: TokenStream = text
            .parse()
            .unwrap_or_else(|why| panic!("{}: {why}", name.join("::")));
        self.add_tokens(name, stream, folder, read);
    }

    fn add_tokens(
        &mut self,
        name: Name,
        stream: TokenStream,
        folder: &Path,
        read: &dyn Fn(&Path) -> Option<String>,
    ) {
        let trees = without_tests(stream);
        let mut module = Module::default();
        let mut words = Vec::new();
        let mut at = 0;
        while let Some(tree) = trees.get(at) {
            at += 1;
            let (TokenTree::Ident(word), Some(TokenTree::Ident(inner))) = (tree, trees.get(at))
            else {
                flatten(tree, &mut words);
                continue;
            };
            if ITEMS.iter().any(|item| word == item) {
                module.items.insert(inner.to_string());
            }
            if word != "mod" {
                flatten(tree, &mut words);
                continue;
            }
            at += 1;
            let inner = inner.to_string();
            let path: Name = name.iter().cloned().chain([inner.clone()]).collect();
            let below = folder.join(&inner);
            if let Some(TokenTree::Group(body)) = trees.get(at) {
                self.add_tokens(path, body.stream(), &below, read);
            } else {
                let beside = folder.join(format!("{inner}.rs"));
                // A `#[path]` leads to a file of another crate, or to one of several for different builds.
                let Some(text) = read(&beside).or_else(|| read(&below.join("mod.rs"))) else {
                    continue;
                };
                self.add_text(path, &text, &below, read);
            }
            module.inner.insert(inner);
        }
        module.read(&words);
        self.0.insert(name, module);
    }

    /// Returns the number of modules.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns which module imports which.
    pub fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (name, module) in &self.0 {
            let edges = graph.entry(name.clone()).or_default();
            let private = module.imports.iter().filter(|import| !import.public);
            for path in private.map(|import| &import.path).chain(&module.paths) {
                if let Some(other) = self.resolve(name, path, 0).filter(|other| other != name) {
                    edges.entry(other).or_insert_with(|| path.join("::"));
                }
            }
        }
        graph
    }

    /// Returns the module that defines what a path in the module `at` leads to; `None` if it leads out of these crates,
    /// or is no path to an item.
    fn resolve(&self, at: &[String], path: &[String], depth: u32) -> Option<Name> {
        let (first, rest) = path.split_first()?;
        // Names that lead to each other in a circle are of a crate that does not compile.
        if depth > 32 {
            return None;
        }
        match first.as_str() {
            "crate" => self.resolve_in(&at[..1], rest, depth),
            "self" => self.resolve_in(at, rest, depth),
            "super" => {
                let (_, parent) = at.split_last()?;
                match rest.first() {
                    Some(next) if next == "super" => self.resolve(parent, rest, depth + 1),
                    _ => self.resolve_in(parent, rest, depth),
                }
            }
            name if self.0.contains_key(&[name.to_owned()][..]) => {
                self.resolve_in(std::slice::from_ref(first), rest, depth)
            }
            name => {
                let module = self.0.get(at)?;
                let known = module.inner.contains(name) || module.named(name).is_some();
                known.then(|| self.resolve_in(at, path, depth))?
            }
        }
    }

    /// The same for a path from a module on.
    fn resolve_in(&self, at: &[String], path: &[String], depth: u32) -> Option<Name> {
        let module = self.0.get(at)?;
        let Some((first, rest)) = path.split_first() else {
            return Some(at.to_owned());
        };
        if module.inner.contains(first) {
            let inner: Name = at.iter().chain([first]).cloned().collect();
            return self.resolve_in(&inner, rest, depth);
        }
        if let Some(import) = module.named(first) {
            let path: Vec<String> = import.path.iter().chain(rest).cloned().collect();
            return self.resolve(at, &path, depth + 1);
        }
        if !module.items.contains(first) {
            let globs = module.imports.iter().filter(|import| import.name == "*");
            for other in globs.filter_map(|glob| self.resolve(at, &glob.path, depth + 1)) {
                if other != at && self.0.get(&other)?.items.contains(first) {
                    return Some(other);
                }
            }
        }
        Some(at.to_owned())
    }
}

impl Module {
    fn named(&self, name: &str) -> Option<&Import> {
        self.imports.iter().find(|import| import.name == name)
    }

    /// Reads imports and paths.
    fn read(&mut self, words: &[String]) {
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        let mut at = 0;
        while at < words.len() {
            let before = at.checked_sub(1).map_or("", word);
            if word(at) == "use" && word(at + 1) != "<" {
                let public = before == "pub" || before == ")";
                at = self.read_use(words, at + 1, &[], public);
            } else if is_name(word(at)) && before != "." && before != "::" {
                let mut path = vec![word(at).to_owned()];
                at += 1;
                while word(at) == "::" && is_name(word(at + 1)) {
                    path.push(word(at + 1).to_owned());
                    at += 2;
                }
                self.paths.push(path);
            } else {
                at += 1;
            }
        }
        // A name alone imports only if this module has passed it on: of others the `use` tells.
        let passed: BTreeSet<&String> = self
            .imports
            .iter()
            .filter(|import| import.public)
            .map(|import| &import.name)
            .collect();
        self.paths
            .retain(|path| path.len() > 1 || passed.contains(&path[0]));
    }

    /// Reads the tree of a `use` that begins at `at`; gives where it ends.
    fn read_use(&mut self, words: &[String], at: usize, before: &[String], public: bool) -> usize {
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        let mut path = before.to_vec();
        let mut at = at;
        loop {
            match word(at) {
                "{" => {
                    at += 1;
                    while word(at) != "}" && at < words.len() {
                        at = self.read_use(words, at, &path, public);
                        at += usize::from(word(at) == ",");
                    }
                    return at + 1;
                }
                "*" => {
                    let name = "*".to_owned();
                    self.imports.push(Import { path, name, public });
                    return at + 1;
                }
                "::" => at += 1,
                name if is_name(name) => {
                    path.push(name.to_owned());
                    at += 1;
                    if word(at) == "::" {
                        continue;
                    }
                    if name == "self" && path.len() > 1 {
                        path.pop();
                    }
                    let mut name = path.last().cloned().unwrap_or_default();
                    if word(at) == "as" {
                        name = word(at + 1).to_owned();
                        at += 2;
                    }
                    self.imports.push(Import { path, name, public });
                    return at;
                }
                _ => return at + 1,
            }
        }
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The tokens of a module without items that only tests have.
fn without_tests(stream: TokenStream) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let attribute = match trees.peek() {
            Some(TokenTree::Group(group)) if is(&tree, '#') => group.to_string(),
            _ => String::new(),
        };
        let attribute: String = attribute.split_whitespace().collect();
        if attribute != "[cfg(test)]" && !attribute.starts_with("[cfg(all(test,") {
            kept.push(tree);
            continue;
        }
        // Up to the end of the item: `;` or its body.
        trees.next();
        for tree in trees.by_ref() {
            let body =
                matches!(&tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
            if body || is(&tree, ';') {
                break;
            }
        }
    }
    kept
}

fn is(tree: &TokenTree, punct: char) -> bool {
    matches!(tree, TokenTree::Punct(one) if one.as_char() == punct)
}

/// A token and what is in it as words; `::` is one.
fn flatten(tree: &TokenTree, words: &mut Vec<String>) {
    match tree {
        TokenTree::Group(group) => {
            let (open, close) = match group.delimiter() {
                Delimiter::Parenthesis => ("(", ")"),
                Delimiter::Brace => ("{", "}"),
                Delimiter::Bracket => ("[", "]"),
                Delimiter::None => ("", ""),
            };
            words.push(open.to_owned());
            for tree in without_tests(group.stream()) {
                flatten(&tree, words);
            }
            words.push(close.to_owned());
        }
        TokenTree::Punct(punct) => {
            let second = words.last().is_some_and(|last| last == ": ");
            if punct.as_char() == ':' && second {
                words.pop();
                words.push("::".to_owned());
            } else if punct.as_char() == ':' && punct.spacing() == Spacing::Joint {
                words.push(": ".to_owned());
            } else {
                words.push(punct.to_string());
            }
        }
        TokenTree::Ident(word) => words.push(word.to_string()),
        TokenTree::Literal(_) => words.push("0".to_owned()),
    }
}

/// Returns a shortest circle of imports, one line for each of its modules; `None` if there is none.
pub fn circle(graph: &Graph) -> Option<String> {
    let circles = graph.keys().filter_map(|start| circle_from(graph, start));
    let shortest = circles.min_by_key(Vec::len)?;
    let next = shortest.iter().cycle().skip(1);
    let lines = shortest.iter().zip(next).map(|(from, to)| {
        let path = &graph[*from][*to];
        format!("{} imports {} by `{path}`", from.join("::"), to.join("::"))
    });
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// A shortest circle through a module.
fn circle_from<'a>(graph: &'a Graph, start: &'a Name) -> Option<Vec<&'a Name>> {
    let mut came_from: BTreeMap<&Name, &Name> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for next in graph.get(at).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut way = vec![at];
                while way[0] != start {
                    way.insert(0, came_from[way[0]]);
                }
                return Some(way);
            }
            if !came_from.contains_key(next) {
                came_from.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

/// Returns what a module, or a module in it, imports from elsewhere in its crate, a line for each.
pub fn leaving(graph: &Graph, module: &str) -> Vec<String> {
    let room: Name = module.split("::").map(str::to_owned).collect();
    assert!(graph.contains_key(&room), "there is no module {module}");
    let inside = graph.iter().filter(|(name, _)| name.starts_with(&room));
    let edges = inside.flat_map(|(from, to)| to.iter().map(move |(to, path)| (from, to, path)));
    edges
        .filter(|(_, to, _)| to[0] == room[0] && !to.starts_with(&room))
        .map(|(from, to, path)| {
            format!("{} imports {} by `{path}`", from.join("::"), to.join("::"))
        })
        .collect()
}
