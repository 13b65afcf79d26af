//! What rules contain, each with its path, for whoever reports what is wrong with it.

use super::schema::{Check, KeyComponent, Limit, Rule};

/// Each check of each rule, with the check's path.
pub fn checks(rules: &[Rule]) -> impl Iterator<Item = (String, &Rule, &Check)> {
    rules.iter().enumerate().flat_map(|(r, rule)| {
        let checks = rule.checks.iter().enumerate();
        checks.map(move |(c, check)| (format!("rules[{r}].checks[{c}]"), rule, check))
    })
}

/// Every component of a key and of a choice of limit, with its path.
pub fn components(rules: &[Rule]) -> impl Iterator<Item = (String, &KeyComponent)> {
    checks(rules).flat_map(|(at, _, check)| {
        let key = check.key.iter().enumerate();
        let mut components: Vec<_> = key
            .map(|(index, component)| (format!("{at}.key[{index}]"), component))
            .collect();
        if let Limit::Tiers(tiers) = &check.limit {
            components.push((format!("{at}.limit.by"), &tiers.by));
        }
        components
    })
}

/// Every limit that a check at this path names, with its field.
pub fn limit_names<'a>(at: &str, check: &'a Check) -> Vec<(String, &'a str)> {
    match &check.limit {
        Limit::Name(name) => vec![(format!("{at}.limit"), name)],
        Limit::Tiers(tiers) => {
            let tiers = tiers.map.iter();
            tiers
                .map(|(tier, name)| (format!("{at}.limit.map.{tier}"), name.as_str()))
                .collect()
        }
    }
}

/// Whether it is a value that only some requests have.
pub const fn is_optional(component: &KeyComponent) -> bool {
    component.header.is_some()
        || component.cookie.is_some()
        || component.query.is_some()
        || component.jwt.is_some()
        || component.metadata.is_some()
        || component.attribute.is_some()
}

/// Whether a request can lack it. What Envoy always knows and what the rule's own path contains cannot be missing.
pub fn can_be_absent(component: &KeyComponent) -> bool {
    let address = component.address.as_ref();
    is_optional(component)
        || component.mtls.is_some()
        || address.is_some_and(|address| address.trusted_hops.is_some())
}
