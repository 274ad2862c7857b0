//! Faults of a request, and the statuses that they rule out on any device. This check needs no other device
//! to compare with.

use headworks_verbs::Status;

/// Faults of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpectedFailure {
    /// The local memory has a fault.
    pub(super) here: bool,
    /// The remote memory has a fault.
    pub(super) there: bool,
    /// The request may be invalid to the peer: not allowed, misaligned, or longer than the receive.
    pub(super) form: bool,
    /// The peer refuses it, for its memory or its form.
    pub(super) refuses: bool,
    /// It cannot succeed, because it accesses at least one byte that it may not.
    pub(super) must_fail: bool,
}

impl ExpectedFailure {
    /// Returns why a request with these faults cannot have ended with this status, if it cannot.
    pub(super) fn contradicts(self, status: Status) -> Option<&'static str> {
        let (is_possible, why) = match status {
            Status::Success => (!self.must_fail, "succeeded despite its faults"),
            Status::LocalProtection => (self.here, "has no local fault"),
            Status::RemoteAccess => (self.there, "has no remote fault"),
            Status::RemoteInvalidRequest => (self.form, "is not an invalid request"),
            _ => (true, ""),
        };
        (!is_possible).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_a_cause_is_contradicted() {
        let nothing = ExpectedFailure::default();
        for status in [
            Status::LocalProtection,
            Status::RemoteAccess,
            Status::RemoteInvalidRequest,
        ] {
            assert!(nothing.contradicts(status).is_some(), "{status:?}");
        }
        for status in [Status::Success, Status::Flushed, Status::RetryExceeded] {
            assert_eq!(nothing.contradicts(status), None);
        }
        let there = ExpectedFailure {
            there: true,
            must_fail: true,
            ..nothing
        };
        assert_eq!(there.contradicts(Status::RemoteAccess), None);
        assert!(there.contradicts(Status::RemoteInvalidRequest).is_some());
        assert!(there.contradicts(Status::Success).is_some());
        let here = ExpectedFailure {
            here: true,
            ..nothing
        };
        assert_eq!(here.contradicts(Status::LocalProtection), None);
        assert_eq!(here.contradicts(Status::Success), None, "no bytes");
    }
}
