//! The network that the devices' ports seem to be on.

/// The environment variable with the kind of the devices' ports: `ethernet`, the default, or `infiniband`.
pub(crate) const LINK: &str = "HEADWORKS_VERBS_LINK";

/// The network that a port seems to be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Ethernet,
    Infiniband,
}

impl Link {
    /// The link with this name, the value of [`LINK`].
    pub(crate) fn named(name: Option<&str>) -> Result<Self, String> {
        match name {
            None | Some("" | "ethernet") => Ok(Self::Ethernet),
            Some("infiniband") => Ok(Self::Infiniband),
            Some(other) => Err(format!(
                "{LINK} is {other:?}: ethernet and infiniband are possible"
            )),
        }
    }
}
