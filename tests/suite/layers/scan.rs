//! Reads one Rust source just far enough to know what it imports: comments, strings and test-only items are left out.
//!
//! Not a parser: it knows `use` trees, modules, attributes and paths. Whatever it cannot place it reports as a path, never
//! drops, so that a mistake here shows up as a complaint and not as silence.

use std::collections::{BTreeMap, BTreeSet};

/// One name brought into a module by `use`.
#[derive(Clone, Debug)]
pub(super) struct Import {
    /// The path as written, leading `crate`, `self` or `super` included.
    pub(super) path: Vec<String>,
    /// The name it has here; `*` for a glob.
    pub(super) name: String,
    /// `pub use`: the name is handed on, not necessarily used here.
    pub(super) handed_on: bool,
    pub(super) line: usize,
}

/// One module: a file, or an inline `mod name { .. }` inside it.
#[derive(Clone, Debug, Default)]
pub(super) struct Module {
    pub(super) imports: Vec<Import>,
    /// Paths of two and more segments in code, with their line.
    pub(super) paths: Vec<(Vec<String>, usize)>,
    /// Names defined at the top of the module.
    pub(super) items: BTreeSet<String>,
    /// Child modules declared here: name -> only for tests.
    pub(super) children: BTreeMap<String, bool>,
    /// Every word outside `use`, to tell whether a handed-on name is used here as well.
    pub(super) words: BTreeSet<String>,
}

/// What a file holds: its modules by their path below the file (the file itself is the empty path).
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) modules: BTreeMap<Vec<String>, Module>,
    /// How many test-only items were left out.
    pub(super) test_items: usize,
}

/// Scans one source text.
pub(super) fn scan(text: &str) -> Scan {
    let tokens = tokens(text);
    let mut walk = Walk { tokens: &tokens, at: 0, inside: vec![], scopes: vec![], found: Scan::default() };
    walk.found.modules.entry(vec![]).or_default();
    walk.run();
    walk.found
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

impl Token<'_> {
    fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut out, mut rest, mut line) = (Vec::new(), text, 1);
    while let Some(first) = rest.chars().next() {
        let (length, keep) = next_token(rest, first);
        if keep {
            out.push(Token { text: rest[..length].trim_start_matches("r#"), line });
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    out
}

/// Length of what stands first in `rest`, and whether it is worth keeping.
fn next_token(rest: &str, first: char) -> (usize, bool) {
    if let Some(length) = comment(rest).or_else(|| string(rest)) {
        return (length, false);
    }
    if first == '\'' {
        return (quote(rest), false);
    }
    if first.is_ascii_digit() {
        return (word_length(rest), false);
    }
    if first.is_alphabetic() || first == '_' {
        let raw = rest.strip_prefix("r#").is_some_and(|r| r.starts_with(|c: char| c.is_alphabetic()));
        return (if raw { 2 + word_length(&rest[2..]) } else { word_length(rest) }, true);
    }
    if rest.starts_with("::") {
        return (2, true);
    }
    (first.len_utf8(), !first.is_whitespace())
}

fn word_length(rest: &str) -> usize {
    rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
}

fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    rest.strip_prefix("/*")?;
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if tail.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    Some(rest.len())
}

/// Plain, byte, C and raw strings.
fn string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|p| {
        rest.strip_prefix(p).is_some_and(|r| r.starts_with('"') || (p.ends_with('r') && raw_hashes(r).is_some()))
    })?;
    let body = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = raw_hashes(body)?;
        let end = format!("\"{}", "#".repeat(hashes));
        let from = hashes + 1;
        return Some(prefix.len() + body[from..].find(&end).map_or(body.len(), |i| from + i + end.len()));
    }
    let mut escaped = false;
    for (i, c) in body.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(prefix.len() + i + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// The number of `#` before the quote of a raw string.
fn raw_hashes(body: &str) -> Option<usize> {
    let hashes = body.bytes().take_while(|b| *b == b'#').count();
    body[hashes..].starts_with('"').then_some(hashes)
}

/// A character literal or a lifetime.
fn quote(rest: &str) -> usize {
    let inner = &rest[1..];
    if inner.starts_with('\\') {
        return inner[2..].find('\'').map_or(rest.len(), |i| 1 + 2 + i + 1);
    }
    let Some(c) = inner.chars().next() else { return 1 };
    if inner[c.len_utf8()..].starts_with('\'') { 1 + c.len_utf8() + 1 } else { 1 + word_length(inner) }
}

struct Walk<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    /// Inline modules around the current token.
    inside: Vec<String>,
    /// For each open brace: whether it opened an inline module.
    scopes: Vec<bool>,
    found: Scan,
}

impl<'a> Walk<'a> {
    fn run(&mut self) {
        while let Some(token) = self.peek(0) {
            match token {
                "#" if self.test_only() => self.skip_item(),
                "use" if self.peek(1) != Some("<") => self.use_item(),
                "mod" => self.module(),
                "{" => self.open(false),
                "}" => self.close(),
                _ => self.other(),
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + ahead).map(|t| t.text)
    }

    fn behind(&self, back: usize) -> Option<&'a str> {
        self.at.checked_sub(back).map(|i| self.tokens[i].text)
    }

    fn here(&mut self) -> &mut Module {
        self.found.modules.entry(self.inside.clone()).or_default()
    }

    fn open(&mut self, module: bool) {
        self.scopes.push(module);
        self.at += 1;
    }

    fn close(&mut self) {
        if self.scopes.pop() == Some(true) {
            self.inside.pop();
        }
        self.at += 1;
    }

    /// Whether an attribute starts here that keeps its item out of every build but the tests: `test` itself or
    /// `all(test, ..)`. `any(test, ..)` and `not(test)` ship.
    fn test_only(&self) -> bool {
        let inner = usize::from(self.peek(1) == Some("!"));
        let word = |i| self.peek(1 + inner + i);
        if word(0) != Some("[") || word(1) != Some("cfg") || word(2) != Some("(") {
            return false;
        }
        match word(3) {
            Some("test") => word(4) == Some(")"),
            Some("all") => {
                let mut depth = 0usize;
                for i in 4.. {
                    match word(i) {
                        Some("(") => depth += 1,
                        Some(")") if depth == 1 => return false,
                        Some(")") => depth -= 1,
                        Some("test") if depth == 1 => return true,
                        None => return false,
                        Some(_) => {}
                    }
                }
                false
            }
            _ => false,
        }
    }

    fn skip_item(&mut self) {
        self.found.test_items += 1;
        if self.peek(1) == Some("!") {
            self.at = self.tokens.len();
            return;
        }
        while self.peek(0) == Some("#") {
            self.at += 1;
            self.skip_group();
        }
        if self.peek(0) == Some("pub") {
            self.at += 1;
            if self.peek(0) == Some("(") {
                self.skip_group();
            }
        }
        if self.peek(0) == Some("mod") && self.peek(2) == Some(";") {
            let name = self.peek(1).unwrap_or_default().to_owned();
            self.here().children.insert(name, true);
        }
        let kind = self.peek(0).unwrap_or_default();
        let ends_with_semicolon =
            ["use", "let", "const", "static", "type"].contains(&kind) && self.peek(1) != Some("fn");
        let is_item =
            ends_with_semicolon || ITEMS.contains(&kind) || ["impl", "unsafe", "async", "extern"].contains(&kind);
        while let Some(token) = self.peek(0) {
            match token {
                ";" => return self.at += 1,
                "," if !is_item => return self.at += 1,
                "}" => return,
                "{" => {
                    self.skip_group();
                    if !ends_with_semicolon {
                        return;
                    }
                }
                "(" | "[" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    /// Skips a bracketed group; the current token opens it.
    fn skip_group(&mut self) {
        let mut depth = 0usize;
        while let Some(token) = self.peek(0) {
            self.at += 1;
            match token {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn module(&mut self) {
        let Some(name) = self.tokens.get(self.at + 1).filter(|t| t.is_word()).map(|t| t.text.to_owned()) else {
            return self.at += 1;
        };
        self.here().items.insert(name.clone());
        self.at += 2;
        match self.peek(0) {
            Some("{") => {
                self.here().children.insert(name.clone(), false);
                self.inside.push(name);
                self.here();
                self.open(true);
            }
            Some(";") => {
                self.here().children.entry(name).or_insert(false);
            }
            _ => {}
        }
    }

    fn use_item(&mut self) {
        let handed_on = match self.behind(1) {
            Some("pub") => true,
            Some(")") => (2..6).any(|b| self.behind(b) == Some("(") && self.behind(b + 1) == Some("pub")),
            _ => false,
        };
        self.at += 1;
        self.use_tree(vec![], handed_on);
        if self.peek(0) == Some(";") {
            self.at += 1;
        }
    }

    fn use_tree(&mut self, mut path: Vec<String>, handed_on: bool) {
        let line = self.tokens.get(self.at).map_or(0, |t| t.line);
        if self.peek(0) == Some("::") {
            path.push("::".to_owned());
            self.at += 1;
        }
        loop {
            match self.peek(0) {
                Some("{") => {
                    self.at += 1;
                    while self.peek(0).is_some_and(|t| t != "}" && t != ";") {
                        self.use_tree(path.clone(), handed_on);
                        if self.peek(0) == Some(",") {
                            self.at += 1;
                        }
                    }
                    return self.at += 1;
                }
                Some("*") => {
                    self.at += 1;
                    return self.here().imports.push(Import { path, name: "*".into(), handed_on, line });
                }
                Some("self") if !path.is_empty() => self.at += 1,
                Some(word) if word != ";" && word != "," && word != "}" => {
                    path.push(word.to_owned());
                    self.at += 1;
                }
                _ => return,
            }
            match self.peek(0) {
                Some("::") => self.at += 1,
                Some("as") => {
                    let name = self.peek(1).unwrap_or_default().to_owned();
                    self.at += 2;
                    return self.here().imports.push(Import { path, name, handed_on, line });
                }
                _ => {
                    let name = path.last().cloned().unwrap_or_default();
                    return self.here().imports.push(Import { path, name, handed_on, line });
                }
            }
        }
    }

    /// A word, a path or a mark in code.
    fn other(&mut self) {
        let token = self.tokens[self.at];
        if !token.is_word() {
            return self.at += 1;
        }
        let top = self.scopes.iter().all(|module| *module);
        if top
            && ITEMS.contains(&token.text)
            && let Some(name) = self.tokens.get(self.at + 1).filter(|t| t.is_word())
        {
            self.here().items.insert(name.text.to_owned());
        }
        let rooted =
            self.behind(1) == Some("::") && !self.tokens.get(self.at.wrapping_sub(2)).is_some_and(Token::is_word);
        let mut path = if rooted && self.behind(2) != Some(">") { vec!["::".to_owned()] } else { vec![] };
        path.push(token.text.to_owned());
        self.at += 1;
        while self.peek(0) == Some("::") && self.tokens.get(self.at + 1).is_some_and(Token::is_word) {
            path.push(self.tokens[self.at + 1].text.to_owned());
            self.at += 2;
        }
        for word in &path {
            self.here().words.insert(word.clone());
        }
        if path.len() > 1 {
            self.here().paths.push((path, token.line));
        }
    }
}

/// Words that define a name.
const ITEMS: [&str; 9] = ["struct", "enum", "union", "trait", "fn", "type", "const", "static", "mod"];
