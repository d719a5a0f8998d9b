//! Private L1s and an L2 of each cluster, by physical address. Lines move as coherence wants it; who has them does not change what they hold, which is not kept.

use crate::sets::Sets;
use bulkhead_plugin::caches::{Counts, Owner};
use bulkhead_plugin::caches::{Geometry, LINE};

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Of an instruction.
    Fetch,
    /// Of data.
    Load,
    /// Of data.
    Store,
    /// A store of a whole line: nothing is read for it (`DC ZVA`).
    Zero,
    /// Of a descriptor by the table walk unit.
    Walk,
}

/// State of a line.
#[derive(Clone, Copy, Debug)]
struct CacheLine {
    /// Who has brought it here.
    owner: Owner,
    /// Memory has something older.
    dirty: bool,
    /// No other L1 has it.
    unique: bool,
}

/// The caches of all clusters.
#[derive(Debug)]
pub struct Caches {
    geometry: Geometry,
    l1i: Vec<Sets<u64, CacheLine>>,
    l1d: Vec<Sets<u64, CacheLine>>,
    /// The cluster of each CPU.
    clusters: Vec<usize>,
    /// By cluster.
    l2: Vec<Sets<u64, CacheLine>>,
    /// By owner.
    counts: Vec<Counts>,
}

impl Caches {
    /// Empty ones, without a CPU.
    pub fn new(geometry: Geometry) -> Self {
        Self {
            l2: vec![Sets::new(geometry.l2.size / LINE, geometry.l2)],
            geometry,
            l1i: Vec::new(),
            l1d: Vec::new(),
            clusters: Vec::new(),
            counts: Vec::new(),
        }
    }

    /// Adds a CPU of the first cluster, with L1s of its own; they have the next number.
    pub fn add_cpu(&mut self) {
        self.clusters.push(0);
        let of = |shape: bulkhead_plugin::caches::Shape| Sets::new(shape.size / LINE, shape);
        self.l1i.push(of(self.geometry.l1i));
        self.l1d.push(of(self.geometry.l1d));
    }

    /// Puts a CPU into a cluster.
    pub fn set_cluster(&mut self, cpu: usize, cluster: usize) {
        self.clusters[cpu] = cluster;
        let l2 = self.geometry.l2;
        while self.l2.len() <= cluster {
            self.l2.push(Sets::new(l2.size / LINE, l2));
        }
    }

    /// The counts of an owner.
    pub fn counts(&mut self, owner: Owner) -> &mut Counts {
        let index = usize::from(owner);
        if self.counts.len() <= index {
            self.counts.resize(index + 1, Counts::default());
        }
        &mut self.counts[index]
    }

    /// Those of all owners that have any.
    pub fn all(&self) -> impl Iterator<Item = (Owner, Counts)> {
        let counts = (0..=Owner::MAX).zip(self.counts.iter().copied());
        counts.filter(|(_, counts)| *counts != Counts::default())
    }

    /// An access of `size` bytes, line by line.
    pub fn access(&mut self, cpu: usize, owner: Owner, access: Access, physical: u64, size: u64) {
        let last = physical.saturating_add(size.max(1) - 1) / LINE;
        for line in physical / LINE..=last {
            match access {
                Access::Fetch => self.fetch(cpu, owner, line),
                Access::Walk => self.walk(cpu, owner, line),
                Access::Load => self.data(cpu, owner, line, false, true),
                Access::Store => self.data(cpu, owner, line, true, true),
                Access::Zero => self.data(cpu, owner, line, true, false),
            }
        }
    }

    fn fetch(&mut self, cpu: usize, owner: Owner, line: u64) {
        if self.l1i[cpu].find(line, line).is_some() {
            return;
        }
        self.counts(owner).code_misses += 1;
        self.share(cpu, line);
        self.read_l2(cpu, owner, line);
        let new = CacheLine {
            owner,
            dirty: false,
            unique: false,
        };
        self.l1i[cpu].fill(line, line, new);
    }

    /// The walk unit reads what the L1s have, and keeps nothing there.
    fn walk(&mut self, cpu: usize, owner: Owner, line: u64) {
        self.counts(owner).descriptors += 1;
        if self.l1d[cpu].find(line, line).is_some() {
            return;
        }
        self.share(cpu, line);
        self.read_l2(cpu, owner, line);
    }

    fn data(&mut self, cpu: usize, owner: Owner, line: u64, store: bool, reads: bool) {
        self.counts(owner).data += 1;
        let found = self.l1d[cpu].find(line, line).map(|line| {
            let alone = line.unique;
            line.dirty |= store;
            line.unique |= store;
            alone
        });
        if let Some(alone) = found {
            if store && !alone {
                self.take_from_others(cpu, line);
            }
            return;
        }
        self.counts(owner).data_misses += 1;
        let shared = if store {
            self.take_from_others(cpu, line);
            false
        } else {
            self.share(cpu, line)
        };
        if reads {
            self.read_l2(cpu, owner, line);
        } else {
            self.counts(owner).l2 += 1;
        }
        let new = CacheLine {
            owner,
            dirty: store,
            unique: !shared,
        };
        if let Some((number, gone)) = self.l1d[cpu].fill(line, line, new)
            && gone.dirty
        {
            self.write_l2(cpu, number, gone.owner);
        }
    }

    /// A line comes from the L2, or into it from memory.
    fn read_l2(&mut self, cpu: usize, owner: Owner, line: u64) {
        self.counts(owner).l2 += 1;
        if self.l2_of(cpu).find(line, line).is_none() {
            self.counts(owner).l2_misses += 1;
            self.fill_l2(cpu, line, owner, false);
        }
    }

    /// The L2 of a CPU's cluster.
    fn l2_of(&mut self, cpu: usize) -> &mut Sets<u64, CacheLine> {
        &mut self.l2[self.clusters[cpu]]
    }

    /// An L1 has given up a line that is newer.
    fn write_l2(&mut self, cpu: usize, line: u64, owner: Owner) {
        match self.l2_of(cpu).find(line, line) {
            Some(known) => known.dirty = true,
            None => self.fill_l2(cpu, line, owner, true),
        }
    }

    fn fill_l2(&mut self, cpu: usize, line: u64, owner: Owner, dirty: bool) {
        let new = CacheLine {
            owner,
            dirty,
            unique: false,
        };
        if let Some((_, gone)) = self.l2_of(cpu).fill(line, line, new) {
            let counts = self.counts(gone.owner);
            counts.evicted += u64::from(gone.owner != owner);
            counts.written_back += u64::from(gone.dirty);
        }
    }

    /// Another CPU reads a line: what is newer in an L1 goes to the L2. Whether another L1 has it.
    fn share(&mut self, cpu: usize, line: u64) -> bool {
        let mut shared = false;
        for other in (0..self.l1d.len()).filter(|other| *other != cpu) {
            let Some(theirs) = self.l1d[other].find(line, line) else {
                continue;
            };
            let (newer, owner) = (theirs.dirty, theirs.owner);
            (theirs.dirty, theirs.unique) = (false, false);
            shared = true;
            if newer {
                self.write_l2(other, line, owner);
            }
        }
        shared
    }

    /// Another CPU writes a line: no other L1 has it afterwards.
    fn take_from_others(&mut self, cpu: usize, line: u64) {
        for other in (0..self.l1d.len()).filter(|other| *other != cpu) {
            if let Some(theirs) = self.l1d[other].remove(line, line)
                && theirs.dirty
            {
                self.write_l2(other, line, theirs.owner);
            }
        }
        self.take_from_clusters(cpu, line);
    }

    /// No L2 of another cluster has the line afterwards: what is newer there comes with it.
    fn take_from_clusters(&mut self, cpu: usize, line: u64) {
        let own = self.clusters[cpu];
        for other in (0..self.l2.len()).filter(|other| *other != own) {
            if let Some(theirs) = self.l2[other].remove(line, line)
                && theirs.dirty
            {
                self.write_l2(cpu, line, theirs.owner);
            }
        }
    }

    /// `DC CVAC` and the like: what is newer than memory is written there, and stays. With `invalidate` the line leaves all caches of data.
    pub fn clean(&mut self, physical: u64, invalidate: bool) {
        let line = physical / LINE;
        let mut newer = None;
        for l1 in &mut self.l1d {
            if let Some(known) = l1.find(line, line)
                && std::mem::take(&mut known.dirty)
            {
                newer = Some(known.owner);
            }
            if invalidate {
                l1.remove(line, line);
            }
        }
        for l2 in &mut self.l2 {
            if let Some(known) = l2.find(line, line)
                && std::mem::take(&mut known.dirty)
            {
                newer = newer.or(Some(known.owner));
            }
            if invalidate {
                l2.remove(line, line);
            }
        }
        if let Some(owner) = newer {
            self.counts(owner).written_back += 1;
        }
    }

    /// `IC IVAU`, or `IC IALLU` and the like without an address: code leaves all L1s.
    pub fn invalidate_code(&mut self, physical: Option<u64>) {
        for l1 in &mut self.l1i {
            match physical {
                Some(physical) => {
                    l1.remove(physical / LINE, physical / LINE);
                }
                None => l1.remove_where(|_| true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_plugin::caches::Replacement;

    fn caches(cpus: usize, replacement: Replacement) -> Caches {
        let mut geometry = Geometry::CORTEX_A53;
        for shape in [&mut geometry.l1i, &mut geometry.l1d, &mut geometry.l2] {
            shape.replacement = replacement;
        }
        let mut caches = Caches::new(geometry);
        for _ in 0..cpus {
            caches.add_cpu();
        }
        caches
    }

    #[test]
    fn clusters_throw_nothing_out_of_each_others_caches() {
        let mut caches = caches(1, Replacement::Lru);
        caches.add_cpu();
        caches.set_cluster(1, 1);
        pass(&mut caches, 0, 1, 0, 512 * KIB);
        pass(&mut caches, 1, 2, 1 << 30, 4096 * KIB);
        assert_eq!(caches.counts(1).evicted, 0);
        assert_eq!(pass(&mut caches, 0, 1, 0, 512 * KIB).1, 0);
    }

    #[test]
    fn a_line_that_another_cluster_writes_is_gone_and_what_is_newer_comes_along() {
        let mut caches = caches(1, Replacement::Lru);
        caches.add_cpu();
        caches.set_cluster(1, 1);
        let misses = |caches: &mut Caches| caches.counts(1).l2_misses;
        caches.access(0, 1, Access::Store, 0x1000, 8);
        caches.access(1, 1, Access::Load, 0x1000, 8);
        assert_eq!(misses(&mut caches), 2);
        // Both L2s have it, and the first one is newer than memory.
        caches.access(1, 1, Access::Store, 0x1000, 8);
        caches.access(0, 1, Access::Load, 0x1000, 8);
        assert_eq!(misses(&mut caches), 3);
        caches.clean(0x1000, true);
        assert_eq!(caches.counts(1).written_back, 1);
    }

    /// Reads so many bytes from an address on, a word in each line; gives the misses of the L1 and of the L2.
    fn pass(caches: &mut Caches, cpu: usize, owner: Owner, from: u64, bytes: u64) -> (u64, u64) {
        let before = *caches.counts(owner);
        for at in (from..from + bytes).step_by(64) {
            caches.access(cpu, owner, Access::Load, at, 8);
        }
        let now = *caches.counts(owner);
        let misses = now.data_misses - before.data_misses;
        (misses, now.l2_misses - before.l2_misses)
    }

    const KIB: u64 = 1 << 10;

    #[test]
    fn passes_over_what_fits_and_what_does_not() {
        let mut caches = caches(1, Replacement::Lru);
        assert_eq!(pass(&mut caches, 0, 1, 0, 32 * KIB), (512, 512));
        assert_eq!(pass(&mut caches, 0, 1, 0, 32 * KIB), (0, 0));
        // One line more than the L1 has, and the same set is always just too small.
        assert_eq!(
            pass(&mut caches, 0, 1, 0, 1024 * KIB),
            (16384 - 512, 16384 - 512)
        );
        assert_eq!(pass(&mut caches, 0, 1, 0, 1024 * KIB), (16384, 0));
        assert_eq!(
            pass(&mut caches, 0, 1, 0, 2048 * KIB),
            (32768, 32768 - 16384)
        );
        assert_eq!(pass(&mut caches, 0, 1, 0, 2048 * KIB), (32768, 32768));
    }

    #[test]
    fn an_access_has_as_many_lines_as_it_touches() {
        let mut caches = caches(1, Replacement::Lru);
        caches.access(0, 1, Access::Load, 60, 8);
        assert_eq!(caches.counts(1).data_misses, 2);
        caches.access(0, 1, Access::Load, 56, 8);
        caches.access(0, 1, Access::Load, 64, 64);
        assert_eq!(caches.counts(1).data_misses, 2);
    }

    #[test]
    fn others_colours_throw_nothing_out() {
        for replacement in [Replacement::Lru, Replacement::Random] {
            // Pages of the even colours are one VM's, those of the odd ones another's.
            let page = |n: u64, odd: u64| (2 * n + odd) * 4096;
            let mut caches = caches(2, replacement);
            for n in 0..128 {
                pass(&mut caches, 0, 1, page(n, 0), 4096);
            }
            for n in 0..1024 {
                pass(&mut caches, 1, 2, page(n, 1), 4096);
            }
            assert_eq!(caches.counts(1).evicted, 0);
            let again: u64 = (0..128)
                .map(|n| pass(&mut caches, 0, 1, page(n, 0), 4096).1)
                .sum();
            assert_eq!(again, 0);
            // Without colours they do.
            for n in 0..1024 {
                pass(&mut caches, 1, 2, (1 << 30) + n * 4096, 4096);
            }
            assert!(caches.counts(1).evicted > 1000);
        }
    }

    #[test]
    fn a_store_takes_the_line_from_others_and_a_load_shares_it() {
        let mut caches = caches(2, Replacement::Lru);
        let misses = |caches: &mut Caches| {
            let counts = *caches.counts(1);
            (counts.data_misses, counts.l2_misses, counts.written_back)
        };
        caches.access(0, 1, Access::Store, 0x1000, 8);
        assert_eq!(misses(&mut caches), (1, 1, 0));
        caches.access(1, 1, Access::Load, 0x1000, 8);
        caches.access(0, 1, Access::Load, 0x1000, 8);
        assert_eq!(misses(&mut caches), (2, 1, 0));
        // Both have it: a store of one is a miss of the other.
        caches.access(1, 1, Access::Store, 0x1000, 8);
        caches.access(1, 1, Access::Store, 0x1000, 8);
        assert_eq!(misses(&mut caches), (2, 1, 0));
        caches.access(0, 1, Access::Load, 0x1000, 8);
        assert_eq!(misses(&mut caches), (3, 1, 0));
    }

    #[test]
    fn what_is_newer_is_written_once() {
        let mut caches = caches(1, Replacement::Lru);
        caches.access(0, 1, Access::Store, 0x1000, 8);
        caches.clean(0x1000, false);
        caches.clean(0x1000, false);
        assert_eq!(caches.counts(1).written_back, 1);
        assert_eq!(pass(&mut caches, 0, 1, 0x1000, 64), (0, 0));
        caches.access(0, 1, Access::Store, 0x1000, 8);
        caches.clean(0x1000, true);
        assert_eq!(caches.counts(1).written_back, 2);
        assert_eq!(pass(&mut caches, 0, 1, 0x1000, 64), (1, 1));
        // By a line of somebody else that takes its place: from the L1 into the L2, from there to memory.
        caches.access(0, 1, Access::Store, 0x1000, 8);
        pass(&mut caches, 0, 2, 1 << 30, 2048 * KIB);
        assert_eq!(caches.counts(1).written_back, 3);
        assert_eq!(caches.counts(1).evicted, 1);
    }

    #[test]
    fn zeroing_a_line_reads_nothing() {
        let mut caches = caches(1, Replacement::Lru);
        caches.access(0, 1, Access::Zero, 0x1000, 64);
        let counts = *caches.counts(1);
        assert_eq!((counts.data_misses, counts.l2_misses), (1, 0));
        assert_eq!(pass(&mut caches, 0, 1, 0x1000, 64), (0, 0));
        caches.clean(0x1000, false);
        assert_eq!(caches.counts(1).written_back, 1);
    }

    #[test]
    fn code_stays_until_it_is_dropped() {
        let mut caches = caches(2, Replacement::Lru);
        for cpu in [0, 0, 1] {
            caches.access(cpu, 1, Access::Fetch, 0x1000, 4);
        }
        let counts = *caches.counts(1);
        assert_eq!((counts.code_misses, counts.l2_misses), (2, 1));
        caches.invalidate_code(Some(0x1004));
        caches.access(0, 1, Access::Fetch, 0x1000, 4);
        caches.invalidate_code(None);
        caches.access(0, 1, Access::Fetch, 0x1000, 4);
        let counts = *caches.counts(1);
        assert_eq!((counts.code_misses, counts.l2_misses), (4, 1));
    }

    #[test]
    fn a_walk_finds_what_a_cpu_has_just_written() {
        let mut caches = caches(2, Replacement::Lru);
        caches.access(0, 1, Access::Store, 0x1000, 8);
        for cpu in [0, 1] {
            caches.access(cpu, 1, Access::Walk, 0x1000, 8);
        }
        let counts = *caches.counts(1);
        assert_eq!((counts.descriptors, counts.l2, counts.l2_misses), (2, 2, 1));
    }
}
