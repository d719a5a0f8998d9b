//! Memory that can be interrupted at each access, and that forgets what is written after a crash.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bulkhead_service::memory::{Memory, Outside};

type Hook = Box<dyn FnOnce()>;

/// What is common to the memories of one life.
#[derive(Default)]
pub struct Life {
    /// Accesses so far.
    pub steps: Cell<u64>,
    /// What happens before that access.
    hook: RefCell<Option<(u64, Hook)>>,
    /// From this access on, nothing is written.
    pub ends: Cell<Option<u64>>,
}

impl Life {
    pub fn at(&self, step: u64, hook: impl FnOnce() + 'static) {
        *self.hook.borrow_mut() = Some((self.steps.get() + step, Box::new(hook)));
    }

    fn step(&self) -> bool {
        let now = self.steps.get();
        self.steps.set(now + 1);
        let due = self
            .hook
            .borrow()
            .as_ref()
            .is_some_and(|(at, _)| *at == now);
        if due {
            let (_, hook) = self.hook.borrow_mut().take().unwrap();
            hook();
        }
        self.ends.get().is_none_or(|end| now < end)
    }
}

/// Memory, as this side of it sees it: the other side has a life of its own.
#[derive(Clone)]
pub struct TestMemory {
    bytes: Rc<RefCell<Vec<u8>>>,
    life: Rc<Life>,
}

impl TestMemory {
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: Rc::new(RefCell::new(vec![0; bytes])),
            life: Rc::default(),
        }
    }

    /// The same memory in another life.
    pub fn with(&self, life: &Rc<Life>) -> Self {
        Self {
            bytes: self.bytes.clone(),
            life: life.clone(),
        }
    }

    pub fn bytes_of(&self, at: u64, bytes: u64) -> Vec<u8> {
        self.bytes.borrow()[at as usize..][..bytes as usize].to_vec()
    }

    fn load<const N: usize>(&self, at: u64) -> Result<[u8; N], Outside> {
        self.life.step();
        if !at.is_multiple_of(N as u64) {
            return Err(Outside);
        }
        let bytes = self.bytes.borrow();
        let rest = bytes.get(usize::try_from(at).map_err(|_| Outside)?..);
        rest.and_then(|rest| rest.first_chunk())
            .copied()
            .ok_or(Outside)
    }

    fn store<const N: usize>(&self, at: u64, value: [u8; N]) -> Result<(), Outside> {
        if !at.is_multiple_of(N as u64) {
            return Err(Outside);
        }
        self.write(at, &value)
    }
}

impl Memory for TestMemory {
    fn bytes(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn load16(&self, at: u64) -> Result<u16, Outside> {
        self.load(at).map(u16::from_le_bytes)
    }

    fn load32(&self, at: u64) -> Result<u32, Outside> {
        self.load(at).map(u32::from_le_bytes)
    }

    fn load64(&self, at: u64) -> Result<u64, Outside> {
        self.load(at).map(u64::from_le_bytes)
    }

    fn store16(&self, at: u64, value: u16) -> Result<(), Outside> {
        self.store(at, value.to_le_bytes())
    }

    fn store32(&self, at: u64, value: u32) -> Result<(), Outside> {
        self.store(at, value.to_le_bytes())
    }

    fn store64(&self, at: u64, value: u64) -> Result<(), Outside> {
        self.store(at, value.to_le_bytes())
    }

    fn swap64(&self, at: u64, value: u64) -> Result<u64, Outside> {
        let old = self.load64(at)?;
        self.bytes.borrow_mut()[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
        Ok(old)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Outside> {
        self.life.step();
        if !self.holds(at, into.len() as u64) {
            return Err(Outside);
        }
        into.copy_from_slice(&self.bytes.borrow()[at as usize..][..into.len()]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), Outside> {
        if !self.holds(at, from.len() as u64) {
            return Err(Outside);
        }
        // A crash may come in the middle.
        let mut at = at as usize;
        for part in from.chunks(100) {
            if self.life.step() {
                self.bytes.borrow_mut()[at..][..part.len()].copy_from_slice(part);
            }
            at += part.len();
        }
        Ok(())
    }

    fn zero(&self, at: u64, bytes: u64) -> Result<(), Outside> {
        if !self.holds(at, bytes) {
            return Err(Outside);
        }
        self.write(at, &vec![0; bytes as usize])
    }

    fn copy(&self, at: u64, to: &Self, to_at: u64, bytes: u64) -> Result<(), Outside> {
        if !self.holds(at, bytes) {
            return Err(Outside);
        }
        let from = self.bytes_of(at, bytes);
        to.write(to_at, &from)
    }
}
