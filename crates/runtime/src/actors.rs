//! Registry of actors: their constructors, by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::actor::{Actor, ActorError};
use crate::scenario::ActorInit;

type Constructor = dyn Fn(&ActorInit) -> Result<Box<dyn Actor>, ActorError> + Send + Sync;

/// Constructors of actors, by name. A re-executed process finds its actor here, so every process of a program
/// builds the same registry.
#[derive(Clone, Default)]
pub struct ActorRegistry {
    actors: BTreeMap<String, Arc<Constructor>>,
}

impl ActorRegistry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a constructor, replacing one of the same name.
    pub fn register(
        &mut self,
        actor: &str,
        constructor: impl Fn(&ActorInit) -> Result<Box<dyn Actor>, ActorError> + Send + Sync + 'static,
    ) -> &mut Self {
        self.actors.insert(actor.to_owned(), Arc::new(constructor));
        self
    }

    /// The registered names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.actors.keys().map(String::as_str)
    }

    /// Constructs an actor.
    pub fn construct(&self, part: &ActorInit) -> Result<Box<dyn Actor>, ActorError> {
        let Some(constructor) = self.actors.get(&part.actor) else {
            let known = self.names().collect::<Vec<_>>().join(", ");
            let text = format!("no actor {:?}: {known} are registered", part.actor);
            return Err(ActorError::new(text));
        };
        constructor(part)
    }
}

impl fmt::Debug for ActorRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{ActorSpec, no_device_opener};

    #[test]
    fn an_unknown_actor_is_answered_with_those_there_are() {
        let mut actors = ActorRegistry::new();
        actors.register("ping", |_| Err("unused".into()));
        let part = ActorInit {
            spec: ActorSpec::new("a", "pong"),
            opener: no_device_opener(),
        };
        let error = actors.construct(&part).err().expect("unknown").to_string();
        assert_eq!(error, "no actor \"pong\": ping are registered");
        assert!(part.open_device().is_err());
    }
}
