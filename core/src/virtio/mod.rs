//! Devices whose backend is another VM: EL2 moves bytes between the guest's virtqueues and those of a window, and understands
//! none of them (`docs/adr/0024-shadow-virtqueues.md`). The console alone is served by EL2 itself.
//!
//! | module | what |
//! | --- | --- |
//! | [`transport`] | the registers that the guest's driver sees (VIRTIO 1.2, 4.2), [`config`] its config, [`interrupt`] its interrupt status |
//! | [`queue`] | a shadow virtqueue: [`guest_ring`] on one side, [`backend_ring`] on the other, in slices |
//! | [`session`] | the handshake with the backend, [`told`] how it is told that there is something to do |
//! | [`device`] | all of it, as the service thread has it; [`requests`] what vCPUs ask of it |
//! | [`console`] | virtio-console; [`ports`] its control port |
//! | [`round`] | which device has its turn, [`pending`] which has something to do, [`polls`] which is looked at without being asked |
//! | [`pages`] | what a service thread reaches where, [`window`] what a window begins with |
//! | [`memory`] | how memory of VMs is reached |

pub mod backend_ring;
pub mod config;
pub mod console;
pub mod device;
pub mod guest_ring;
pub mod interrupt;
pub mod memory;
pub mod pages;
pub mod pending;
pub mod polls;
pub mod ports;
pub mod queue;
pub mod requests;
pub mod round;
pub mod served;
pub mod session;
pub mod told;
pub mod transport;
pub mod window;

#[cfg(test)]
mod tests;
