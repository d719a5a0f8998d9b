//! Targets whose inputs are what the host tool reads, or are made of what the planner makes. They are apart from those of
//! `core`, which are built in a fraction of the time.

pub mod targets;
