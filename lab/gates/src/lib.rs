//! Link-time gates of the EL2 image.
#![cfg_attr(target_os = "none", no_std)]
