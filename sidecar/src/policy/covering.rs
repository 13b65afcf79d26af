//! Which matches contain others, and which have no request in common. Pure, and says only what is certain: `false` may be
//! either.

use sluicegate_rules::config::schema::Match;

/// The conditions on a path, as segments: text, `*` for any one, and at the end `**` for any that begin as it does.
fn paths(one: &Match) -> impl Iterator<Item = String> {
    let prefix = one.path_prefix.as_ref().map(|prefix| format!("{prefix}**"));
    let template = one.path_template.as_deref().map(|template| {
        let segments = template.split('/');
        let segments = segments.map(|segment| {
            if segment.starts_with('{') {
                "*"
            } else {
                segment
            }
        });
        segments.collect::<Vec<_>>().join("/")
    });
    [one.path.clone(), prefix, template].into_iter().flatten()
}

fn segments(path: &str) -> Vec<&str> {
    path.trim_end_matches('/').split('/').skip(1).collect()
}

fn path_covers(outer: &[&str], inner: &[&str]) -> bool {
    match (outer, inner) {
        (["**"], _) => true,
        ([end], [first, ..]) if end.ends_with("**") => first.starts_with(end.trim_end_matches('*')),
        (["*", ..], ["**"]) => false,
        (["*", outer @ ..], [end]) if end.ends_with("**") => path_covers(outer, &["**"]),
        ([one, outer @ ..], [other, inner @ ..]) => {
            (one == other || *one == "*") && path_covers(outer, inner)
        }
        (outer, inner) => outer.is_empty() && inner.is_empty(),
    }
}

fn paths_overlap(one: &[&str], other: &[&str]) -> bool {
    match (one, other) {
        (["**"], _) | (_, ["**"]) => true,
        ([end], [first, ..]) | ([first, ..], [end]) if end.ends_with("**") => {
            let (begin, known) = (end.trim_end_matches('*'), first.trim_end_matches('*'));
            first.starts_with(begin) || (known != *first && begin.starts_with(known))
        }
        ([a, one @ ..], [b, other @ ..]) => {
            (a == b || [*a, *b].contains(&"*")) && paths_overlap(one, other)
        }
        (one, other) => one.is_empty() && other.is_empty(),
    }
}

/// Whether a method or host includes another: `GET` includes HEAD, `*.example.com` all of its subdomains.
fn includes(wide: &str, one: &str) -> bool {
    let domain = wide.strip_prefix('*');
    wide == one || (wide, one) == ("GET", "HEAD") || domain.is_some_and(|of| one.ends_with(of))
}

/// Whether every request that meets `inner` meets `outer`, in each reading of its path.
pub fn covers(outer: &Match, inner: &Match) -> bool {
    let is_within = |own: &[String], wide: &[String]| {
        let is_known = |one: &String| wide.iter().any(|wide| includes(wide, one));
        wide.is_empty() || (!own.is_empty() && own.iter().all(is_known))
    };
    let has_path =
        |path: String| paths(inner).any(|own| path_covers(&segments(&path), &segments(&own)));
    let here = paths(outer).all(has_path)
        && (outer.path_regex.is_none() || outer.path_regex == inner.path_regex)
        && is_within(&inner.methods, &outer.methods)
        && is_within(&inner.hosts, &outer.hosts)
        && outer.headers.iter().all(|one| inner.headers.contains(one))
        && outer.query.iter().all(|one| inner.query.contains(one))
        && outer
            .metadata
            .iter()
            .all(|one| inner.metadata.contains(one))
        && outer.all.iter().all(|one| covers(one, inner))
        && (outer.any.is_empty() || outer.any.iter().any(|one| covers(one, inner)))
        && outer.not.iter().all(|not| excludes(not, inner));
    here || outer == inner
        || inner.all.iter().any(|one| covers(outer, one))
        || (!inner.any.is_empty() && inner.any.iter().all(|one| covers(outer, one)))
}

/// Whether no request meets both in one reading of its path; of a match and itself: whether nothing meets it.
pub fn excludes(one: &Match, other: &Match) -> bool {
    let differ = |own: &[String], others: &[String]| {
        let is_both = |a: &String| others.iter().any(|b| includes(a, b) || includes(b, a));
        !own.is_empty() && !others.is_empty() && !own.iter().any(is_both)
    };
    let part = |one: &Match, other: &Match| {
        one.all.iter().any(|each| excludes(each, other))
            || (!one.any.is_empty() && one.any.iter().all(|each| excludes(each, other)))
            || one.not.iter().any(|not| covers(not, other))
    };
    paths(one).any(|a| paths(other).any(|b| !paths_overlap(&segments(&a), &segments(&b))))
        || differ(&one.methods, &other.methods)
        || differ(&one.hosts, &other.hosts)
        || part(one, other)
        || part(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_table::rows;

    fn read(text: &str) -> Match {
        serde_saphyr::from_str(&format!("{{ {text} }}")).unwrap()
    }

    /// Whether the first of two matches contains the second, and whether they have no request in common.
    #[test]
    fn what_is_certain_about_two_matches() {
        let table = r"
            path: /a | path: /a/ | covers
            path: /a | path: /a/b | excludes
            path_prefix: /a/ | path: /a | covers
            path_prefix: /a | path: /ab | covers
            path_prefix: /a/b | path: /a | excludes
            path_prefix: /a/b | path_prefix: /a/bc/ | covers
            path_prefix: /a/bc | path_prefix: /a/b | neither
            path_prefix: /a/ | path_template: '/a/{x}/y' | covers
            path_prefix: / | path_regex: /a | neither
            path_template: '/{x}' | path_prefix: /a | neither
            path_template: '/{x}/**' | path_prefix: /a | covers
            path_template: '/{x}/**' | path_prefix: / | neither
            path_template: '/{x}/b' | path_template: '/a/{y}' | neither
            path_template: '/{x}/b' | path_template: '/a/b' | covers
            path_template: '/{x}/b' | path_template: '/a/c/**' | excludes
            path_template: '/**' | path: / | covers
            path_regex: /a | path_regex: /a | covers
            methods: [GET] | methods: [HEAD] | covers
            methods: [HEAD] | methods: [GET] | neither
            methods: [GET] | methods: [POST, PUT] | excludes
            methods: [GET] | path: /a | neither
            path: /a | methods: [GET], path: /a | covers
            hosts: ['*.a.b'] | hosts: [x.a.b, '*.y.a.b'] | covers
            hosts: ['*.a.b'] | hosts: [a.b] | excludes
            headers: [{ name: h, equals: x }] | headers: [{ name: g, equals: x }, { name: h, equals: x }] | covers
            headers: [{ name: h, equals: y }] | headers: [{ name: h, equals: x }] | neither
            query: [{ name: h, present: true }] | headers: [{ name: h, equals: x }] | neither
            any: [{ path: /a }, { path: /b }] | path: /b | covers
            path_prefix: /v/ | any: [{ path: /v/a }, { path: /v/b }] | covers
            path_prefix: /v/ | any: [{ path: /a }, { path: /b }] | excludes
            path_prefix: /v/ | any: [{ path: /a }, { path: /v/b }] | neither
            not: { path: /a } | path: /b | covers
            not: { path: /a } | path: /a | excludes
            not: { path: /a } | path_prefix: /a | neither
            not: { path: /a } | not: { path_prefix: /a } | covers
            all: [{ path_prefix: /a/ }, { methods: [GET] }] | path: /a/b, methods: [GET] | covers
        ";
        for [one, other, expected] in rows(table) {
            let (one, other) = (read(&one), read(&other));
            let found = (covers(&one, &other), excludes(&one, &other));
            let is = (expected == "covers", expected == "excludes");
            assert_eq!(found, is, "{one:?} {other:?}");
            assert_eq!(excludes(&other, &one), is.1, "{one:?} {other:?}");
            assert!(covers(&Match::default(), &one) && covers(&one, &one));
        }
    }
}
