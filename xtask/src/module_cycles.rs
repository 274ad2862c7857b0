//! Checks that the modules of a crate form no cycle, so that a crate can be read bottom up.
//!
//! A module is a file directly below `src`, with everything below it. It uses another module if its code
//! outside tests names that module by a path from the crate's root: `crate::x`, or enough `super`s to get
//! there. In a crate with layers, the modules directly below each layer's folder form no cycle either, and no
//! layer names one above it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose modules form no cycle.
pub const ACYCLIC: &[&str] = &[
    "daemon",
    "experiments",
    "libibverbs",
    "soak",
    "softnic",
    "workloads",
];

/// The crates of [`ACYCLIC`] that have layers: folders of modules, the lowest first.
pub const LAYERED: &[(&str, &[&str])] = &[("softnic", &["table", "datapath", "control"])];

/// For each module, the modules that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Returns each crate of [`ACYCLIC`] that has a cycle, with the cycle, and each wrong use among layers.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for name in ACYCLIC {
        let src = root.join("crates").join(name).join("src");
        let layers = LAYERED.iter().find(|(layered, _)| layered == name);
        let layers = layers.map_or(&[][..], |(_, layers)| layers);
        wrong.extend(
            check_crate(&src, layers)?
                .into_iter()
                .map(|what| format!("{name}: {what}")),
        );
    }
    Ok(wrong)
}

/// Returns what is wrong among the modules of the crate in `src`.
fn check_crate(src: &Path, layers: &[&str]) -> Result<Vec<String>, String> {
    let uses = uses(src, "")?;
    let mut wrong = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        let Some(used) = uses.get(*layer) else {
            wrong.push(format!("there is no layer {layer}"));
            continue;
        };
        let above = layers[at + 1..]
            .iter()
            .filter(|above| used.contains(**above));
        wrong.extend(above.map(|above| format!("{layer} uses {above}, a layer above it")));
        let within = self::uses(&src.join(layer), layer)?;
        wrong.extend(cycle(&within).map(|cycle| format!("in {layer}, {}", cycle.join(" uses "))));
    }
    wrong.extend(cycle(&uses).map(|cycle| cycle.join(" uses ")));
    Ok(wrong)
}

/// The modules in `folder` that each module there uses. `folder` is that of the crate's module `parent`; an empty
/// name stands for the crate itself.
fn uses(folder: &Path, parent: &str) -> Result<Uses, String> {
    let mut files: Vec<(String, usize, String)> = Vec::new();
    for path in below(folder)? {
        let inside = path.strip_prefix(folder).expect("the path is below it");
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
        let code = code(&text);
        // From a file of the folder, so many supers lead to the parent.
        let supers = "super::".repeat(depth);
        let mut paths = paths(&code, &supers);
        let from_root = self::paths(&code, "crate::").into_iter();
        paths.extend(from_root.filter_map(|path| match parent {
            "" => Some(path),
            _ => Some(path.strip_prefix(parent)?.strip_prefix("::")?.to_owned()),
        }));
        let used = uses.entry(module.clone()).or_default();
        used.extend(paths.iter().map(|path| head(path)));
        used.retain(|name| modules.contains(name) && *name != module);
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

/// The paths that follow `prefix`, without it. A group in braces stands for each of its paths.
fn paths(code: &str, prefix: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let before = code[..at].chars().next_back();
        if !before.is_some_and(|c| c.is_alphanumeric() || "_:".contains(c)) {
            expand("", &code[at + prefix.len()..], &mut paths);
        }
    }
    paths
}

/// Adds the paths at the start of `text` to `paths`, each behind `prefix`. Returns what follows them.
fn expand<'a>(prefix: &str, text: &'a str, paths: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut group) = text.strip_prefix('{') {
        loop {
            group = expand(prefix, group, paths);
            // Up to the next path of the group, past `as name`.
            match group.find([',', '}']) {
                Some(at) if group[at..].starts_with(',') => group = &group[at + 1..],
                Some(at) => return &group[at + 1..],
                None => return "",
            }
        }
    }
    let name = head(text);
    let rest = &text[name.len()..];
    match rest.strip_prefix("::") {
        Some(more) if !name.is_empty() => expand(&format!("{prefix}{name}::"), more, paths),
        _ => {
            paths.push(format!("{prefix}{name}"));
            rest
        }
    }
}

/// The identifier at the start of a text.
fn head(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text[..end.unwrap_or(text.len())].to_owned()
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

    /// Returns the result of `look` on a made-up crate.
    fn made_up<T>(name: &str, files: &[(&str, &str)], look: impl Fn(&Path) -> T) -> T {
        let src = std::env::temp_dir().join(format!("modules-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = src.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("writes");
        }
        let seen = look(&src);
        fs::remove_dir_all(&src).expect("removes");
        seen
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
            |src| uses(src, "").expect("reads"),
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
            |src| uses(src, "").expect("reads"),
        );
        assert_eq!(cycle(&uses), None);
        assert!(uses["a"].contains("b") && uses["b"].contains("c"));
        assert!(uses["c"].is_empty());
    }

    #[test]
    fn a_layer_names_none_above_and_its_modules_form_no_cycle() {
        let low = "use super::y::Y;\nuse crate::low::{self, z::{Z, W as V}};";
        let good = [
            ("lib.rs", "mod low; mod high; mod other;"),
            ("low.rs", "mod x; mod y; mod z;"),
            ("low/x.rs", low),
            ("low/y.rs", "use crate::{other, low::z::Z};"),
            ("low/z/deep.rs", "use super::Z;\nuse crate::high_up;"),
            ("high.rs", "mod x;"),
            (
                "high/x.rs",
                "use crate::low::x::X;\nuse super::super::low::y::Y;",
            ),
            ("other.rs", ""),
        ];
        let layers = ["low", "high"];
        let check = |name, files: &[_]| {
            made_up(name, files, |src| check_crate(src, &layers).expect("reads"))
        };
        assert_eq!(check("layers", &good), Vec::<String>::new());
        let with = |file, text| {
            let mut files = good.to_vec();
            files.retain(|(known, _)| *known != file);
            files.push((file, text));
            files
        };
        let upward = check("upward", &with("low/z.rs", "use crate::{low, high::x::X};"));
        assert_eq!(upward[0], "low uses high, a layer above it");
        for (name, text) in [
            ("root", "use crate::{low::{x::X, y}};"),
            ("supers", "use super::super::x::X;"),
        ] {
            let cyclic = check(name, &with("low/z/deep.rs", text));
            assert_eq!(cyclic, ["in low, x uses y uses z uses x"]);
        }
        assert_eq!(
            made_up("absent", &[("low.rs", "")], |src| check_crate(
                src,
                &["lower"]
            )),
            Ok(vec!["there is no layer lower".to_owned()])
        );
    }
}
