//! Objects by the number that the device gave them.

use std::collections::HashMap;
use std::sync::Weak;

/// Numbers that share a page.
const PAGE: u32 = 64;

type Page<T> = [Option<Weak<T>>; PAGE as usize];

/// Objects by number. The numbers of new objects are consecutive, so an object takes 8 bytes here: there may be thousands of queue
/// pairs. A place of the device that is used again has up to four numbers in turn, which are on different pages.
pub(crate) struct Numbered<T>(HashMap<u32, Box<Page<T>>>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Numbered<T> {
    /// Enters an object. Replaces one that has the number.
    pub(crate) fn insert(&mut self, number: u32, object: Weak<T>) {
        let empty = || Box::new([const { None }; PAGE as usize]);
        let page = self.0.entry(number / PAGE).or_insert_with(empty);
        page[(number % PAGE) as usize] = Some(object);
    }

    /// Returns the object of a number.
    pub(crate) fn get(&self, number: u32) -> Option<&Weak<T>> {
        self.0.get(&(number / PAGE))?[(number % PAGE) as usize].as_ref()
    }

    /// Forgets the object of a number, if there is one.
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(page) = self.0.get_mut(&(number / PAGE)) else {
            return;
        };
        page[(number % PAGE) as usize] = None;
        if page.iter().all(Option::is_none) {
            self.0.remove(&(number / PAGE));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn objects_are_those_of_a_plain_map(
            steps in proptest::collection::vec((any::<bool>(), 0u32..300), 0..200),
        ) {
            let (mut numbered, mut plain) = (Numbered::default(), HashMap::new());
            for (enters, number) in steps {
                // Some numbers are far from the others.
                let number = if number % 7 == 0 { number << 16 } else { number };
                if enters {
                    let object = Arc::new(number);
                    numbered.insert(number, Arc::downgrade(&object));
                    plain.insert(number, object);
                } else {
                    numbered.remove(number);
                    plain.remove(&number);
                }
                prop_assert_eq!(numbered.get(number).is_some(), plain.contains_key(&number));
            }
            for (number, object) in &plain {
                let found = numbered.get(*number).and_then(Weak::upgrade);
                prop_assert!(found.is_some_and(|found| Arc::ptr_eq(&found, object)));
            }
            for number in plain.keys() {
                numbered.remove(*number);
            }
            prop_assert!(numbered.0.is_empty(), "pages are freed");
        }
    }
}
