//! Checks that the modules of a crate form no cycle, so that a crate can be read bottom up.
//!
//! A module is a file directly below `src`, with everything below it. It uses another module if its code
//! outside tests names that module by a path from the crate's root: `crate::x`, or enough `super`s to get
//! there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose modules form no cycle.
pub const ACYCLIC: &[&str] = &["daemon", "experiments", "soak", "workloads"];

/// For each module, the modules that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Returns each crate of [`ACYCLIC`] that has a cycle, with the cycle.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for name in ACYCLIC {
        let uses = uses(&root.join("crates").join(name).join("src"))?;
        if let Some(cycle) = cycle(&uses) {
            wrong.push(format!("{name}: {}", cycle.join(" uses ")));
        }
    }
    Ok(wrong)
}

/// The modules that each module of the crate in `src` uses.
fn uses(src: &Path) -> Result<Uses, String> {
    let mut files: Vec<(String, usize, String)> = Vec::new();
    for path in below(src)? {
        let inside = path.strip_prefix(src).expect("the path is below src");
        let depth = inside.components().count();
        let first = inside
            .components()
            .next()
            .expect("the path has a component");
        let module = Path::new(first.as_os_str()).with_extension("");
        let module = module.to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        files.push((module, depth, text));
    }
    files.retain(|(module, ..)| !["lib", "main"].contains(&module.as_str()));
    let modules: BTreeSet<String> = files.iter().map(|(module, ..)| module.clone()).collect();
    let mut uses = Uses::new();
    for (module, depth, text) in files {
        let used = uses.entry(module.clone()).or_default();
        let root = "super::".repeat(depth);
        for prefix in ["crate::", &root] {
            used.extend(named(&code(&text), prefix).filter(|name| modules.contains(name)));
        }
        used.remove(&module);
    }
    Ok(uses)
}

/// All source files in `folder` and below it, except tests.
fn below(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if stem == "tests" || stem == "testing" {
            continue;
        }
        if path.is_dir() {
            found.extend(below(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The text without comments and without test-only items.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            // The item after the attribute ends at the closing brace with the same indentation, or with its
            // line.
            let indent = line.len() - line.trim_start().len();
            let item = lines.next().unwrap_or_default();
            if item.ends_with('{') {
                let end = format!("{}}}", " ".repeat(indent));
                lines.by_ref().find(|line| *line == end);
            }
            continue;
        }
        code += line.split("//").next().unwrap_or_default();
        code.push('\n');
    }
    code
}

/// The names that follow `prefix` in a path, including all names of a group in braces.
fn named<'a>(code: &'a str, prefix: &'a str) -> impl Iterator<Item = String> + 'a {
    code.match_indices(prefix).flat_map(move |(at, _)| {
        let before = code[..at].chars().next_back();
        let rest = &code[at + prefix.len()..];
        if before.is_some_and(|c| c.is_alphanumeric() || "_:".contains(c)) {
            return Vec::new();
        }
        match rest.strip_prefix('{') {
            Some(group) => heads(group),
            None => vec![head(rest)],
        }
    })
}

/// The identifier at the start of a text.
fn head(text: &str) -> String {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text[..end.unwrap_or(text.len())].to_owned()
}

/// The first identifier of each path in a group, up to the group's closing brace.
fn heads(group: &str) -> Vec<String> {
    let (mut heads, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                heads.push(head(&group[from..]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.push(head(&group[from..]));
                from = at + 1;
            }
            _ => {}
        }
    }
    heads
}

/// A cycle among the modules; its first module is repeated at the end.
fn cycle(uses: &Uses) -> Option<Vec<String>> {
    let mut done = BTreeSet::new();
    uses.keys()
        .find_map(|module| visit(uses, module, &mut Vec::new(), &mut done))
}

fn visit(
    uses: &Uses,
    module: &str,
    path: &mut Vec<String>,
    done: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    if let Some(from) = path.iter().position(|on| on == module) {
        let mut cycle = path[from..].to_vec();
        cycle.push(module.to_owned());
        return Some(cycle);
    }
    if !done.insert(module.to_owned()) {
        return None;
    }
    path.push(module.to_owned());
    let used = uses.get(module).into_iter().flatten();
    let found = used.clone().find_map(|used| visit(uses, used, path, done));
    path.pop();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_up(name: &str, files: &[(&str, &str)]) -> Uses {
        let src = std::env::temp_dir().join(format!("modules-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = src.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("writes");
        }
        let uses = uses(&src).expect("reads");
        fs::remove_dir_all(&src).expect("removes");
        uses
    }

    #[test]
    fn a_cycle_is_found_through_groups_and_supers() {
        let uses = made_up(
            "cycle",
            &[
                ("lib.rs", "mod a; mod b; mod c;"),
                ("a.rs", "use crate::{other, b::{X, Y}};"),
                ("b/deep.rs", "fn f() { super::super::c::g() }"),
                ("b.rs", "mod deep;"),
                ("c.rs", "fn g() { super::a::h() }"),
            ],
        );
        let cycle = cycle(&uses).expect("there is one");
        assert_eq!(cycle, ["a", "b", "c", "a"]);
    }

    #[test]
    fn tests_comments_and_a_modules_own_parts_are_no_uses() {
        let uses = made_up(
            "none",
            &[
                ("a.rs", "use crate::b::X; // crate::c\nuse crate::a::part;"),
                (
                    "b.rs",
                    "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\nuse crate::c;",
                ),
                ("c.rs", "#[cfg(test)]\nuse crate::a;\nuse not_crate::a;"),
                ("c/tests.rs", "use crate::a;"),
            ],
        );
        assert_eq!(cycle(&uses), None);
        assert!(uses["a"].contains("b") && uses["b"].contains("c"));
        assert!(uses["c"].is_empty());
    }
}
