//! The config of a virtio device, by the service thread's own code: a driver reads it without an exit while it changes, and a backend writes
//! another one while the service thread reads it.
//!
//! Planted, one at a time, in `core/src/virtio/config.rs`; each fails a model:
//!
//! | planted | fails |
//! | --- | --- |
//! | the generation is counted only before the words, or only behind them; no fence behind the first count, or none before the second | [`a_driver_knows_a_torn_config`] |
//! | the backend's generation is not read again; no fence before that; no fence behind the first look at it | [`no_half_of_a_backends_config_is_shown`] |

use bulkhead_abi::device::device_page;
use bulkhead_abi::plan::PLAN_CONFIG;
use bulkhead_interleave::virtio::config::Config;
use bulkhead_interleave::virtio::memory::{At, Memory};
use bulkhead_interleave::virtio::transport::{Page, register};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use trying::model;

mod trying;

/// Words of a config that are told apart: the first and the last. Loom has no room for sixteen.
const BOTH: [u64; 2] = [0, PLAN_CONFIG as u64 - 4];
const OLD: [u32; 2] = [1, 2];
const NEW: [u32; 2] = [3, 4];

/// A generation and two words, in the page of registers or in the device page.
struct Words {
    generation: AtomicU32,
    config: [AtomicU32; 2],
}

impl Words {
    fn new(generation: u32, config: [u32; 2]) -> Self {
        let words = Self {
            generation: AtomicU32::new(generation),
            config: config.map(AtomicU32::new),
        };
        assert_eq!(words.read(), (generation, config));
        words
    }

    fn word(&self, offset: u64) -> Option<&AtomicU32> {
        let number = BOTH.iter().position(|at| *at == offset)?;
        self.config.get(number)
    }

    fn read(&self) -> (u32, [u32; 2]) {
        let generation = self.generation.load(Relaxed);
        (generation, [0, 1].map(|n| self.config[n].load(Relaxed)))
    }
}

impl Page for Words {
    fn set(&self, offset: u64, value: u32) {
        if offset == register::CONFIG_GENERATION {
            self.generation.store(value, Relaxed);
        } else if let Some(word) = self.word(offset - register::CONFIG) {
            word.store(value, Relaxed);
        }
    }

    fn get(&self, offset: u64) -> u32 {
        match offset {
            register::MAGIC_VALUE => 1,
            register::CONFIG_GENERATION => self.generation.load(Relaxed),
            _ => unreachable!("nobody reads {offset:#x}"),
        }
    }
}

/// The device page, at address 0.
impl Memory for Words {
    fn load32(&self, at: At) -> u32 {
        let offset = at.address();
        if offset == device_page::GENERATION as u64 {
            return self.generation.load(Relaxed);
        }
        let word = self.word(offset - device_page::BACKEND_CONFIG as u64);
        word.map_or(0, |word| word.load(Relaxed))
    }

    fn load8(&self, _: At) -> u8 {
        unreachable!()
    }

    fn load16(&self, _: At) -> u16 {
        unreachable!()
    }

    fn load64(&self, _: At) -> u64 {
        unreachable!()
    }

    fn store8(&self, _: At, _: u8) {
        unreachable!()
    }

    fn store16(&self, _: At, _: u16) {
        unreachable!()
    }

    fn store32(&self, _: At, _: u32) {
        unreachable!()
    }

    fn store64(&self, _: At, _: u64) {
        unreachable!()
    }

    fn copy(&self, _: At, _: At, _: u64) {
        unreachable!()
    }
}

fn follow(config: &mut Config, given: &Words, page: &Words) -> bool {
    config.follow(given, Some(At::new(0)), &[0; PLAN_CONFIG], page)
}

/// A driver that reads as drivers do (VIRTIO 1.2, 2.5.1) has the old config, or the new one, or finds that the generation has changed; or all of its reads lay
/// between the two changes, and the interrupt that follows makes it read again.
#[test]
fn a_driver_knows_a_torn_config() {
    model(|| {
        const FIRST: u32 = 7;
        let page = Arc::new(Words::new(FIRST, OLD));
        let given = Words::new(2, NEW);
        let read = Arc::clone(&page);
        let driver = thread::spawn(move || {
            let before = read.generation.load(Relaxed);
            fence(Acquire);
            let words = [0, 1].map(|n| read.config[n].load(Relaxed));
            fence(Acquire);
            (before, words, read.generation.load(Relaxed))
        });
        let mut config = Config::new();
        assert!(follow(&mut config, &given, &page));
        assert!(config.tells(true), "the interrupt");
        let (before, words, after) = driver.join().unwrap();
        if before == after {
            match before - FIRST {
                0 => assert_eq!(words, OLD),
                1 => {}
                _ => assert_eq!(words, NEW),
            }
        }
        assert_eq!(page.read(), (FIRST + 2, NEW), "once it is told");
    });
}

/// What a backend changes while it is read is not shown, and is at the next look.
#[test]
fn no_half_of_a_backends_config_is_shown() {
    model(|| {
        let given = Arc::new(Words::new(2, OLD));
        let page = Words::new(7, [0; 2]);
        let written = Arc::clone(&given);
        let backend = thread::spawn(move || {
            written.generation.store(3, Relaxed);
            fence(Release);
            for (word, value) in written.config.iter().zip(NEW) {
                word.store(value, Relaxed);
            }
            written.generation.store(4, Release);
        });
        let mut config = Config::new();
        let shown = follow(&mut config, &given, &page);
        let (_, words) = page.read();
        assert!(!shown || words == OLD || words == NEW, "{words:?}");
        backend.join().unwrap();
        let again = follow(&mut config, &given, &page);
        assert!(shown || again);
        assert_eq!(page.read().1, NEW);
    });
}
