//! Envoy's files: the ratelimit filters, and `rate_limits` of virtual hosts, routes and an EnvoyFilter's patches.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::actions::{Entry, RateLimit, route};
use super::descriptors::Domain;
use super::hosts::hosts;
use super::per_route::{PER_ROUTE, Settings, cost};
use super::scope::Scope;
use super::{Document, Notes};
use crate::lint::{any, is_called};
use crate::yaml::{Node, at, children, entries, fields, get, is_true, text, value};

/// A ratelimit filter.
#[derive(Default, Deserialize)]
pub struct Filter {
    #[serde(skip)]
    pub name: String,
    /// Only routes that have settings of it ask.
    #[serde(skip)]
    pub disabled: bool,
    pub domain: String,
    #[serde(default)]
    stage: u32,
    #[serde(default)]
    failure_mode_deny: bool,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Fields of a filter that have no part in what it limits.
const OF_FILTER: &str =
    "@type timeout rate_limited_as_resource_exhausted rate_limit_service stat_prefix";
const USUAL_NAME: &str = "envoy.filters.http.ratelimit";

/// A descriptor that ratelimit is asked about for these requests.
pub struct Asked {
    pub scope: Scope,
    pub entries: Vec<Entry>,
    /// What each takes; null: 1.
    pub cost: Value,
    pub domain: String,
    /// A request without a verdict is refused.
    pub denies: bool,
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
                name: USUAL_NAME.to_owned(),
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
    let mut all = documents.iter();
    let managed = all.any(|document| any(&document.node, &has_filter));
    let mut asked = Vec::new();
    for filter in &filters {
        for document in documents {
            let mut reader = Reader {
                document,
                filter,
                own,
                managed,
                asked: &mut asked,
                notes,
            };
            reader.search(&document.node);
        }
    }
    asked
}

fn filters_in(document: &Document, node: &Node, found: &mut Vec<Filter>, notes: &mut Notes) {
    let given = get(node, "typed_config").filter(|_| is_called(node, "http.ratelimit"));
    let name = get(node, "name").and_then(text).unwrap_or(USUAL_NAME);
    let disabled = is_true(node, "disabled");
    let Some(node) = given else {
        return children(node).for_each(|inner| filters_in(document, inner, found, notes));
    };
    match document.read::<Filter>(node) {
        Err(why) => notes.left_out(why),
        Ok(mut filter) => {
            let others = filter.others.keys().map(String::as_str);
            for field in others.filter(|name| !OF_FILTER.contains(name)) {
                let place = document.field(node, field);
                notes.missing(&place, &format!("the filter's `{field}`"));
            }
            (filter.name, filter.disabled) = (name.to_owned(), disabled);
            found.push(filter);
        }
    }
}

/// Whether it is a connection manager with a ratelimit filter.
fn has_filter(node: &Node) -> bool {
    let filters = get(node, "http_filters");
    filters.is_some_and(|filters| any(filters, &|one| is_called(one, "http.ratelimit")))
}

struct Reader<'a> {
    document: &'a Document,
    filter: &'a Filter,
    /// Envoy's own cluster.
    own: Option<&'a str>,
    /// A connection manager in these files has the filter.
    managed: bool,
    asked: &'a mut Vec<Asked>,
    notes: &'a mut Notes,
}

impl Reader<'_> {
    fn search(&mut self, node: &Node) {
        // A connection manager without the filter asks nobody, unless a patch inserts it, which these files would not show.
        if self.managed && get(node, "http_filters").is_some() && !has_filter(node) {
            return;
        }
        let hosts = get(node, "virtual_hosts").map(entries).unwrap_or_default();
        hosts
            .iter()
            .for_each(|host| self.virtual_host(host, hosts, node));
        let settings = Settings::of(self.filter, &[node]);
        let list = settings.limits.or(get(node, "rate_limits"));
        if let (Some(list), true) = (list, hosts.is_empty()) {
            self.notes.differs("patch", &self.document.at(list));
            self.add(list, &Scope::default(), None, &settings);
        } else if hosts.is_empty() {
            self.note_settings(node);
        }
        let others = ["virtual_hosts", PER_ROUTE];
        let inner = fields(node).iter();
        let inner = inner.filter(|(name, _)| !others.contains(&name.value.as_str()));
        for inner in inner.map(|(_, inner)| inner).chain(entries(node)) {
            // Other filters have `rate_limits` too.
            if !is_called(inner, "ratelimit") {
                self.search(inner);
            }
        }
    }

    fn virtual_host(&mut self, host: &Node, all: &[Node], config: &Node) {
        let routes = get(host, "routes").map(entries).unwrap_or_default();
        let is_some = |list: &&Node| !entries(list).is_empty();
        let own = |route| at(route, &["route", "rate_limits"]).filter(is_some);
        let filter = self.filter;
        let settings = |route| Settings::of(filter, &[route, host, config]);
        let (limits, of_host) = (get(host, "rate_limits"), settings(host));
        let mut lists = routes
            .iter()
            .map(|route| own(route).or(settings(route).limits));
        if limits.or(of_host.limits).is_none() && !lists.any(|list| list.is_some()) {
            return;
        }
        let scope = hosts(host, all);
        if scope != Scope::default() {
            let place = self.document.field(host, "domains");
            self.notes.differs("ports", &place);
        }
        let (mut rest, mut earlier, mut clusters) = (scope.clone(), Vec::new(), Vec::new());
        for route in routes {
            let cluster = at(route, &["route", "cluster"]).and_then(text);
            clusters.push(cluster);
            let weighted = at(route, &["route", "weighted_clusters", "clusters"]);
            let weighted = weighted.map(entries).into_iter().flatten();
            weighted.for_each(|one| self.note_settings(one));
            let Some(matched) = self.matched(route) else {
                continue;
            };
            let region = earlier.iter().filter(|other| overlap(&matched, other));
            let region = region.fold(matched.clone(), Scope::without);
            earlier.push(matched);
            let (settings, own) = (settings(route), own(route));
            // Envoy asks nobody about what it answers itself.
            let action = get(route, "route").filter(|_| settings.asks);
            let list = settings.limits.or(own).filter(|_| action.is_some());
            if let Some(list) = list {
                self.add(list, &scope.and(&region), cluster, &settings);
            }
            let includes = |action| {
                settings.includes(is_true(action, "include_vh_rate_limits"), own.is_some())
            };
            if action.is_some_and(includes) {
                if settings.domain == of_host.domain && of_host.asks {
                    continue;
                }
                let list = limits.into_iter();
                list.for_each(|list| self.add(list, &scope.and(&region), cluster, &settings));
            }
            rest = rest.without(&region);
        }
        clusters.dedup();
        let list = of_host.limits.filter(|_| routes.is_empty()).or(limits);
        if let Some(list) = list {
            self.notes.differs("unrouted", &self.document.at(list));
            let cluster = clusters.pop().filter(|_| clusters.is_empty());
            self.add(list, &rest, cluster.flatten(), &of_host);
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

    /// Notes settings of the filter that are not imported.
    fn note_settings(&mut self, node: &Node) {
        if let Some(own) = self.filter.settings(node) {
            let place = self.document.at(own);
            self.notes
                .missing(&place, "the filter's settings for a single cluster, or in a patch: requests count as if there were none");
        }
    }

    /// Notes a prefix of paths: Envoy's ends anywhere, and ours at a segment.
    fn note_prefix(&mut self, node: &Node, at: &str) {
        let is_path = |path: &str| path.starts_with('/') && path != "/";
        let has_prefix = |node: &Node| {
            let mut prefixes = ["prefix", "prefix_match"].iter();
            prefixes.any(|name| get(node, name).and_then(text).is_some_and(is_path))
        };
        if any(node, &has_prefix) {
            self.notes.differs("prefix", at);
        }
    }

    /// Adds the entries of a list for these requests, which have this upstream and these settings.
    fn add(&mut self, list: &Node, scope: &Scope, upstream: Option<&str>, settings: &Settings<'_>) {
        for (before, node) in entries(list).iter().enumerate().filter(|_| settings.asks) {
            let mut earlier = entries(list).iter().take(before);
            if earlier.any(|other| value(other) == value(node)) {
                self.notes.differs("twice", &self.document.at(node));
            }
            match self.asked(node, scope, upstream, settings) {
                Err(why) => self.notes.left_out(why),
                Ok(asked) => self.asked.extend(asked),
            }
        }
    }

    /// What an entry asks, if it is for this filter.
    fn asked(
        &mut self,
        node: &Node,
        scope: &Scope,
        upstream: Option<&str>,
        settings: &Settings<'_>,
    ) -> Result<Option<Asked>, String> {
        let limit: RateLimit = self.document.read(node)?;
        // Settings have no stages.
        if limit.stage != self.filter.stage && settings.limits.is_none() {
            return Ok(None);
        }
        let place = self.document.at(node);
        let (mut costs, mut counted) = (Value::Null, Scope::default());
        for (field, given) in &limit.others {
            match field.as_str() {
                "hits_addend" if settings.limits.is_some() => {
                    let why = || format!("{place}: this `hits_addend` has no counterpart");
                    (costs, counted) = cost(given).ok_or_else(why)?;
                }
                "hits_addend" | "disable_key" | "limit" => self.notes.differs(field, &place),
                "apply_on_stream_done" if given == false => {}
                _ => return Err(format!("{place}: `{field}` has no counterpart")),
            }
        }
        self.note_prefix(node, &place);
        let actions = limit.actions.iter().flatten();
        let entries = actions.map(|(kind, action)| action.entry(kind, [self.own, upstream]));
        let entries: Result<_, _> = entries.collect();
        Ok(Some(Asked {
            scope: scope.and(&counted),
            entries: entries.map_err(|why: String| format!("{place}: {why}"))?,
            cost: costs,
            domain: settings.domain.to_owned(),
            denies: self.filter.failure_mode_deny,
        }))
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
