//! The receiver: writes received bytes to the file from where they arrived.

use std::io::Write;
use std::path::{Path, PathBuf};

use headworks::net::Interrupt;
use headworks::service::{Service, ServiceError};
use headworks_examples::program::{Failure, Outcome, gone, say};
use headworks_examples::service_program::{accept, receive_exact, retry_until_interrupted, send};
use tempfile::NamedTempFile;

use crate::{NAMED, RIGHT, WRONG};

/// A file to be received. It has a temporary name in the target folder until it is complete, and then
/// replaces the file called `into`, if there is one. If it is never completed, the temporary file is removed.
pub(crate) struct FileReceiver {
    file: NamedTempFile,
    into: PathBuf,
}

impl FileReceiver {
    /// Makes the temporary file. This checks before the transfer that `into` can be created.
    pub(crate) fn at(into: &Path) -> Outcome<Self> {
        let wrong = |why: &str| Err(Failure::BadInput(format!("{}: {why}", into.display())));
        let is_name = into.file_name().is_some_and(|name| {
            let all = into.as_os_str().as_encoded_bytes();
            all.ends_with(name.as_encoded_bytes())
        });
        let is_other = into.metadata().is_ok_and(|data| !data.is_file());
        if !is_name || is_other {
            return wrong("INTO is neither a new file nor a regular file");
        }
        let folder = match into.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Only the kind of the error: its text names the temporary file, which the user does not know.
        match NamedTempFile::new_in(folder) {
            Ok(file) => Ok(Self {
                file,
                into: into.to_owned(),
            }),
            Err(error) => wrong(&format!(
                "INTO is in a folder that cannot be written to, {}: {}",
                folder.display(),
                error.kind()
            )),
        }
    }
}

/// Receives one file.
pub(crate) fn receive(
    service: &Service,
    port: u16,
    arrival: FileReceiver,
    interrupt: &Interrupt,
) -> Outcome {
    let FileReceiver { mut file, into } = arrival;
    let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", into.display()));
    let listener = service.listen(port, 1)?;
    say(format!("receiving at port {}\n", listener.port()).as_bytes())?;
    let mut stream = accept(&listener, interrupt)?;
    // Only one file is received, so other callers are refused.
    drop(listener);

    let mut len = [0; 8];
    receive_exact(&mut stream, &mut len, interrupt)?;
    let mut left = u64::from_le_bytes(len);
    let mut hash = crc32fast::Hasher::new();
    while left > 0 {
        let took = retry_until_interrupted(&mut stream, interrupt, |stream| {
            let came = stream.peek()?;
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(came.len());
            hash.update(&came[..len]);
            let written = file.as_file_mut().write_all(&came[..len]);
            came.consume(len)?;
            Ok::<_, ServiceError>(written.map(|()| len as u64))
        })?
        .map_err(failed)?;
        if took == 0 {
            return Err(gone());
        }
        left -= took;
    }
    let mut checksum = [0; 4];
    receive_exact(&mut stream, &mut checksum, interrupt)?;
    if u32::from_le_bytes(checksum) != hash.finalize() {
        send(&mut stream, &[WRONG], interrupt)?;
        return Err(Failure::Failed(
            "the checksum of the received file is wrong".to_owned(),
        ));
    }
    send(&mut stream, &[RIGHT], interrupt)?;
    // Flush to disk, so that the file survives a crash of the machine right after.
    file.as_file().sync_all().map_err(failed)?;
    file.persist(&into).map_err(|error| failed(error.error))?;
    send(&mut stream, &[NAMED], interrupt)
}
