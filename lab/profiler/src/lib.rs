//! QEMU plugin that counts what EL2 costs.
#![cfg_attr(target_os = "none", no_std)]
