//! Device names. They come from a command line, a file, or another process.

use headworks_softnic::SoftProvider;
use headworks_verbs::{DeviceName, Provider};

use super::fixtures::registry;

pub(super) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let name: DeviceName = match text.parse() {
        Ok(name) => name,
        Err(error) => {
            assert!(
                !error.to_string().contains('\n'),
                "the error has more than one line: {error}"
            );
            return;
        }
    };
    let shown = name.to_string();
    assert_eq!(
        shown.parse().as_ref(),
        Ok(&name),
        "{shown} does not parse to the same device"
    );
    if name.kind() == "soft" {
        match SoftProvider::on(registry()).open(&name) {
            Ok(device) => assert_eq!(device.info().name.name(), name.name()),
            Err(error) => assert!(
                !error.to_string().contains('\n'),
                "the error has more than one line: {error}"
            ),
        }
    }
}
