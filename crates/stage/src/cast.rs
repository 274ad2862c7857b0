//! Actors by name, and plays: which part runs what, on which device, where.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use headworks_verbs::{Device, DeviceName, OpenError};

use crate::actor::{Actor, ActorError, DIRECTOR, MAIL_MAX};
use crate::world::StageError;

/// Opens devices. The caller of a world hands it in: nothing here knows a provider.
pub type Opener = Arc<dyn Fn(&DeviceName) -> Result<Arc<dyn Device>, OpenError> + Send + Sync>;

/// An opener for plays that need no device.
pub fn no_devices() -> Opener {
    Arc::new(|name| {
        Err(OpenError::UnknownKind {
            kind: name.kind().to_owned(),
            known: "none".to_owned(),
        })
    })
}

/// Most parts of a play.
pub const PARTS_MAX: usize = 1024;
/// Longest role or actor name, in bytes.
pub const ROLE_MAX: usize = 64;

/// A part as plain data: it can be written down and sent to another process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PartSpec {
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

impl PartSpec {
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
/// [`PartSpec`].
#[derive(Clone)]
pub struct Part {
    /// The part as the play has it.
    pub spec: PartSpec,
    /// Opens its device, and further ones.
    pub opener: Opener,
}

impl Part {
    /// Opens the part's device.
    pub fn open_device(&self) -> Result<Arc<dyn Device>, ActorError> {
        let Some(name) = &self.spec.device else {
            return Err(ActorError::new(format!(
                "part {:?} has no device",
                self.spec.role
            )));
        };
        Ok((self.opener)(name)?)
    }
}

impl Deref for Part {
    type Target = PartSpec;
    fn deref(&self) -> &PartSpec {
        &self.spec
    }
}

/// The parts that run together.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Play {
    /// At least one, at most [`PARTS_MAX`], each role once.
    pub parts: Vec<PartSpec>,
}

impl Play {
    /// A play of these parts.
    pub fn of(parts: impl IntoIterator<Item = PartSpec>) -> Self {
        Self {
            parts: parts.into_iter().collect(),
        }
    }

    /// For worlds: refuses what none can run, and says which roles there are.
    pub fn check(&self) -> Result<Vec<String>, StageError> {
        let mut roles = Vec::with_capacity(self.parts.len());
        if self.parts.is_empty() || self.parts.len() > PARTS_MAX {
            return Err(StageError::Parts(self.parts.len()));
        }
        for part in &self.parts {
            if !is_legal(&part.role) || part.role == DIRECTOR || !is_legal(&part.actor) {
                return Err(StageError::BadName(part.role.clone(), part.actor.clone()));
            }
            if roles.contains(&part.role) {
                return Err(StageError::Twice(part.role.clone()));
            }
            if part.args.len() > MAIL_MAX {
                return Err(StageError::ArgsTooLong(part.role.clone(), part.args.len()));
            }
            roles.push(part.role.clone());
        }
        Ok(roles)
    }
}

/// Whether a text can be a role, an actor or the name of a meeting point.
pub(crate) fn is_legal(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= ROLE_MAX && name.bytes().all(legal)
}

type Constructor = dyn Fn(&Part) -> Result<Box<dyn Actor>, ActorError> + Send + Sync;

/// Actors by name. The re-executed process of a part finds its actor here, so the same cast is built
/// in every process of a program.
#[derive(Clone, Default)]
pub struct Cast {
    actors: BTreeMap<String, Arc<Constructor>>,
}

impl Cast {
    /// Nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a constructor; one of the same name is replaced.
    pub fn register(
        &mut self,
        actor: &str,
        constructor: impl Fn(&Part) -> Result<Box<dyn Actor>, ActorError> + Send + Sync + 'static,
    ) -> &mut Self {
        self.actors.insert(actor.to_owned(), Arc::new(constructor));
        self
    }

    /// The names registered, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.actors.keys().map(String::as_str)
    }

    /// Makes the actor of a part.
    pub fn construct(&self, part: &Part) -> Result<Box<dyn Actor>, ActorError> {
        let Some(constructor) = self.actors.get(&part.actor) else {
            let known = self.names().collect::<Vec<_>>().join(", ");
            let text = format!("no actor {:?}: {known} are registered", part.actor);
            return Err(ActorError::new(text));
        };
        constructor(part)
    }
}

impl fmt::Debug for Cast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plays_that_cannot_run_are_refused_by_name() {
        let error = |parts: Vec<PartSpec>| Play::of(parts).check().unwrap_err().to_string();
        assert!(error(vec![]).contains("0 parts"));
        let (a, b) = (PartSpec::new("a", "x"), PartSpec::new("b", "x"));
        assert!(error(vec![a.clone(), b, a]).contains("\"a\""));
        assert!(error(vec![PartSpec::new("a b", "x")]).contains("\"a b\""));
        assert!(error(vec![PartSpec::new(DIRECTOR, "x")]).contains(DIRECTOR));
        let long = PartSpec::new("l", "x").with_args(vec![0; MAIL_MAX + 1]);
        assert!(error(vec![long]).contains("\"l\""));
    }

    #[test]
    fn an_unknown_actor_is_answered_with_those_there_are() {
        let mut cast = Cast::new();
        cast.register("ping", |_| Err("unused".into()));
        let part = Part {
            spec: PartSpec::new("a", "pong"),
            opener: no_devices(),
        };
        let error = cast.construct(&part).err().expect("unknown").to_string();
        assert_eq!(error, "no actor \"pong\": ping are registered");
        assert!(part.open_device().is_err());
    }
}
