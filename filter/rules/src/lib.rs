//! sluicegate-rules
