//! Sluicegate on a host with systemd: every command of docs/install/host.md, and the units of `deploy/systemd`, on a
//! Debian whose own systemd is the first process of its namespaces.
//!
//! | module | for |
//! |---|---|
//! | `machine` | that Debian: booting it, running commands in it; `boot` is its script |
//! | `page` | the commands of the page, in order, and what each must do |
//! | `units` | what systemd says of the units, and what the running services may not do |

mod machine;
mod page;
mod units;
