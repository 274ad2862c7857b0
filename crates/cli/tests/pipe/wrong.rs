//! Wrong input is one clear line and the right exit code.

use std::process::Stdio;

use crate::common::{Fabric, Side};

fn fails(fabric: &Fabric, args: &[&str], code: i32, says: &str) {
    let mut side = Side::start(&mut fabric.headworks(args));
    assert_eq!(side.wait().code(), Some(code), "{args:?}");
    let complaint = side.complaint();
    assert!(complaint.contains(says), "{args:?}: {complaint}");
    assert_eq!(complaint.lines().count(), 1, "{args:?}: {complaint}");
}

#[test]
fn bad_input_is_one_line() {
    let fabric = Fabric::new();
    fails(
        &fabric,
        &["pipe", "connect", "a"],
        1,
        "nobody listens under the name a",
    );
    fails(&fabric, &["pipe", "connect", "a/b"], 2, "bad name");
    fails(&fabric, &["pipe", "listen", ""], 2, "bad name");
    fails(
        &fabric,
        &["pipe", "listen", "a", "--device", "nope"],
        2,
        "nope",
    );
    fails(
        &fabric,
        &["pipe", "listen", "a", "--device", "soft,x=1"],
        2,
        "x",
    );
    fails(&fabric, &["pipe", "listen"], 2, "NAME");
    fails(&fabric, &["pipe", "listen", "a", "--bogus"], 2, "--bogus");
    fails(
        &fabric,
        &["pipe", "listen", "a", "--timeout", "0"],
        1,
        "waiting for a caller",
    );
    fails(&fabric, &["experiment", "run", "no-such"], 2, "no-such");
    fabric.is_clean();
}

#[test]
fn a_name_in_use_is_refused() {
    let fabric = Fabric::new();
    let listener = fabric.listen(&[], "a", Stdio::null(), Stdio::null());
    let pid = listener.0.id().to_string();
    fails(&fabric, &["pipe", "listen", "a"], 2, &pid);
    drop(listener);
    fabric.is_clean_after_next_user();
}
