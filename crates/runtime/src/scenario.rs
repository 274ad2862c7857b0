//! Scenarios: which actors run together, each with its role, device and processor.

use std::ops::Deref;
use std::sync::Arc;

use headworks_verbs::{Device, DeviceName, DeviceOpener, OpenError};

use crate::actor::{ActorError, COORDINATOR, MAIL_MAX};
use crate::world::ScenarioError;

/// An opener for scenarios that need no device.
pub fn no_device_opener() -> DeviceOpener {
    Arc::new(|name| {
        Err(OpenError::UnknownKind {
            kind: name.kind().to_owned(),
            known: "none".to_owned(),
        })
    })
}

/// Maximum number of actors of a scenario.
pub const ACTORS_MAX: usize = 1024;
/// Longest role or actor name, in bytes.
pub const ROLE_MAX: usize = 64;

/// Specification of an actor, as plain data that can be stored and sent to another process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ActorSpec {
    /// Its name within the scenario, and its mail address: 1 to 64 of `[A-Za-z0-9._-]`.
    pub role: String,
    /// Name of the registered actor.
    pub actor: String,
    /// The device that it uses.
    pub device: Option<DeviceName>,
    /// Arguments in the actor's own encoding.
    pub args: Vec<u8>,
    /// The processor that its thread is pinned to.
    pub cpu: Option<usize>,
}

impl ActorSpec {
    /// Creates a specification without device, arguments or processor.
    pub fn new(role: impl Into<String>, actor: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            actor: actor.into(),
            ..Self::default()
        }
    }

    /// Sets the device.
    pub fn on(self, device: DeviceName) -> Self {
        Self {
            device: Some(device),
            ..self
        }
    }

    /// Sets the arguments.
    pub fn with_args(self, args: impl Into<Vec<u8>>) -> Self {
        Self {
            args: args.into(),
            ..self
        }
    }

    /// Sets the processor to pin the actor to.
    pub fn pinned_to(self, cpu: usize) -> Self {
        Self {
            cpu: Some(cpu),
            ..self
        }
    }
}

/// Input of an actor's constructor, in the process and on the thread that will step the actor. Dereferences
/// to its [`ActorSpec`].
#[derive(Clone)]
pub struct ActorInit {
    /// The actor's specification.
    pub spec: ActorSpec,
    /// Opens the actor's device, and further ones.
    pub opener: DeviceOpener,
}

impl ActorInit {
    /// Opens the actor's device.
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

/// The actors that run together.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Scenario {
    /// At least one and at most [`ACTORS_MAX`], each with a role of its own.
    pub actors: Vec<ActorSpec>,
}

impl Scenario {
    /// Creates a scenario of these actors.
    pub fn of(parts: impl IntoIterator<Item = ActorSpec>) -> Self {
        Self {
            actors: parts.into_iter().collect(),
        }
    }

    /// For worlds: refuses a scenario that no world can run, and returns its roles.
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

/// Whether a text can be the name of a role or of an actor.
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
