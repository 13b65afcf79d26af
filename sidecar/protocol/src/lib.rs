//! sluicegate-protocol
