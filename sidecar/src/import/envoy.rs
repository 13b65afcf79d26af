//! Envoy's files: the ratelimit filters, and `rate_limits` of virtual hosts, routes and an EnvoyFilter's patches.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::actions::{Entry, RateLimit, route};
use super::descriptors::Domain;
use super::scope::Scope;
use super::{Document, Notes};
use crate::lint::{any, is_called};
use crate::yaml::{Node, at, children, entries, fields, get, is_true, text, value};

/// A ratelimit filter.
#[derive(Clone, Default, Deserialize)]
pub struct Filter {
    pub domain: String,
    #[serde(default)]
    stage: u32,
    #[serde(default)]
    pub failure_mode_deny: bool,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Fields of a filter that have no part in what it limits.
const OF_FILTER: &str =
    "@type timeout rate_limited_as_resource_exhausted rate_limit_service stat_prefix";
const PER_ROUTE: [&str; 2] = ["typed_per_filter_config", "envoy.filters.http.ratelimit"];

/// A descriptor that ratelimit is asked about for these requests.
pub struct Asked {
    pub scope: Scope,
    pub entries: Vec<Entry>,
    pub by: Filter,
}

/// All that these files ask about.
pub fn read(documents: &[Document], domains: &[Domain], notes: &mut Notes) -> Vec<Asked> {
    let mut filters = Vec::new();
    for document in documents {
        filters_in(document, &document.node, &mut filters, notes);
    }
    match filters.as_slice() {
        [] => {
            let only = domains.first().filter(|_| domains.len() == 1);
            filters.extend(only.map(|domain| Filter {
                domain: domain.name.clone(),
                ..Filter::default()
            }));
            notes.differs("no_filter", "");
        }
        [one, others @ ..] if others.iter().any(|other| other.domain != one.domain) => {
            notes.differs("filters", "");
        }
        _ => {}
    }
    let is_unknown = |filter: &&Filter| domains.iter().all(|known| known.name != filter.domain);
    for filter in filters.iter().filter(is_unknown) {
        let domain = format!("domain `{}`", filter.domain);
        notes.missing(
            &domain,
            "a filter asks for it, and no file of ratelimit has it",
        );
    }
    let mut own = documents.iter();
    let own = own.find_map(|document| at(&document.node, &["node", "cluster"]).and_then(text));
    let (filters, mut asked) = (&filters, Vec::new());
    for document in documents {
        let mut reader = Reader {
            document,
            filters,
            own,
            asked: &mut asked,
            notes,
        };
        reader.search(&document.node);
    }
    asked
}

fn filters_in(document: &Document, node: &Node, found: &mut Vec<Filter>, notes: &mut Notes) {
    let given = get(node, "typed_config").filter(|_| is_called(node, "http.ratelimit"));
    let Some(node) = given else {
        return children(node).for_each(|inner| filters_in(document, inner, found, notes));
    };
    match document.read::<Filter>(node) {
        Err(why) => notes.missing.push(why),
        Ok(filter) => {
            let others = filter.others.keys().map(String::as_str);
            for field in others.filter(|name| !OF_FILTER.contains(name)) {
                let place = document.field(node, field);
                notes.missing(&place, &format!("the filter's `{field}`"));
            }
            found.push(filter);
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

impl Reader<'_> {
    fn search(&mut self, node: &Node) {
        let hosts = get(node, "virtual_hosts").map(entries).unwrap_or_default();
        hosts.iter().for_each(|host| self.virtual_host(host, hosts));
        if let Some(list) = get(node, "rate_limits") {
            self.notes.differs("patch", &self.document.at(list));
            self.add(list, &Scope::default(), None);
        }
        self.note_settings(node);
        let others = ["virtual_hosts", PER_ROUTE[0]];
        let inner = fields(node).iter();
        let inner = inner.filter(|(name, _)| !others.contains(&name.value.as_str()));
        for inner in inner.map(|(_, inner)| inner).chain(entries(node)) {
            // Other filters have `rate_limits` too.
            if !is_called(inner, "ratelimit") {
                self.search(inner);
            }
        }
    }

    fn virtual_host(&mut self, host: &Node, all: &[Node]) {
        let routes = get(host, "routes").map(entries).unwrap_or_default();
        for node in routes.iter().chain([host]) {
            self.note_settings(node);
        }
        let is_some = |list: &&Node| !entries(list).is_empty();
        let own = |route| at(route, &["route", "rate_limits"]).filter(is_some);
        let limits = get(host, "rate_limits");
        if limits.is_none() && !routes.iter().any(|route| own(route).is_some()) {
            return;
        }
        let scope = hosts(host, all);
        let (mut rest, mut earlier, mut clusters) = (scope.clone(), Vec::new(), Vec::new());
        for route in routes {
            let cluster = at(route, &["route", "cluster"]).and_then(text);
            clusters.push(cluster);
            let Some(matched) = self.matched(route) else {
                continue;
            };
            let region = earlier.iter().filter(|other| overlap(&matched, other));
            let region = region.fold(matched.clone(), Scope::without);
            earlier.push(matched);
            if let Some(list) = own(route) {
                self.add(list, &scope.and(&region), cluster);
            }
            let includes =
                |action| own(route).is_none() || is_true(action, "include_vh_rate_limits");
            // Envoy asks nobody about what it answers itself.
            if !get(route, "route").is_some_and(includes) {
                rest = rest.without(&region);
            }
        }
        clusters.dedup();
        if let Some(list) = limits {
            self.notes.differs("unrouted", &self.document.at(list));
            let cluster = clusters.pop().filter(|_| clusters.is_empty());
            self.add(list, &rest, cluster.flatten());
        }
    }

    /// The requests that a route matches, if the policy can say which.
    fn matched(&mut self, node: &Node) -> Option<Scope> {
        let Some(node) = get(node, "match") else {
            return Some(Scope::default());
        };
        let place = self.document.at(node);
        self.note_prefix(node, &place);
        let matched = route(&value(node));
        let unmatched = |why: &String| {
            let why = format!(
                "{why}: the route's own limits are left out, and those of later routes and of the virtual host count its requests too"
            );
            self.notes.missing(&place, &why);
        };
        matched.inspect_err(unmatched).ok()
    }

    /// Notes that a route or a virtual host has settings of the filter.
    fn note_settings(&mut self, node: &Node) {
        if let Some(own) = at(node, &PER_ROUTE) {
            let place = self.document.at(own);
            self.notes
                .missing(&place, "the filter's settings for this route (`disabled`, `vh_rate_limits`, `domain`, limits): its requests count as if there were none");
        }
    }

    /// Notes that a prefix of paths does not end at a segment.
    fn note_prefix(&mut self, node: &Node, at: &str) {
        let is_open = |path: &str| path.starts_with('/') && !path.ends_with('/');
        let has_open = |node: &Node| {
            let mut prefixes = ["prefix", "prefix_match"].iter();
            prefixes.any(|name| get(node, name).and_then(text).is_some_and(is_open))
        };
        if any(node, &has_open) {
            self.notes.differs("prefix", at);
        }
    }

    /// Adds the entries of a list for these requests, which have this upstream.
    fn add(&mut self, list: &Node, scope: &Scope, upstream: Option<&str>) {
        for node in entries(list) {
            let read = self.entry(node, scope, [self.own, upstream]);
            self.notes.missing.extend(read.err());
        }
    }

    fn entry(
        &mut self,
        node: &Node,
        scope: &Scope,
        clusters: [Option<&str>; 2],
    ) -> Result<(), String> {
        let (limit, place) = (
            self.document.read::<RateLimit>(node)?,
            self.document.at(node),
        );
        if limit.hits_addend.is_some() {
            self.notes.differs("hits_addend", &place);
        }
        self.note_prefix(node, &place);
        for by in self
            .filters
            .iter()
            .filter(|filter| filter.stage == limit.stage)
        {
            let actions = limit.actions.iter().flatten();
            let entries = actions.map(|(kind, action)| action.entry(kind, clusters));
            let entries: Result<_, _> = entries.collect();
            self.asked.push(Asked {
                scope: scope.clone(),
                entries: entries.map_err(|why| format!("{place}: {why}"))?,
                by: by.clone(),
            });
        }
        Ok(())
    }
}

/// Whether requests may come to both of these routes, by their paths.
fn overlap(one: &Scope, other: &Scope) -> bool {
    let [one, other] = [one, other].map(|scope| {
        let found = scope.to_match();
        let path = found.as_str().or_else(|| found.get("path")?.as_str());
        let path = path.filter(|path| path.starts_with('/'));
        path.unwrap_or_default().to_owned()
    });
    let begins = |path: &str, prefix: &str| path.starts_with(prefix.trim_end_matches('/'));
    begins(&one, &other) || begins(&other, &one)
}

/// The requests that come to a virtual host, and to no other that names their host better.
fn hosts(host: &Node, all: &[Node]) -> Scope {
    let names = |host| {
        get(host, "domains")
            .map(entries)
            .unwrap_or_default()
            .iter()
            .filter_map(text)
    };
    let own: Vec<_> = names(host).collect();
    let is_better = |name: &&str| {
        let is_wider = |own: &&str| own.strip_prefix('*').is_some_and(|end| name.ends_with(end));
        !own.contains(name) && own.iter().any(is_wider)
    };
    let named = |names: Vec<&str>| {
        let names = names.iter().map(|name| name.split(':').next());
        Scope::of(json!({ "host": names.collect::<Vec<_>>() }))
    };
    let better: Vec<_> = all.iter().flat_map(names).filter(is_better).collect();
    let scope = match own.is_empty() || own.contains(&"*") {
        true => Scope::default(),
        false => named(own.clone()),
    };
    match better.is_empty() {
        true => scope,
        false => scope.without(&named(better)),
    }
}
