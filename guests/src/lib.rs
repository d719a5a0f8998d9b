//! Programs for EL1, one for each claim.
#![cfg_attr(target_os = "none", no_std)]
