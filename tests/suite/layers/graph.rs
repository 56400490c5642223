//! Follows every import and path of the scanned sources to the file it means, through re-exports and aliases.

use super::scan::{Import, Module, scan};
use std::collections::{BTreeMap, BTreeSet};

/// One source file: its path below `src/` and its text.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
}

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A file of this crate, and the name wanted from it; `None` is the module itself.
    Here { file: String, name: Option<String> },
    /// Another crate or `std`, with the whole path.
    Outside(Vec<String>),
}

/// One use of something, by a file.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) written: String,
    pub(super) target: Target,
    pub(super) glob: bool,
    /// Handed on by `pub use` and not used in the file itself.
    pub(super) handed_on: bool,
}

/// Every use in the sources.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) uses: Vec<Use>,
    pub(super) test_items: usize,
    pub(super) test_files: BTreeSet<String>,
}

/// Reads all sources. `crates` are the outside crates by the names they have in code.
pub(super) fn graph(sources: &[Source], crates: &[&str]) -> Graph {
    let mut graph = Graph::default();
    let mut modules = BTreeMap::new();
    for source in sources {
        let scan = scan(&source.text);
        graph.test_items += scan.test_items;
        for (below, module) in scan.modules {
            let path = [module_path(&source.path), below].concat();
            modules.insert(path, (source.path.clone(), module));
        }
    }
    let map = Map { modules, crates };
    graph.test_files = map.test_files();
    for (path, (file, module)) in &map.modules {
        if !graph.test_files.contains(file) {
            graph.uses.extend(map.uses(path, file, module));
        }
    }
    graph
}

/// `store/mod.rs` and `store.rs` are both `["store"]`; `lib.rs` is the crate itself.
fn module_path(file: &str) -> Vec<String> {
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if stem == "lib" { vec![] } else { stem.split('/').map(str::to_owned).collect() }
}

struct Map<'a> {
    modules: BTreeMap<Vec<String>, (String, Module)>,
    crates: &'a [&'a str],
}

impl Map<'_> {
    /// Files declared as test-only modules, and the files below them.
    fn test_files(&self) -> BTreeSet<String> {
        let roots: Vec<Vec<String>> = self
            .modules
            .iter()
            .flat_map(|(path, (_, module))| {
                module.children.iter().filter(|(_, test)| **test).map(|(name, _)| child(path, name))
            })
            .collect();
        let below = |path: &Vec<String>| roots.iter().any(|root| path.starts_with(root));
        self.modules.iter().filter(|(path, _)| below(path)).map(|(_, (file, _))| file.clone()).collect()
    }

    fn uses(&self, path: &[String], file: &str, module: &Module) -> Vec<Use> {
        let place = |written: &[String], line, glob, handed_on| {
            let target = self.follow(path, written, 0)?;
            let written = written.join("::").replace("::::", "::");
            Some(Use { file: file.to_owned(), line, written, target, glob, handed_on })
        };
        let imports = module.imports.iter().filter_map(|import| {
            let used_here = module.words.contains(&import.name);
            place(&import.path, import.line, import.name == "*", import.handed_on && !used_here)
        });
        let paths = module.paths.iter().filter_map(|(written, line)| place(written, *line, false, false));
        imports.chain(paths).collect()
    }

    /// Where `written` leads, seen from the module `from`; `None` for paths through local names (`Self::`, a type's own items).
    fn follow(&self, from: &[String], written: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = written.split_first()?;
        assert!(depth < 32, "the path {written:?} in {from:?} goes round in circles");
        match first.as_str() {
            "::" => Some(Target::Outside(rest.to_vec())),
            "crate" => Some(self.land(&[], rest, depth)),
            "self" => Some(self.land(from, rest, depth)),
            "super" => Some(self.climb(from, rest, depth)),
            name => {
                let module = self.modules.get(from).map(|(_, module)| module)?;
                if let Some(import) = named(module, name).filter(|import| import.path.as_slice() != [name]) {
                    return self.follow(from, &[&import.path[..], rest].concat(), depth + 1);
                }
                if module.children.contains_key(name) {
                    return Some(self.land(from, written, depth));
                }
                let outside = ["std", "core", "alloc"].contains(&name) || self.crates.contains(&name);
                outside.then(|| Target::Outside(written.to_vec()))
            }
        }
    }

    fn climb(&self, from: &[String], rest: &[String], depth: usize) -> Target {
        let parent = &from[..from.len().saturating_sub(1)];
        match rest.split_first() {
            Some((next, rest)) if next == "super" => self.climb(parent, rest, depth),
            _ => self.land(parent, rest, depth),
        }
    }

    /// Walks down from the module `base` as far as modules go, then through whatever hands the next name on.
    fn land(&self, base: &[String], rest: &[String], depth: usize) -> Target {
        let mut at = base.to_vec();
        let mut rest = rest;
        while let Some((next, after)) = rest.split_first() {
            let below = child(&at, next);
            if !self.modules.contains_key(&below) {
                break;
            }
            (at, rest) = (below, after);
        }
        let Some((file, module)) = self.modules.get(&at) else {
            return Target::Here { file: at.join("/"), name: rest.first().cloned() };
        };
        if let Some(name) = rest.first() {
            if let Some(import) = named(module, name) {
                let through = [&import.path[..], &rest[1..]].concat();
                if let Some(target) = self.follow(&at, &through, depth + 1) {
                    return target;
                }
            }
            if let Some(target) = self.through_globs(&at, module, name, depth) {
                return target;
            }
        }
        Target::Here { file: file.clone(), name: rest.first().cloned() }
    }

    /// `pub use job::*`: the file that defines the name, if a glob of the module leads to it.
    fn through_globs(&self, at: &[String], module: &Module, name: &str, depth: usize) -> Option<Target> {
        if module.items.contains(name) {
            return None;
        }
        module.imports.iter().filter(|import| import.name == "*" && import.handed_on).find_map(|import| {
            let to = self.module_of(at, &import.path, depth)?;
            let (_, there) = self.modules.get(&to)?;
            (there.items.contains(name) || named(there, name).is_some())
                .then(|| self.land(&to, &[name.to_owned()], depth + 1))
        })
    }

    /// The module a glob opens, if it is one of ours.
    fn module_of(&self, at: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        match self.follow(at, path, depth + 1)? {
            Target::Here { file, name: None } => Some(module_path(&file)),
            Target::Here { name: Some(_), .. } | Target::Outside(_) => None,
        }
    }
}

fn named<'m>(module: &'m Module, name: &str) -> Option<&'m Import> {
    module.imports.iter().find(|import| import.name == name && name != "*")
}

fn child(path: &[String], name: &str) -> Vec<String> {
    [path, &[name.to_owned()]].concat()
}

/// The edges between files, each with the line of its first use.
pub(super) fn edges(graph: &Graph) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut edges: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for one in graph.uses.iter().filter(|one| !one.handed_on) {
        if let Target::Here { file, .. } = &one.target
            && *file != one.file
        {
            edges.entry(one.file.clone()).or_default().entry(file.clone()).or_insert(one.line);
        }
    }
    edges
}

/// One shortest cycle through each file that is in one, every cycle once.
pub(super) fn cycles(edges: &BTreeMap<String, BTreeMap<String, usize>>) -> Vec<Vec<String>> {
    let mut found = BTreeSet::new();
    for start in edges.keys() {
        let mut came_from: BTreeMap<&String, &String> = BTreeMap::new();
        let mut queue = std::collections::VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for next in edges.get(at).into_iter().flat_map(BTreeMap::keys) {
                if next == start {
                    found.insert(cycle(start, at, &came_from));
                    queue.clear();
                    break;
                }
                if !came_from.contains_key(next) {
                    came_from.insert(next, at);
                    queue.push_back(next);
                }
            }
        }
    }
    found.into_iter().collect()
}

/// The cycle from `start` to `last` and back, turned so that its smallest file stands first.
fn cycle(start: &String, last: &String, came_from: &BTreeMap<&String, &String>) -> Vec<String> {
    let mut back = vec![last.clone()];
    let mut at = last;
    while at != start {
        at = came_from[at];
        back.push(at.clone());
    }
    back.reverse();
    let smallest = (0..back.len()).min_by_key(|i| &back[*i]).unwrap_or(0);
    back.rotate_left(smallest);
    back
}
