//! What of `core`'s virtio devices needs its neighbours: the config of a device, in the page of its registers.

#[path = "../../../core/src/virtio/config.rs"]
pub mod config;
#[allow(dead_code, reason = "rings are not tried here")]
#[path = "../../../core/src/virtio/guest_ring.rs"]
pub mod guest_ring;
#[path = "../../../core/src/virtio/memory.rs"]
pub mod memory;
#[path = "../../../core/src/virtio/transport.rs"]
pub mod transport;
