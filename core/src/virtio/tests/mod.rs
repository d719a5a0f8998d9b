//! Shadow virtqueues against a driver and a backend that keep to the rules ([`good`]), and against such that do not
//! ([`hostile`]); whole devices with all that may end a session ([`devices`]).

mod config;
mod console;
mod devices;
mod good;
mod hostile;
pub(super) mod parts;
mod port_world;
mod ports;
mod registers;
mod turns;
