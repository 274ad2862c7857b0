//! Scenarios: which actors run together, each with its role, device and processor.

use std::ops::Deref;
use std::sync::Arc;

use headworks_verbs::{Device, DeviceName, OpenError};

use crate::actor::{ActorError, COORDINATOR, MAIL_MAX};
use crate::world::ScenarioError;

/// Opens devices. The caller of a world hands it in: nothing here knows a provider.
pub type DeviceOpener =
    Arc<dyn Fn(&DeviceName) -> Result<Arc<dyn Device>, OpenError> + Send + Sync>;

/// An opener for plays that need no device.
pub fn no_device_opener() -> DeviceOpener {
    Arc::new(|name| {
        Err(OpenError::UnknownKind {
            kind: name.kind().to_owned(),
            known: "none".to_owned(),
        })
    })
}

/// Most parts of a play.
pub const ACTORS_MAX: usize = 1024;
/// Longest role or actor name, in bytes.
pub const ROLE_MAX: usize = 64;

/// A part as plain data: it can be written down and sent to another process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ActorSpec {
    /// Its name within the play, and its mail address: 1 to 64 of `[A-Za-z0-9._-]`.
    pub role: String,
    /// The registered actor that plays it.
    pub actor: String,
    /// The device it works on.
    pub device: Option<DeviceName>,
    /// Arguments in the actor's own encoding.
    pub args: Vec<u8>,
    /// The processor to pin it to.
    pub cpu: Option<usize>,
}

impl ActorSpec {
    /// A part without device, arguments or processor.
    pub fn new(role: impl Into<String>, actor: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            actor: actor.into(),
            ..Self::default()
        }
    }

    /// The same part on a device.
    pub fn on(self, device: DeviceName) -> Self {
        Self {
            device: Some(device),
            ..self
        }
    }

    /// The same part with arguments.
    pub fn with_args(self, args: impl Into<Vec<u8>>) -> Self {
        Self {
            args: args.into(),
            ..self
        }
    }

    /// The same part on a processor of its own.
    pub fn pinned_to(self, cpu: usize) -> Self {
        Self {
            cpu: Some(cpu),
            ..self
        }
    }
}

/// What an actor is made from, in the process and on the thread that will step it. Reads like its
/// [`ActorSpec`].
#[derive(Clone)]
pub struct ActorInit {
    /// The part as the play has it.
    pub spec: ActorSpec,
    /// Opens its device, and further ones.
    pub opener: DeviceOpener,
}

impl ActorInit {
    /// Opens the part's device.
    pub fn open_device(&self) -> Result<Arc<dyn Device>, ActorError> {
        let Some(name) = &self.spec.device else {
            return Err(ActorError::new(format!(
                "actor {:?} has no device",
                self.spec.role
            )));
        };
        Ok((self.opener)(name)?)
    }
}

impl Deref for ActorInit {
    type Target = ActorSpec;
    fn deref(&self) -> &ActorSpec {
        &self.spec
    }
}

/// The parts that run together.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Scenario {
    /// At least one, at most [`ACTORS_MAX`], each role once.
    pub actors: Vec<ActorSpec>,
}

impl Scenario {
    /// A play of these parts.
    pub fn of(parts: impl IntoIterator<Item = ActorSpec>) -> Self {
        Self {
            actors: parts.into_iter().collect(),
        }
    }

    /// For worlds: refuses what none can run, and says which roles there are.
    pub fn check(&self) -> Result<Vec<String>, ScenarioError> {
        let mut roles = Vec::with_capacity(self.actors.len());
        if self.actors.is_empty() || self.actors.len() > ACTORS_MAX {
            return Err(ScenarioError::ActorCount(self.actors.len()));
        }
        for part in &self.actors {
            if !is_valid_name(&part.role) || part.role == COORDINATOR || !is_valid_name(&part.actor)
            {
                return Err(ScenarioError::BadName(
                    part.role.clone(),
                    part.actor.clone(),
                ));
            }
            if roles.contains(&part.role) {
                return Err(ScenarioError::DuplicateRole(part.role.clone()));
            }
            if part.args.len() > MAIL_MAX {
                return Err(ScenarioError::ArgsTooLong(
                    part.role.clone(),
                    part.args.len(),
                ));
            }
            roles.push(part.role.clone());
        }
        Ok(roles)
    }
}

/// Whether a text can be a role, an actor or the name of a meeting point.
pub(crate) fn is_valid_name(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= ROLE_MAX && name.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_that_cannot_run_are_refused_by_name() {
        let error = |parts: Vec<ActorSpec>| Scenario::of(parts).check().unwrap_err().to_string();
        assert!(error(vec![]).contains("0 actors"));
        let (a, b) = (ActorSpec::new("a", "x"), ActorSpec::new("b", "x"));
        assert!(error(vec![a.clone(), b, a]).contains("\"a\""));
        assert!(error(vec![ActorSpec::new("a b", "x")]).contains("\"a b\""));
        assert!(error(vec![ActorSpec::new(COORDINATOR, "x")]).contains(COORDINATOR));
        let long = ActorSpec::new("l", "x").with_args(vec![0; MAIL_MAX + 1]);
        assert!(error(vec![long]).contains("\"l\""));
    }
}
