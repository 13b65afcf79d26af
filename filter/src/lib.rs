//! sluicegate-filter
