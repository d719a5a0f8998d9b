//! Rules about colours of memory: who has which, in which caches.

use bulkhead_abi::plan::{ALL_COLOURS, MAX_COLOURS, MAX_PCPUS, Pcpu, Region, VM_SHARES_COLOURS};

use super::regions::{SHARED, is_memory};
use crate::plan::view::{IO, Plan};
use crate::plan::violation::{At, Check, Invariant};
use crate::virtio::pages::reaches;

impl Plan<'_> {
    /// Whether the cache of a pCPU has a number of colours that there is, which is that of all pCPUs with the same one. `caches`: the colours of those that
    /// others have; 0 for those that nobody has yet.
    pub(super) fn is_cache(pcpu: &Pcpu, caches: &mut [u32; MAX_PCPUS]) -> bool {
        let colours = pcpu.colours;
        let counted = match colours {
            0 => pcpu.cache | pcpu.cache_level == 0,
            _ => colours.is_power_of_two() && (2..=MAX_COLOURS).contains(&colours),
        };
        let known = caches.get_mut(usize::from(pcpu.cache));
        counted
            && known.is_some_and(|known| {
                let first = core::mem::replace(known, colours);
                first == 0 || first == colours
            })
    }

    /// Whether these colours are the same part of each of these caches: what is a colour of a large cache is one of a small cache several times.
    #[inline(never)]
    pub(super) fn is_part_of(&self, caches: u32, colours: u64) -> bool {
        let has = |cache: u16| caches.wrapping_shr(cache.into()) & 1 != 0;
        colours == ALL_COLOURS
            || self.pcpus.iter().all(|pcpu| {
                let repeats = colours.rotate_right(pcpu.colours) == colours;
                !has(pcpu.cache) || pcpu.colours != 0 && repeats
            })
    }

    /// The caches in which the memory of a VM can be, one bit for each: those of the pCPUs on which its vCPUs run, and of the service threads that reach its
    /// memory.
    #[inline(never)]
    fn caches_of<const PROFILE: u32>(&self, vm: u16) -> u32 {
        let vcpus = self.vcpus.iter().filter(|vcpu| vcpu.vm == vm);
        let mut pcpus = vcpus.fold(0, |all, vcpu| {
            all | vcpu.pool | 1_u32.wrapping_shl(vcpu.pcpu.into())
        });
        if PROFILE >= IO {
            for (row, thread) in self.service_threads().iter().enumerate() {
                if reaches(self, row, vm) {
                    pcpus |= 1_u32.wrapping_shl(thread.pcpu.into());
                }
            }
        }
        let rows = (0..u32::BITS).zip(self.pcpus);
        let own = rows.filter(|(n, _)| pcpus.wrapping_shr(*n) & 1 != 0);
        // Who knows with whom one shares a cache that is not known.
        own.fold(0, |all, (_, pcpu)| match pcpu.colours {
            0 => u32::MAX,
            _ => all | 1_u32.wrapping_shl(pcpu.cache.into()),
        })
    }

    /// Checks the colours of a region: that it has the same part of each cache that it can be in, and none of EL2's, or may.
    pub(super) fn check_colours<const PROFILE: u32>(&self, at: At, region: &Region) -> Check {
        if region.colours != ALL_COLOURS {
            let part = self.is_part_of(self.caches_of::<PROFILE>(region.vm), region.colours);
            at.ensure(part, Invariant::RegionCaches)?;
        }
        let own = self.header.image.colours;
        let apart = own == ALL_COLOURS || region.colours & own == 0 || !is_memory(region);
        at.ensure(apart || self.says(region), Invariant::El2Colours)
    }

    /// Whether two regions may have pages of one colour: those of one VM may, those of boards that are not coloured, memory that both VMs map, those of
    /// VMs that both say so, and those that are never in the same cache.
    pub(super) fn may_compete<const PROFILE: u32>(&self, one: &Region, other: &Region) -> bool {
        let common = one.colours & other.colours;
        let free = common == ALL_COLOURS || common == 0 || one.vm == other.vm;
        free || !(is_memory(one) && is_memory(other))
            || self.maps_shared(one, other)
            || self.maps_shared(other, one)
            || self.says(one) && self.says(other)
            || self.caches_of::<PROFILE>(one.vm) & self.caches_of::<PROFILE>(other.vm) == 0
    }

    /// Whether the VM of `one` maps the shared memory that `other` is.
    fn maps_shared(&self, one: &Region, other: &Region) -> bool {
        let mut own = self.regions_of(one.vm.into()).iter();
        other.kind == SHARED && own.any(|region| region.shared == other.shared)
    }

    /// Whether the VM of a region may have colours that others have, who say so, too.
    fn says(&self, region: &Region) -> bool {
        let vm = self.vms.get(usize::from(region.vm));
        vm.is_some_and(|vm| vm.flags & VM_SHARES_COLOURS != 0)
    }
}
