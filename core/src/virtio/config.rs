//! The config as the guest reads it in the page of registers (VIRTIO 1.2, 2.5): the plan's, and while there is a backend the one that it
//! gives. A network says so whether its link is up.
//!
//! The guest reads without an exit, so that it may read while words are being written. Each of them is written whole. `ConfigGeneration` is
//! another before the first word and behind the last: a driver that has read words of both configs finds that it has changed
//! (4.2.2.1), or, when all of its reads lie between the two changes, is told by the interrupt that follows. A change of one word, such as that of
//! a link, is never seen in part.

use core::sync::atomic::{Ordering, fence};

use bulkhead_abi::device::device_page;
use bulkhead_abi::plan::PLAN_CONFIG;

use super::memory::{At, Memory};
use super::transport::{Page, register, show_config, words_of};

/// Words of a config.
const WORDS: usize = PLAN_CONFIG / 4;

/// What the service thread knows of a device's config.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// The backend's generation that is in the page; 0 for the plan's config.
    shown: u32,
    /// It has changed since the driver was told.
    untold: bool,
}

impl Config {
    /// The plan's, which [`Transport::show`](super::transport::Transport::show) has put into the page, or will.
    pub const fn new() -> Self {
        Self {
            shown: 0,
            untold: false,
        }
    }

    /// Puts what the backend with this window gives, or the plan's config if there is none, into the page. `true`: that was another one.
    /// A config that changes meanwhile is left for the next time: its backend tells when it has changed it. So is one that comes
    /// before the page has been made.
    pub fn follow(
        &mut self,
        memory: &impl Memory,
        window: Option<At>,
        plan: &[u8; PLAN_CONFIG],
        page: &impl Page,
    ) -> bool {
        let given = |offset: usize| {
            let read = |window: At| memory.load32(window.plus(offset as u64));
            window.map_or(0, read)
        };
        let generation = given(device_page::GENERATION);
        let is_whole = generation & 1 == 0;
        if generation == self.shown || !is_whole || page.get(register::MAGIC_VALUE) == 0 {
            return false;
        }
        let mut words = [0; WORDS];
        if generation == 0 {
            for (word, planned) in words.iter_mut().zip(words_of(plan)) {
                *word = planned;
            }
        } else {
            fence(Ordering::Acquire);
            let mut offset = device_page::BACKEND_CONFIG;
            for word in &mut words {
                *word = given(offset);
                offset = offset.wrapping_add(4);
            }
            fence(Ordering::Acquire);
            if given(device_page::GENERATION) != generation {
                return false;
            }
        }
        next_generation(page);
        show_config(words.into_iter(), page);
        fence(Ordering::SeqCst);
        next_generation(page);
        (self.shown, self.untold) = (generation, true);
        true
    }

    /// Whether the driver is to be told that the config has changed, by [`CONFIG`](super::interrupt::CONFIG): once, and not before it
    /// drives the device. What it has read before that may be older.
    pub const fn tells(&mut self, driven: bool) -> bool {
        let tells = driven && self.untold;
        self.untold &= !driven;
        tells
    }
}

/// Counts `ConfigGeneration`, before anything that follows.
#[inline(never)]
fn next_generation(page: &impl Page) {
    let generation = page.get(register::CONFIG_GENERATION);
    page.set(register::CONFIG_GENERATION, generation.wrapping_add(1));
    fence(Ordering::SeqCst);
}
