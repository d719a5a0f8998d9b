//! Source of the files that descriptions name as `guest:NAME` and `debian:NAME`.

use std::path::PathBuf;

use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;
use bulkhead_planner::Sources;

use crate::cross_build;
use crate::fetch::{self, cache::Cache};

/// Treatment of payloads that were not built or fetched yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Build programs, fetch packages.
    Everything,
    /// Plan without them, and say so.
    WhatIsThere,
}

impl Sources for Effort {
    fn guest(&self, name: &str) -> Result<Option<PathBuf>, Failure> {
        match self {
            Self::Everything => cross_build::guest(name).map(Some),
            Self::WhatIsThere => {
                Ok(Some(cross_build::built_guest(name)).filter(|file| file.is_file()))
            }
        }
    }

    fn debian(&self, payload: DebianPayload) -> Result<Option<PathBuf>, Failure> {
        match self {
            Self::Everything => fetch::payload(payload).map(Some),
            Self::WhatIsThere => fetch::cached(&Cache::open()?, payload),
        }
    }
}
