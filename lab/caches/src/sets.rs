//! A set-associative memory: lines of a cache, entries of a TLB.

use bulkhead_plugin::caches::{Replacement, Shape};

/// A set-associative memory of entries with a key each.
#[derive(Clone, Debug)]
pub struct Sets<K, V> {
    sets: u64,
    ways: usize,
    replacement: Replacement,
    /// Set behind set; the entry that was used last first, with [`Replacement::Lru`].
    entries: Vec<Option<(K, V)>>,
    /// State of the generator (xorshift64).
    random: u64,
}

impl<K: Copy + Eq, V: Copy> Sets<K, V> {
    /// An empty one, of so many entries in all.
    pub fn new(entries: u64, shape: Shape) -> Self {
        let ways = shape.ways.clamp(1, entries.max(1));
        let sets = (entries / ways).max(1);
        Self {
            sets,
            ways: usize::try_from(ways).unwrap_or(1),
            replacement: shape.replacement,
            entries: vec![None; usize::try_from(sets * ways).unwrap_or(1)],
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn set(&mut self, index: u64) -> &mut [Option<(K, V)>] {
        let first = usize::try_from(index % self.sets).unwrap_or(0) * self.ways;
        &mut self.entries[first..first + self.ways]
    }

    /// The entry with this key in the set of `index`, which counts as used now.
    pub fn find(&mut self, index: u64, key: K) -> Option<&mut V> {
        let lru = self.replacement == Replacement::Lru;
        let set = self.set(index);
        let mut way = set
            .iter()
            .position(|entry| matches!(entry, Some((known, _)) if *known == key))?;
        if lru {
            set[..=way].rotate_right(1);
            way = 0;
        }
        set[way].as_mut().map(|(_, value)| value)
    }

    /// Puts an entry there that is not there yet, and returns the one that had to go for it.
    pub fn fill(&mut self, index: u64, key: K, value: V) -> Option<(K, V)> {
        let lru = self.replacement == Replacement::Lru;
        let random = self.next();
        let ways = self.ways;
        let set = self.set(index);
        let empty = set.iter().position(Option::is_none);
        let victim = match (empty, lru) {
            (Some(way), _) => way,
            (None, true) => ways - 1,
            (None, false) => usize::try_from(random % ways as u64).unwrap_or(0),
        };
        let gone = set[victim].replace((key, value));
        if lru {
            set[..=victim].rotate_right(1);
        }
        gone
    }

    /// Takes an entry out.
    pub fn remove(&mut self, index: u64, key: K) -> Option<V> {
        let mut set = self.set(index).iter_mut();
        let entry = set.find(|entry| matches!(entry, Some((known, _)) if *known == key))?;
        entry.take().map(|(_, value)| value)
    }

    /// Takes out all for which `goes` says so.
    pub fn remove_where(&mut self, goes: impl Fn(&K) -> bool) {
        for entry in &mut self.entries {
            if entry.as_ref().is_some_and(|(key, _)| goes(key)) {
                *entry = None;
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(replacement: Replacement) -> Sets<u64, u64> {
        let shape = Shape {
            size: 0,
            ways: 4,
            replacement,
        };
        Sets::new(16, shape)
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut sets = sets(Replacement::Lru);
        for key in 0..4 {
            assert_eq!(sets.fill(0, key, key), None);
        }
        assert!(sets.find(0, 0).is_some());
        assert_eq!(sets.fill(0, 4, 4), Some((1, 1)));
        assert_eq!(sets.fill(0, 5, 5), Some((2, 2)));
        assert!(sets.find(0, 0).is_some() && sets.find(0, 1).is_none());
    }

    #[test]
    fn an_empty_way_is_taken_first_and_others_sets_are_left_alone() {
        for replacement in [Replacement::Lru, Replacement::Random] {
            let mut sets = sets(replacement);
            for key in 0..16 {
                assert_eq!(sets.fill(key, key, key), None, "{key}");
            }
            assert_eq!(sets.remove(1, 5), Some(5));
            assert_eq!(sets.remove(1, 5), None);
            assert_eq!(sets.fill(1, 21, 21), None);
            // Set 1 has had 1, 9 and 13.
            let gone = sets.fill(1, 25, 25).unwrap().0;
            assert!([1, 9, 13, 21].contains(&gone), "{gone}");
            for key in (0..16).filter(|key| key % 4 != 1) {
                assert_eq!(sets.find(key, key), Some(&mut { key }));
            }
        }
    }

    #[test]
    fn any_way_may_go_at_random() {
        let mut sets = sets(Replacement::Random);
        for key in 0..4 {
            sets.fill(0, key, 0);
        }
        // The oldest of the first four is gone soon, and not always in their order.
        let mut gone: Vec<u64> = (4..64).map(|key| sets.fill(0, key, 0).unwrap().0).collect();
        assert!(!gone.is_sorted());
        gone.sort_unstable();
        gone.dedup();
        assert_eq!(gone.len(), 60);
    }

    #[test]
    fn those_that_are_meant_go() {
        let mut sets = sets(Replacement::Lru);
        for key in 0..8 {
            sets.fill(key, key, key);
        }
        sets.remove_where(|key| key % 2 == 0);
        assert!(sets.find(2, 2).is_none() && sets.find(3, 3).is_some());
    }
}
