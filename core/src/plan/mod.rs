//! Reading and proving a plan; called by the host tool that made it and by EL2 that gets it.
