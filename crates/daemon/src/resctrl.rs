//! The section `[resctrl]` of the daemon's configuration file, and the texts of Linux's resctrl file system: which part of
//! the last-level cache the daemon's threads may fill (Intel's CAT; Jet, section 5). Pure.

use serde::Deserialize;

/// The section as written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResctrlSettings {
    /// Where the file system is mounted: an absolute path. Default `/sys/fs/resctrl`.
    pub root: String,
    /// Name of the daemon's group. Default `headworks`.
    pub group: String,
    /// Capacity mask of the last-level cache, in hexadecimal digits.
    pub l3: String,
}

impl Default for ResctrlSettings {
    fn default() -> Self {
        Self {
            root: "/sys/fs/resctrl".to_owned(),
            group: "headworks".to_owned(),
            l3: String::new(),
        }
    }
}

/// Error in the section.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resctrl.{key} is {value:?}: {allowed}")]
pub struct ResctrlSettingsError {
    /// Key within the section.
    pub key: &'static str,
    /// Value as written.
    pub value: String,
    /// Values that are allowed.
    pub allowed: &'static str,
}

const ROOT: &str = "an absolute path";
const GROUP: &str = "1 to 64 letters, digits, - or _; not info, mon_groups or mon_data";
const L3: &str = "a capacity mask of 1 to 8 hexadecimal digits, not 0, such as \"ff0\"";

/// Directories of the file system that are no groups.
const RESERVED: [&str; 3] = ["info", "mon_groups", "mon_data"];

impl ResctrlSettings {
    /// Checks the section, and returns the capacity mask.
    ///
    /// # Errors
    ///
    /// [`ResctrlSettingsError`] for the first value that is not allowed.
    pub fn check(&self) -> Result<u32, ResctrlSettingsError> {
        let error = |key, value: &str, allowed| ResctrlSettingsError {
            key,
            value: value.to_owned(),
            allowed,
        };
        if !self.root.starts_with('/') || self.root.contains('\0') {
            return Err(error("root", &self.root, ROOT));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_legal = (1..=64).contains(&self.group.len())
            && self.group.bytes().all(is_plain)
            && !RESERVED.contains(&&*self.group);
        if !is_legal {
            return Err(error("group", &self.group, GROUP));
        }
        mask(&self.l3)
            .filter(|mask| *mask != 0)
            .ok_or_else(|| error("l3", &self.l3, L3))
    }

    /// Returns the values that a key allows.
    pub(crate) fn allowed(key: &str) -> Option<String> {
        let allowed = match key {
            "root" => ROOT,
            "group" => GROUP,
            "l3" => L3,
            _ => return None,
        };
        Some(allowed.to_owned())
    }
}

/// Parses a capacity mask: 1 to 8 hexadecimal digits.
fn mask(text: &str) -> Option<u32> {
    let is_hex = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// Files of `info/L3`, as the kernel writes them.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheInfo<'a> {
    /// `cbm_mask`: all bits that a mask may have.
    pub cbm_mask: &'a str,
    /// `min_cbm_bits`: how many bits a mask must have.
    pub min_cbm_bits: &'a str,
    /// `sparse_masks`: 1 if the bits need not be side by side. Older kernels have no such file.
    pub sparse_masks: Option<&'a str>,
}

/// Error: this machine does not take the mask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// A file of the kernel says something else than expected.
    #[error("{file} says {text:?}, which is no number")]
    File {
        /// Name of the file.
        file: &'static str,
        /// Its text.
        text: String,
    },
    /// The mask has bits that the cache does not have.
    #[error("the mask {0:x} has bits outside of {1:x}, which is the whole cache")]
    Outside(u32, u32),
    /// The mask has too few bits.
    #[error("the mask {0:x} has fewer bits than the {1} that this processor needs")]
    TooFew(u32, u32),
    /// The bits of the mask are not side by side.
    #[error("the bits of the mask {0:x} are not side by side, as this processor needs them")]
    Gaps(u32),
}

/// Checks a mask against what the machine allows.
///
/// # Errors
///
/// [`MaskError`].
pub fn check_mask(wanted: u32, info: &CacheInfo<'_>) -> Result<(), MaskError> {
    let says = |file, text: &str| MaskError::File {
        file,
        text: text.trim().chars().take(40).collect(),
    };
    let whole = mask(info.cbm_mask.trim()).ok_or_else(|| says("cbm_mask", info.cbm_mask))?;
    let least: Result<u32, _> = info.min_cbm_bits.trim().parse();
    let least = least.map_err(|_| says("min_cbm_bits", info.min_cbm_bits))?;
    if wanted & !whole != 0 {
        return Err(MaskError::Outside(wanted, whole));
    }
    if wanted.count_ones() < least {
        return Err(MaskError::TooFew(wanted, least));
    }
    let is_sparse = info.sparse_masks.is_some_and(|text| text.trim() == "1");
    let low = wanted >> wanted.trailing_zeros().min(31);
    if !is_sparse && low & low.wrapping_add(1) != 0 {
        return Err(MaskError::Gaps(wanted));
    }
    Ok(())
}

/// Returns the line for `schemata` that gives the mask to all last-level caches which the file `schemata` lists. `None` if
/// it lists none.
pub fn schemata_line(schemata: &str, mask: u32) -> Option<String> {
    let is_l3 = |line: &str| line.trim().strip_prefix("L3:").map(str::to_owned);
    let caches = schemata.lines().find_map(is_l3)?;
    let numbers = caches.split(';').map(|cache| {
        let (number, _) = cache.split_once('=')?;
        number.trim().parse::<u32>().ok()
    });
    let masks = numbers.map(|number| Some(format!("{}={mask:x}", number?)));
    let masks: Option<Vec<String>> = masks.collect();
    Some(format!("L3:{}\n", masks?.join(";")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bad_section_is_named_in_one_line() {
        let good = ResctrlSettings {
            l3: "ff0".to_owned(),
            ..ResctrlSettings::default()
        };
        assert_eq!(good.check(), Ok(0xff0));
        let with = |key: &str, value: &str| {
            let mut settings = good.clone();
            *match key {
                "root" => &mut settings.root,
                "group" => &mut settings.group,
                _ => &mut settings.l3,
            } = value.to_owned();
            settings
        };
        for (key, value) in [
            ("root", "sys"),
            ("group", ""),
            ("group", ".."),
            ("group", "a/b"),
            ("group", "info"),
            ("group", "a\nb"),
            ("l3", ""),
            ("l3", "0"),
            ("l3", "0xff"),
            ("l3", "+f"),
            ("l3", "1ffffffff"),
        ] {
            let line = with(key, value).check().expect_err("illegal").to_string();
            assert!(
                line.starts_with(&format!("resctrl.{key} is {value:?}: ")),
                "{line}"
            );
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }

    #[test]
    fn a_mask_must_suit_the_machine() {
        let intel = CacheInfo {
            cbm_mask: "fffff\n",
            min_cbm_bits: "2\n",
            sparse_masks: None,
        };
        assert_eq!(check_mask(0xff0, &intel), Ok(()));
        assert_eq!(check_mask(0x3, &intel), Ok(()));
        assert_eq!(
            check_mask(0x10_0000, &intel),
            Err(MaskError::Outside(0x10_0000, 0xf_ffff))
        );
        assert_eq!(check_mask(0x4, &intel), Err(MaskError::TooFew(4, 2)));
        assert_eq!(check_mask(0xf0f, &intel), Err(MaskError::Gaps(0xf0f)));
        let sparse = CacheInfo {
            sparse_masks: Some("1\n"),
            ..intel
        };
        assert_eq!(check_mask(0xf0f, &sparse), Ok(()));
        let odd = CacheInfo {
            min_cbm_bits: "two",
            ..intel
        };
        let line = check_mask(3, &odd).expect_err("no number").to_string();
        assert_eq!(line, "min_cbm_bits says \"two\", which is no number");
        assert_eq!(
            check_mask(
                u32::MAX,
                &CacheInfo {
                    cbm_mask: "ffffffff",
                    ..intel
                }
            ),
            Ok(())
        );
    }

    #[test]
    fn a_line_names_every_cache() {
        let schemata = "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n";
        let line = schemata_line(schemata, 0xff0);
        assert_eq!(line.as_deref(), Some("L3:0=ff0;1=ff0\n"));
        assert_eq!(schemata_line("    MB:0=100\n", 1), None);
        assert_eq!(schemata_line("L3:a=1\n", 1), None);
        // With code and data apart (cdp) there is no line L3.
        assert_eq!(
            schemata_line("L3DATA:0=ff;1=ff\nL3CODE:0=ff;1=ff\n", 1),
            None
        );
    }

    proptest! {
        #[test]
        fn any_file_is_understood_or_refused(text in ".{0,40}", wanted: u32) {
            let info = CacheInfo { cbm_mask: &text, min_cbm_bits: &text, sparse_masks: Some(&text) };
            let _ = check_mask(wanted, &info);
            let _ = schemata_line(&text, wanted);
        }
    }
}
