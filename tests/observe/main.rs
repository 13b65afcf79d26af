//! What Prometheus and Grafana are given in `deploy/`: rules, alerts and dashboards, against a real Prometheus that
//! scrapes a real chain.
//!
//! | module | for |
//! |---|---|
//! | `description` | `deploy/grafana/dashboards.yaml` as types |
//! | `grafana` | the JSON that Grafana reads, made from it |
//! | `committed` | what is committed is what is made; descriptions, links, names of metrics |
//! | `rules` | the rules by promtool; every alert has its cases and its section of the runbook |
//! | `shorten` | rules whose minutes are seconds |
//! | `scene` | the chain, the Prometheus and the traffic: denials, a reload, outages |
//! | `live` | alerts that fire and cease, panels that have data |
//! | `runbook` | every command of docs/runbook.md, run |
//! | `panels` | the queries of a dashboard, run as Grafana runs them |
//! | `draw`, `units` | a picture of each dashboard: target/dashboards |

mod committed;
mod description;
mod draw;
mod grafana;
mod live;
mod panels;
mod rules;
mod runbook;
mod scene;
mod shorten;
mod units;
