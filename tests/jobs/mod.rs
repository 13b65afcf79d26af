//! What jobs do without Envoy: the commands as a shell sees them, on a real sidecar and a real Redis.
//!
//! | module | what belongs there |
//! |---|---|
//! | `statuses` | every exit status, whoever decides |
//! | `waiting` | `decide --wait`: exact, bounded, through outages |
//! | `commands` | the command after `--` |
//! | `units` | `peek`, `settle`, `reset`, receipts that are lost |
//! | `slots` | `run` |
//! | `check` | from the policy to a request through Envoy |
//! | `check_store` | stores that are set up right and wrong |
//! | `document` | every command of docs/jobs.md |

mod api;
mod check;
mod check_store;
mod commands;
mod document;
mod shell;
mod slots;
mod statuses;
mod units;
mod waiting;
