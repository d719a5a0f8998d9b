//! The service VM's library against models of what is around it: EL2 as the driver of its queues, guests, an array of bytes.

mod backend;
mod disk;
mod el2;
mod lines;
mod memory;
mod overlay;
mod queue;
mod session;
mod switch;
