//! An archive in the format of the kernel's initial file system: "newc", as the kernel's documentation of the
//! early userspace describes it.

/// Mode bits of folders, files and programs.
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;

/// An archive under construction.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(super) fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER, &[]);
    }

    pub(super) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, FILE, content);
    }

    pub(super) fn program(&mut self, name: &str, content: &[u8]) {
        self.entry(name, PROGRAM, content);
    }

    /// Appends the trailer entry and returns the archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = 1;
        let (time, owner) = (0, 0);
        let (name_len, len) = (name.len() as u32 + 1, content.len() as u32);
        // inode, mode, user, group, links, time, length, device and special device (major and minor of
        // each), length of the name with its NUL, checksum (0: only another format uses it).
        let fields = [
            self.entries,
            mode,
            owner,
            owner,
            links,
            time,
            len,
            0,
            0,
            0,
            0,
            name_len,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses an archive: name, mode and content of each entry.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |n: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap();
                u32::from_str_radix(digits, 16).unwrap() as usize
            };
            let (mode, len, name) = (field(1), field(6), field(11));
            let content = (110 + name).next_multiple_of(4);
            let text = String::from_utf8(bytes[110..110 + name - 1].to_vec()).unwrap();
            found.push((text, mode as u32, bytes[content..content + len].to_vec()));
            bytes = &bytes[(content + len).next_multiple_of(4)..];
        }
        found
    }

    #[test]
    fn archived_entries_are_read_back_unchanged() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.program("bin/sh", b"12345");
        archive.file("empty", b"");
        let there = entries(&archive.finish());
        let names: Vec<_> = there.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["bin", "bin/sh", "empty", "TRAILER!!!"]);
        assert_eq!(
            there[1],
            ("bin/sh".to_owned(), 0o100_755, b"12345".to_vec())
        );
        assert_eq!(there[2].2, b"");
    }
}
