//! Who receives: what has come is written to the file from where it lies.

use std::io::Write;
use std::path::Path;

use headworks::service::{Service, ServiceError};
use headworks::stage::Interrupt;
use headworks_examples::applications::{accept, patiently, receive_exact, send};
use headworks_examples::shell::{Failure, Outcome, gone, say};
use tempfile::NamedTempFile;

use crate::{NAMED, RIGHT, WRONG};

/// Receives one file. Under the name `into` it is whole, or what was there before: until then it has another name in
/// the same folder, and is removed if it does not come that far.
pub(crate) fn receive(service: &Service, port: u16, into: &Path, interrupt: &Interrupt) -> Outcome {
    let folder = match into.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let file = NamedTempFile::new_in(folder);
    let mut file =
        file.map_err(|error| Failure::BadInput(format!("{}: {error}", folder.display())))?;
    let listener = service.listen(port, 1)?;
    say(format!("receiving at port {}\n", listener.port()).as_bytes())?;
    let mut stream = accept(&listener, interrupt)?;
    // One file: whoever else calls is refused.
    drop(listener);

    let mut len = [0; 8];
    receive_exact(&mut stream, &mut len, interrupt)?;
    let mut left = u64::from_le_bytes(len);
    let mut hash = crc32fast::Hasher::new();
    while left > 0 {
        let took = patiently(&mut stream, interrupt, |stream| {
            let came = stream.peek()?;
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(came.len());
            hash.update(&came[..len]);
            let written = file.write_all(&came[..len]);
            came.consume(len)?;
            Ok::<_, ServiceError>(written.map(|()| len as u64))
        })??;
        if took == 0 {
            return Err(gone());
        }
        left -= took;
    }
    let mut checksum = [0; 4];
    receive_exact(&mut stream, &mut checksum, interrupt)?;
    if u32::from_le_bytes(checksum) != hash.finalize() {
        send(&mut stream, &[WRONG], interrupt)?;
        return Err(Failure::Failed("what came is not what was sent".to_owned()));
    }
    send(&mut stream, &[RIGHT], interrupt)?;
    // Also if the machine fails right after.
    file.as_file().sync_all()?;
    let named = file.persist(into);
    named.map_err(|error| Failure::Failed(format!("{}: {}", into.display(), error.error)))?;
    send(&mut stream, &[NAMED], interrupt)
}
