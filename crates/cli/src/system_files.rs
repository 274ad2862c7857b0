//! Small files of `/proc` and `/sys`. A file that cannot be read is unknown, which is no error.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Returns the last component of a path.
pub(crate) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the entries of a directory, sorted by name; none if it cannot be read.
pub(crate) fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the entries of a directory whose names are numbers, sorted by number.
pub(crate) fn list_numbered<T: FromStr + Ord + Copy>(folder: &Path) -> Vec<(T, PathBuf)> {
    let numbered = |path: PathBuf| Some((name_of(&path).parse().ok()?, path));
    let mut entries: Vec<_> = list(folder).into_iter().filter_map(numbered).collect();
    entries.sort_by_key(|(number, _)| *number);
    entries
}

/// Returns a file's text without the white space around it.
pub(crate) fn word(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the decimal number that a file holds.
pub(crate) fn number<T: FromStr>(file: &Path) -> Option<T> {
    word(file)?.parse().ok()
}

/// Whether a path's name is `prefix` followed by a number.
pub(crate) fn numbered(path: &Path, prefix: &str) -> bool {
    let name = name_of(path);
    let digits = name.strip_prefix(prefix).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
