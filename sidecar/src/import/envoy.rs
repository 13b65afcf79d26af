//! Envoy's files: the ratelimit filters, and `rate_limits` of virtual hosts, routes and an EnvoyFilter's patches.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::actions::{Entry, RateLimit};
use super::descriptors::Domain;
use super::matchers::RouteMatch;
use super::scope::Scope;
use super::{Document, Notes};
use crate::lint::is_called;
use crate::yaml::{Node, at, children, entries, fields, get, is_true, text};

/// A ratelimit filter.
#[derive(Clone, Default, Deserialize)]
pub struct Filter {
    pub domain: String,
    #[serde(default)]
    stage: u32,
    #[serde(default)]
    pub failure_mode_deny: bool,
    pub enable_x_ratelimit_headers: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Fields of a filter that have no part in what it limits.
const OF_FILTER: &str =
    "@type timeout rate_limited_as_resource_exhausted rate_limit_service stat_prefix";

/// A descriptor that ratelimit is asked about.
pub struct Asked {
    /// For which requests.
    pub scope: Scope,
    pub entries: Vec<Entry>,
    pub cost: u64,
    pub by: Filter,
}

/// All that these files ask about.
pub fn read(documents: &[Document], domains: &[Domain], notes: &mut Notes) -> Vec<Asked> {
    let mut filters = Vec::new();
    for document in documents {
        filters_in(document, &document.node, &mut filters, notes);
    }
    if let ([], [domain]) = (filters.as_slice(), domains) {
        notes.differs("no_filter", "");
        filters.push(Filter {
            domain: domain.name.clone(),
            ..Filter::default()
        });
    }
    let own = documents
        .iter()
        .find_map(|document| at(&document.node, &["node", "cluster"]));
    let (own, mut asked) = (own.and_then(text), Vec::new());
    for document in documents {
        let filters = &filters;
        Reader {
            document,
            filters,
            own,
            asked: &mut asked,
            notes,
        }
        .search(&document.node);
    }
    asked
}

fn filters_in(document: &Document, node: &Node, found: &mut Vec<Filter>, notes: &mut Notes) {
    let configuration = get(node, "typed_config").filter(|_| is_called(node, "http.ratelimit"));
    let Some(node) = configuration else {
        return children(node).for_each(|inner| filters_in(document, inner, found, notes));
    };
    match document.read::<Filter>(node) {
        Err(why) => notes.missing.push(why),
        Ok(filter) => {
            let others = filter
                .others
                .keys()
                .filter(|name| !OF_FILTER.contains(name.as_str()));
            others.for_each(|name| {
                notes.missing(
                    &document.field(node, name),
                    &format!("`{name}` of the filter"),
                )
            });
            let is_same = |one: &Filter| (&one.domain, one.stage) == (&filter.domain, filter.stage);
            if !found.iter().any(is_same) {
                found.push(filter);
            }
        }
    }
}

struct Reader<'a> {
    document: &'a Document,
    filters: &'a [Filter],
    /// Envoy's own cluster.
    own: Option<&'a str>,
    asked: &'a mut Vec<Asked>,
    notes: &'a mut Notes,
}

impl<'a> Reader<'a> {
    fn search(&mut self, node: &'a Node) {
        let hosts = get(node, "virtual_hosts").map(entries).unwrap_or_default();
        hosts.iter().for_each(|host| self.virtual_host(host, hosts));
        if let Some(list) = get(node, "rate_limits") {
            self.notes.differs("patch", &self.document.at(list));
            self.add(list, &Scope::default(), None);
        }
        // Other filters have `rate_limits` too.
        let inner = fields(node)
            .iter()
            .filter(|(name, _)| !["virtual_hosts", "rate_limits"].contains(&name.value.as_str()));
        let inner = inner.map(|(_, inner)| inner).chain(entries(node));
        inner
            .filter(|inner| !is_called(inner, "ratelimit"))
            .for_each(|inner| self.search(inner));
    }

    fn virtual_host(&mut self, host: &'a Node, all: &'a [Node]) {
        let scope = hosts(host, all);
        let routes = get(host, "routes").map(entries).unwrap_or_default();
        let own = |route| at(route, &["route", "rate_limits"]);
        let limits = get(host, "rate_limits");
        if limits.is_none() && !routes.iter().any(|route| own(route).is_some()) {
            return;
        }
        let (mut rest, mut earlier) = (scope.clone(), Vec::<Scope>::new());
        let mut clusters = Vec::new();
        for route in routes {
            let matched = self.matched(route);
            let before = earlier.iter().filter(|other| overlap(&matched, other));
            let region = before.fold(matched.clone(), Scope::without);
            earlier.push(matched);
            let cluster = at(route, &["route", "cluster"]).and_then(text);
            clusters.push(cluster);
            if let Some(list) = own(route) {
                self.add(list, &scope.and(&region), cluster);
            }
            let action = get(route, "route");
            let includes =
                |action| own(route).is_none() || is_true(action, "include_vh_rate_limits");
            // Envoy asks nobody about what it answers itself.
            if !action.is_some_and(includes) {
                rest = rest.without(&region);
            }
            if let Some(node) = at(
                route,
                &["typed_per_filter_config", "envoy.filters.http.ratelimit"],
            ) {
                self.notes.missing(
                    &self.document.at(node),
                    "this route's configuration of the filter",
                );
            }
        }
        clusters.dedup();
        if let Some(list) = limits {
            let cluster = clusters.pop().filter(|_| clusters.is_empty());
            self.add(list, &rest, cluster.flatten());
        }
    }

    /// The requests that a route matches.
    fn matched(&mut self, route: &Node) -> Scope {
        let Some(node) = get(route, "match") else {
            return Scope::default();
        };
        let read = self.document.read::<RouteMatch>(node);
        let read = read.and_then(|read| {
            if read
                .prefix
                .as_ref()
                .is_some_and(|prefix| !prefix.ends_with('/'))
            {
                self.notes.differs("prefix", &self.document.at(node));
            }
            read.scope()
                .map_err(|why| format!("{}: {why}", self.document.at(node)))
        });
        read.unwrap_or_else(|why| {
            self.notes.missing.push(format!(
                "{why}: limits of this route apply without this condition"
            ));
            Scope::default()
        })
    }

    /// Adds the entries of a list for these requests, which have this upstream.
    fn add(&mut self, list: &'a Node, scope: &Scope, upstream: Option<&'a str>) {
        for node in entries(list) {
            let limit = match self.document.read::<RateLimit>(node) {
                Ok(limit) => limit,
                Err(why) => {
                    self.notes.missing.push(why);
                    continue;
                }
            };
            let place = self.document.at(node);
            for by in self
                .filters
                .iter()
                .filter(|filter| filter.stage == limit.stage)
            {
                let entries = limit
                    .actions
                    .iter()
                    .map(|action| action.entry([self.own, upstream]));
                match entries.collect() {
                    Err(why) => self.notes.missing(&place, &String::from(why)),
                    Ok(entries) => self.asked.push(Asked {
                        scope: scope.clone(),
                        entries,
                        cost: limit.hits_addend.number,
                        by: by.clone(),
                    }),
                }
            }
        }
    }
}

/// Whether requests can come to both of these routes, by their paths.
fn overlap(one: &Scope, other: &Scope) -> bool {
    let [one, other] = [one, other].map(|scope| match scope.to_match() {
        Value::String(path) => Some(path),
        found => found["path"].as_str().map(str::to_owned),
    });
    let begins =
        |path: &str, prefix: &str| prefix.ends_with('/') && format!("{path}/").starts_with(prefix);
    match (one, other) {
        (Some(one), Some(other)) => one == other || begins(&one, &other) || begins(&other, &one),
        _ => true,
    }
}

/// The requests that come to a virtual host, and to no other that names their host better.
fn hosts(host: &Node, all: &[Node]) -> Scope {
    let names = |host| {
        let names = get(host, "domains").map(entries).unwrap_or_default().iter();
        let names = names
            .filter_map(text)
            .map(|name| name.split(':').next().unwrap_or(name));
        names.collect::<Vec<_>>()
    };
    let own = names(host);
    let better = all.iter().flat_map(names).filter(|name| {
        let is_wider = |own: &&str| own.strip_prefix('*').is_some_and(|end| name.ends_with(end));
        !own.contains(name) && own.iter().any(is_wider)
    });
    let better: Vec<_> = better.collect();
    let scope = match own.contains(&"*") {
        true => Scope::default(),
        false => Scope::of(json!({ "host": own })),
    };
    match better.is_empty() {
        true => scope,
        false => scope.without(&Scope::of(json!({ "host": better }))),
    }
}
