//! What takes longer, or is rarer: `make test-full` runs these, and `make test` one failure of each kind in the modules above.

mod away;
mod check_store;
mod cluster;
mod operated;
mod overrides;
mod sentinel;
mod stopping;
