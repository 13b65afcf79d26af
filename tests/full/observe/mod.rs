//! The rules, alerts and dashboards in `deploy/`, tested with a real Prometheus that scrapes a real chain.
//!
//! | module | for |
//! |---|---|
//! | `description` | `deploy/grafana/dashboards.yaml` as types |
//! | `grafana` | the JSON that Grafana reads, made from it |
//! | `committed` | the committed dashboards are up to date; descriptions, links, names of metrics |
//! | `rules` | promtool's checks; every alert has test cases and a section in the runbook |
//! | `shorten` | rules with seconds instead of minutes |
//! | `scene` | the chain, the Prometheus and the traffic: denials, a reload, outages |
//! | `live` | alerts fire and resolve, panels have data |
//! | `runbook` | runs every command and query of docs/runbook.md |
//! | `panels` | the queries of a dashboard, run as Grafana runs them |

mod committed;
mod description;
mod grafana;
mod live;
mod panels;
mod rules;
mod runbook;
mod scene;
mod shorten;
