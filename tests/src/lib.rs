//! sluicegate-tests
