//! Table of a domain's connections, by their numbers.

use std::collections::VecDeque;

use headworks_client::Vqpn;

/// Table of entries by number. A freed place is used again as late as possible, and under another number.
#[derive(Debug)]
pub struct ConnectionTable<T> {
    places: Vec<(u32, Option<T>)>,
    free: VecDeque<u32>,
    live: usize,
}

impl<T> Default for ConnectionTable<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: VecDeque::new(),
            live: 0,
        }
    }
}

impl<T> ConnectionTable<T> {
    /// Inserts the entry that `make` returns for its number. Returns `None` if all places are taken.
    pub fn insert(&mut self, make: impl FnOnce(Vqpn) -> T) -> Option<Vqpn> {
        // While few places are free, new ones are added instead, so that the number of a removed entry stays
        // unused for long.
        let is_new = self.free.len() < 64 && self.places.len() < Vqpn::INDEXES as usize;
        if is_new {
            self.places.push((0, None));
            self.free.push_front(self.places.len() as u32 - 1);
        }
        let at = self.free.pop_front()?;
        let (generation, place) = &mut self.places[at as usize];
        let number = Vqpn::new(at, *generation);
        *place = Some(make(number));
        self.live += 1;
        Some(number)
    }

    /// Returns the entry with this number.
    #[inline]
    pub fn get(&self, number: Vqpn) -> Option<&T> {
        let (generation, place) = self.places.get(number.place())?;
        place
            .as_ref()
            .filter(|_| *generation % Vqpn::GENERATIONS == number.generation())
    }

    /// Returns the entry with this number, for changes.
    #[inline]
    pub fn get_mut(&mut self, number: Vqpn) -> Option<&mut T> {
        let (generation, place) = self.places.get_mut(number.place())?;
        place
            .as_mut()
            .filter(|_| *generation % Vqpn::GENERATIONS == number.generation())
    }

    /// Returns the number of the entry that is now at a place.
    #[inline]
    pub fn at(&self, place: u32) -> Option<Vqpn> {
        let (generation, found) = self.places.get(place as usize)?;
        found.as_ref().map(|_| Vqpn::new(place, *generation))
    }

    /// Removes the entry with this number.
    pub fn remove(&mut self, number: Vqpn) -> Option<T> {
        self.get(number)?;
        let (generation, place) = &mut self.places[number.place()];
        *generation = generation.wrapping_add(1);
        self.free.push_back(number.place() as u32);
        self.live -= 1;
        place.take()
    }

    /// Iterates over all entries and their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Vqpn, &T)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(at, (generation, place))| {
            Some((Vqpn::new(at as u32, *generation), place.as_ref()?))
        })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_connection_number_is_never_reused() {
        let mut table = ConnectionTable::default();
        let mut gone = Vec::new();
        for n in 0..1000 {
            let number = table.insert(|_| n).unwrap();
            assert_eq!(table.get(number), Some(&n));
            assert!(!gone.contains(&number));
            assert_eq!(table.at(number.place() as u32), Some(number));
            assert_eq!(table.remove(number), Some(n));
            assert_eq!(table.remove(number), None);
            assert_eq!(table.get_mut(number), None);
            gone.push(number);
        }
        assert!(table.is_empty() && table.iter().next().is_none());
        assert!(table.places.len() <= 65, "places are used again");
    }
}
