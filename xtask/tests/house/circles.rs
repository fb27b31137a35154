//! Finds circles within a crate: files that import from one another, directly or by way of others.
//!
//! Owns: which file a path names, and which files use each other. Refuses: resolving what only the compiler can, which
//! is a method that is called on a value.
//!
//! A re-export is not a use: `pub use state::Ledger` in a crate's root says under which name outsiders find it, and a
//! file that imports that name uses the file that defines it. A file that re-exports a name and also uses it does use
//! the file that defines it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::Visit;

/// A module's name within its crate; empty for the root.
type Module = Vec<String>;

/// A place where a file uses another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    path: String,
    line: usize,
}

/// One file, parsed.
struct Source {
    place: PathBuf,
    module: Module,
    syntax: syn::File,
}

/// The modules of a crate, and the names that they define or import.
#[derive(Default)]
struct Names {
    /// All modules, also inline ones, and the index of the file that each is in.
    modules: HashMap<Module, usize>,
    /// Names that a module imports, and the path that each stands for.
    passed_on: HashMap<(Module, String), Vec<String>>,
    /// Paths from which a module imports all names (`use …::*`).
    globs: HashMap<Module, Vec<Vec<String>>>,
    /// Names that a module defines itself.
    defined: BTreeSet<(Module, String)>,
}

/// Finds the circles of a crate; `folder` has its `lib.rs` or `main.rs`. Each circle is a text with a line for each
/// step.
pub fn of(folder: &Path) -> Result<Vec<String>> {
    let mut sources = Vec::new();
    for root in ["lib.rs", "main.rs"] {
        let path = folder.join(root);
        if path.is_file() {
            read(&path, Vec::new(), folder, &mut sources)?;
            // A program beside a library is a crate of its own, which reaches the library's modules by the library's
            // name.
            break;
        }
    }
    let uses = uses(&sources);
    let mut told = Vec::new();
    for circle in circles(&uses) {
        let steps = circle
            .iter()
            .zip(circle.iter().skip(1))
            .filter_map(|(from, to)| {
                let found = uses.get(*from)?.get(to)?;
                Some(format!(
                    "{}:{} uses {} of {}",
                    sources.get(*from)?.place.display(),
                    found.line,
                    found.path,
                    sources.get(*to)?.place.display()
                ))
            });
        told.push(steps.collect::<Vec<String>>().join("\n    "));
    }
    Ok(told)
}

/// Reads a file and those of its modules.
fn read(path: &Path, module: Module, folder: &Path, sources: &mut Vec<Source>) -> Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let syntax = syn::parse_file(&text).with_context(|| path.display().to_string())?;
    let mut children = Vec::new();
    files_of(&syntax.items, &module, &mut children);
    sources.push(Source {
        place: path.to_path_buf(),
        module,
        syntax,
    });
    for (child, elsewhere) in children {
        let plain = folder.join(child.join("/")).with_extension("rs");
        let nested = folder.join(child.join("/")).join("mod.rs");
        let named = elsewhere.and_then(|name| Some(path.parent()?.join(name)));
        // A module without any of these files is generated, and is left out.
        for file in named.into_iter().chain([plain, nested]) {
            if file.is_file() {
                read(&file, child, folder, sources)?;
                break;
            }
        }
    }
    Ok(())
}

/// Collects the modules that have files of their own, with the file's name where `#[path]` gives it.
fn files_of(items: &[syn::Item], module: &Module, children: &mut Vec<(Module, Option<String>)>) {
    for item in items {
        if let syn::Item::Mod(found) = item
            && !is_left_out(&found.attrs)
        {
            let child = below(module, &found.ident.to_string());
            match &found.content {
                Some((_, inner)) => files_of(inner, &child, children),
                None => children.push((child, path_of(&found.attrs))),
            }
        }
    }
}

/// The file that `#[path = "…"]` names.
fn path_of(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        if !attribute.path().is_ident("path") {
            return None;
        }
        let syn::Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        match &pair.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(name),
                ..
            }) => Some(name.value()),
            _ => None,
        }
    })
}

fn below(module: &Module, name: &str) -> Module {
    let mut child = module.clone();
    child.push(name.to_owned());
    child
}

/// Whether an item exists for tests only, or stands in for a feature that is left out. Of two items of one name the real one is looked at.
fn is_left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let what = list.tokens.to_string().replace(' ', "");
        attribute.path().is_ident("cfg") && (what == "test" || what.starts_with("not(feature="))
    })
}

/// For each file, the files that it uses, and one place where it does.
fn uses(sources: &[Source]) -> Vec<BTreeMap<usize, Use>> {
    let mut names = Names::default();
    for (file, source) in sources.iter().enumerate() {
        names.learn(&source.syntax.items, &source.module, file);
    }
    sources
        .iter()
        .enumerate()
        .map(|(file, source)| {
            let mut seen = Paths {
                names: &names,
                module: source.module.clone(),
                file,
                uses: BTreeMap::new(),
            };
            seen.visit_file(&source.syntax);
            seen.uses
        })
        .collect()
}

impl Names {
    fn learn(&mut self, items: &[syn::Item], module: &Module, file: usize) {
        self.modules.insert(module.clone(), file);
        for item in items {
            match item {
                syn::Item::Use(found) if is_left_out(&found.attrs) => {}
                syn::Item::Use(found) => {
                    // Private imports count, too: a child module may reach its parent's imports.
                    let mut leaves = Vec::new();
                    leaves_of(&found.tree, &mut Vec::new(), &mut leaves);
                    for leaf in leaves {
                        self.learn_use(module, leaf);
                    }
                }
                syn::Item::Mod(found) => {
                    if let Some((_, inner)) = &found.content {
                        self.learn(inner, &below(module, &found.ident.to_string()), file);
                    }
                }
                other => {
                    if let Some(name) = name_of(other) {
                        self.defined.insert((module.clone(), name));
                    }
                }
            }
        }
    }

    fn learn_use(&mut self, module: &Module, leaf: Leaf) {
        match leaf.name {
            Some(name) => {
                // A macro that is passed on under its own name is defined right here.
                if leaf.path != [name.as_str()] {
                    self.passed_on.insert((module.clone(), name), leaf.path);
                }
            }
            None => self
                .globs
                .entry(module.clone())
                .or_default()
                .push(leaf.path),
        }
    }

    /// The path from the crate's root for a path in a module. `None`: it begins with another crate, or with a name that
    /// a
    /// `use` brought in.
    fn absolute(&self, path: &[String], module: &Module) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" | "$crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module.get(..module.len().checked_sub(1)?)?.to_vec(),
            child => {
                let child = below(module, child);
                if !self.modules.contains_key(&child) {
                    return None;
                }
                child
            }
        };
        for word in rest {
            match word.as_str() {
                "super" => {
                    at.pop()?;
                }
                "self" => {}
                name => at.push(name.to_owned()),
            }
        }
        Some(at)
    }

    /// The file that defines what a path from the root names. `depth` limits the re-exports that are followed, because
    /// one
    /// may lead back to itself.
    fn file_of(&self, path: &Module, depth: usize) -> Option<usize> {
        let longest = (0..=path.len()).rev().find(|length| {
            path.get(..*length)
                .is_some_and(|m| self.modules.contains_key(m))
        })?;
        let (module, rest) = path.split_at_checked(longest)?;
        let module = module.to_vec();
        let file = self.modules.get(&module).copied();
        let Some((name, rest)) = rest.split_first() else {
            return file;
        };
        let key = (module.clone(), name.clone());
        if depth == 0 || self.defined.contains(&key) {
            return file;
        }
        let follow = |target: &[String], rest: &[String]| {
            let mut target = self.absolute(target, &module)?;
            target.extend_from_slice(rest);
            Some(target)
        };
        if let Some(target) = self.passed_on.get(&key) {
            // If the name comes from another crate, no file of ours defines it.
            let target = follow(target, rest)?;
            return self.file_of(&target, depth - 1);
        }
        for glob in self.globs.get(&module).into_iter().flatten() {
            let whole: Vec<String> = std::iter::once(name).chain(rest).cloned().collect();
            if let Some(target) = follow(glob, &whole)
                && self.defines(&target)
            {
                return self.file_of(&target, depth - 1);
            }
        }
        file
    }

    /// Whether the module of a path defines or imports the name at the path's end.
    fn defines(&self, path: &Module) -> bool {
        let Some((name, module)) = path.split_last() else {
            return false;
        };
        let key = (module.to_vec(), name.clone());
        self.defined.contains(&key) || self.passed_on.contains_key(&key)
    }
}

/// One name that a `use` brings in.
struct Leaf {
    path: Vec<String>,
    /// `None` stands for all names of the path (`*`).
    name: Option<String>,
}

fn leaves_of(tree: &syn::UseTree, before: &mut Vec<String>, leaves: &mut Vec<Leaf>) {
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves_of(&path.tree, before, leaves);
            before.pop();
        }
        syn::UseTree::Group(group) => {
            for one in &group.items {
                leaves_of(one, before, leaves);
            }
        }
        syn::UseTree::Name(name) => leaves.push(leaf(before, &name.ident, &name.ident)),
        syn::UseTree::Rename(name) => leaves.push(leaf(before, &name.ident, &name.rename)),
        syn::UseTree::Glob(_) => leaves.push(Leaf {
            path: before.clone(),
            name: None,
        }),
    }
}

fn leaf(before: &[String], of: &syn::Ident, name: &syn::Ident) -> Leaf {
    let mut path = before.to_vec();
    if of != "self" {
        path.push(of.to_string());
    }
    let name = if name == "self" {
        path.last().cloned().unwrap_or_default()
    } else {
        name.to_string()
    };
    Leaf {
        path,
        name: Some(name),
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(found) => &found.ident,
        syn::Item::Enum(found) => &found.ident,
        syn::Item::Fn(found) => &found.sig.ident,
        syn::Item::Macro(found) => found.ident.as_ref()?,
        syn::Item::Static(found) => &found.ident,
        syn::Item::Struct(found) => &found.ident,
        syn::Item::Trait(found) => &found.ident,
        syn::Item::Type(found) => &found.ident,
        syn::Item::Union(found) => &found.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Collects the uses in the paths of one file.
struct Paths<'a> {
    names: &'a Names,
    module: Module,
    file: usize,
    uses: BTreeMap<usize, Use>,
}

impl Paths<'_> {
    fn see(&mut self, path: &[String], line: usize) {
        // A single word may be a variable that has a module's name.
        let whole = match self.names.absolute(path, &self.module) {
            Some(whole) if path.len() > 1 => Some(whole),
            _ => self.brought_in(path),
        };
        let Some(whole) = whole else {
            return;
        };
        if let Some(file) = self.names.file_of(&whole, 16)
            && file != self.file
        {
            self.uses.entry(file).or_insert_with(|| Use {
                path: path.join("::"),
                line,
            });
        }
    }

    /// The path from the crate's root for a path whose first word was brought in by a `use` of this module.
    fn brought_in(&self, path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let target = self
            .names
            .passed_on
            .get(&(self.module.clone(), first.clone()))?;
        let mut whole = self.names.absolute(target, &self.module)?;
        whole.extend_from_slice(rest);
        Some(whole)
    }

    fn see_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut line = 0;
        for token in tokens {
            match &token {
                TokenTree::Ident(name) => {
                    if !path.is_empty() && colons != 2 {
                        self.see(&std::mem::take(&mut path), line);
                    }
                    if path.is_empty() {
                        line = name.span().start().line;
                    }
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(sign) if sign.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.see_tokens(group.stream()),
                _ => {}
            }
            self.see(&std::mem::take(&mut path), line);
            colons = 0;
        }
        self.see(&path, line);
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(found) => &found.attrs,
            syn::Item::Impl(found) => &found.attrs,
            syn::Item::Mod(found) => &found.attrs,
            syn::Item::Use(found) => &found.attrs,
            _ => &Vec::new(),
        };
        if !is_left_out(attributes) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, found: &'ast syn::ItemUse) {
        // A re-export is no use: those who import the name use it.
        if !matches!(found.vis, syn::Visibility::Inherited) {
            return;
        }
        let mut leaves = Vec::new();
        leaves_of(&found.tree, &mut Vec::new(), &mut leaves);
        for leaf in leaves {
            self.see(&leaf.path, found.span().start().line);
        }
    }

    fn visit_item_mod(&mut self, found: &'ast syn::ItemMod) {
        if found.content.is_some() {
            self.module.push(found.ident.to_string());
            syn::visit::visit_item_mod(self, found);
            self.module.pop();
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.see(&words, path.span().start().line);
        syn::visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` only says who may use something, so it is not counted.
    }

    fn visit_macro(&mut self, found: &'ast syn::Macro) {
        self.see_tokens(found.tokens.clone());
        syn::visit::visit_macro(self, found);
    }
}

/// One circle for each set of files that reach one another: the shortest from its first file back to that file.
fn circles(uses: &[BTreeMap<usize, Use>]) -> Vec<Vec<usize>> {
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for start in 0..uses.len() {
        if done.contains(&start) {
            continue;
        }
        let from = reached(uses, start);
        if !from.contains_key(&start) {
            continue;
        }
        for other in from.keys() {
            if reached(uses, *other).contains_key(&start) {
                done.insert(*other);
            }
        }
        let mut circle = vec![start];
        let mut at = start;
        while let Some(before) = from.get(&at) {
            circle.push(*before);
            at = *before;
            if at == start {
                break;
            }
        }
        circle.reverse();
        found.push(circle);
    }
    found
}

/// The files that `start` reaches, each with the file before it on a shortest way. `start` is among them only if it is
/// in a circle.
fn reached(uses: &[BTreeMap<usize, Use>], start: usize) -> BTreeMap<usize, usize> {
    let mut before = BTreeMap::new();
    let mut next = std::collections::VecDeque::from([start]);
    while let Some(at) = next.pop_front() {
        for to in uses.get(at).into_iter().flat_map(BTreeMap::keys) {
            if !before.contains_key(to) {
                before.insert(*to, at);
                next.push_back(*to);
            }
        }
    }
    before
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Makes a crate of these files, and returns its circles.
    fn of_files(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = folder.path().display().to_string();
        of(folder.path())
            .unwrap()
            .into_iter()
            .map(|circle| circle.replace(&format!("{root}/"), ""))
            .collect()
    }

    #[test]
    fn two_files_that_use_one_another() {
        let found = of_files(&[
            ("lib.rs", "mod one;\nmod two;\n"),
            ("one.rs", "use crate::two::Two;\npub struct One;\n"),
            (
                "two.rs",
                "pub struct Two;\nfn made() -> super::one::One { super::one::One }\n",
            ),
        ]);
        assert_eq!(
            found,
            [
                "one.rs:1 uses crate::two::Two of two.rs\n    two.rs:2 uses super::one::One of one.rs"
            ]
        );
    }

    #[test]
    fn a_circle_of_three_by_a_macro_and_a_child() {
        let found = of_files(&[
            ("lib.rs", "mod one;\nmod two;\n"),
            ("one/mod.rs", "mod inner;\nfn go() { inner::go(); }\n"),
            (
                "one/inner.rs",
                "pub fn go() { println!(\"{}\", crate::two::NUMBER); }\n",
            ),
            (
                "two.rs",
                "pub const NUMBER: u8 = 1;\nfn go() { crate::one::go(); }\n",
            ),
        ]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].lines().count(), 3, "{found:#?}");
    }

    #[test]
    fn a_name_that_is_passed_on_is_its_own_files() {
        let found = of_files(&[
            (
                "lib.rs",
                "mod low;\nmod high;\npub use low::Low;\npub use high::*;\nfn go() { high::go(); }\n",
            ),
            ("low.rs", "pub struct Low;\n"),
            (
                "high.rs",
                "use crate::{Low, High as Other};\npub struct High;\npub fn go() {}\n",
            ),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_file_that_uses_what_it_passes_on() {
        let found = of_files(&[
            (
                "lib.rs",
                "#[path = \"elsewhere.rs\"]\nmod one;\npub use one::One;\npub struct Two(One);\n",
            ),
            ("elsewhere.rs", "pub struct One;\nfn go(_: crate::Two) {}\n"),
        ]);
        assert_eq!(
            found,
            ["lib.rs:4 uses One of elsewhere.rs\n    elsewhere.rs:2 uses crate::Two of lib.rs"]
        );
    }

    #[test]
    fn what_is_there_for_tests_does_not_count() {
        let found = of_files(&[
            ("lib.rs", "mod one;\nmod two;\n"),
            ("one.rs", "use crate::two::Two;\npub struct One;\n"),
            (
                "two.rs",
                "pub struct Two;\n#[cfg(test)]\nmod tests { use crate::one::One; }\n#[cfg(test)]\nuse crate::one::One;\n",
            ),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn what_stands_in_for_a_feature_is_not_looked_at() {
        let files = [
            (
                "lib.rs",
                "#[cfg(feature = \"a\")]\nmod real;\n#[cfg(not(feature = \"a\"))]\nmod other;\nmod user;\n\
                 #[cfg(feature = \"a\")]\npub use real::Thing;\n#[cfg(not(feature = \"a\"))]\npub use other::Thing;\n",
            ),
            ("real.rs", "use crate::user::User;\npub struct Thing;\n"),
            ("other.rs", "pub struct Thing;\n"),
            ("user.rs", "use crate::Thing;\npub struct User;\n"),
        ];
        let found = of_files(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("real.rs"), "{found:?}");
    }
}
