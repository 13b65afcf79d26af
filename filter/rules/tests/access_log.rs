//! Response code details for requests that were refused or let through unmetered: rule, limit, reason.

use crate::support::answered::{answer, answered, reply, rule, verdict};
use crate::support::{counted, get, question, rules};
use sluicegate_rules::{Conclusion, DETAILS_PREFIX, Evaluation, VerdictError, callout_outcome};

#[test]
fn a_denial_names_rule_and_limit_for_the_access_log() {
    let all = rules(
        r#"{"name":"first","checks":[{"limit":"a","key":[{"constant":"c"}]}],"when_unavailable":"allow"},
        {"name":"second","checks":[{"limit":"a","key":[{"constant":"c"}]},{"limit":"b.c","key":[{"constant":"c"}]}],
         "when_unavailable":"allow"}"#,
    );
    let question = question(&all, &get("/", &[]));
    for (check, details) in [
        (0, "sluicegate_denied{rule=first,limit=a}"),
        (1, "sluicegate_denied{rule=second,limit=a}"),
        (2, "sluicegate_denied{rule=second,limit=b.c}"),
    ] {
        let decided = format!(r#""check":{check}"#);
        let body = answer(&[verdict("denied").replace(r#""check":0"#, &decided)]);
        let reply = reply(answered(&question, &body).0);
        assert_eq!(&*reply.details, details);
        assert!(reply.details.starts_with(DETAILS_PREFIX));
    }
}

#[test]
fn other_refusals_name_rule_and_limit_where_known_and_nothing_from_the_answer() {
    let check = |limit: &str| format!(r#"{{"limit":"{limit}","key":[{{"constant":"c"}}]}}"#);
    let rule = |name: &str, checks: &[String], unavailable: &str| {
        format!(
            r#"{{"name":"{name}","checks":[{}],"when_unavailable":"{unavailable}"}}"#,
            checks.join(",")
        )
    };
    let over =
        r#"{"outcome":"error","code":"cost_over_limit","message":"`checks[0].cost` of l\n x"}"#;
    for (configured, details) in [
        (rule("r", &[check("l")], "allow"), "{rule=r,limit=l}"),
        (
            rule("r", &[check("l"), check("l")], "allow"),
            "{rule=r,limit=l}",
        ),
        (rule("r", &[check("l"), check("m")], "allow"), "{rule=r}"),
        (
            ["r", "s"]
                .map(|name| rule(name, &[check("l")], "allow"))
                .join(","),
            "",
        ),
    ] {
        let rules = rules(&configured);
        let question = question(&rules, &get("/", &[]));
        let reply = reply(answered(&question, &answer(&[over.to_owned()])).0);
        let details = format!("sluicegate_cost_over_limit{details}");
        assert_eq!(*reply.details, details);
    }
    // Of several rules without a verdict, the first one with `when_unavailable: deny`.
    let both = [("open", "allow"), ("closed", "deny")];
    let rules = rules(
        &both
            .map(|(name, then)| rule(name, &[check("l")], then))
            .join(","),
    );
    let question = question(&rules, &get("/", &[]));
    for (why, reason) in [
        (VerdictError::Timeout, "timeout"),
        (VerdictError::Unreachable, "unreachable"),
        (VerdictError::Status("<b> 418".to_owned()), "status"),
        (
            VerdictError::UnknownCluster("nowhere".to_owned()),
            "unknown_cluster",
        ),
        (VerdictError::Full, "full"),
        (VerdictError::Refused("a key".to_owned()), "decision"),
    ] {
        let (conclusion, _) = question.conclude(Err(why), &|| 1_795_758_000);
        let details = format!("sluicegate_unavailable{{rule=closed,reason={reason}}}");
        assert_eq!(*reply(conclusion).details, details);
    }
}

/// Who changes what `rule` names must see another answer, so a decision of the policy names none.
#[test]
fn a_rule_is_named_only_if_its_own_when_unavailable_decided() {
    for (of_rule, of_policy, names) in [
        ("deny", "", "rule=r,"),
        ("deny", r#","then":"deny""#, ""),
        ("allow", "", "rule=r,"),
        ("allow", r#","then":"allow""#, ""),
    ] {
        let rules = rule(&format!(r#","when_unavailable":"{of_rule}""#));
        let question = question(&rules, &get("/", &[]));
        let body = answer(&[format!(r#"{{"outcome":"unavailable"{of_policy}}}"#)]);
        let (what, given) = match answered(&question, &body).0 {
            Conclusion::Answer(reply) => ("unavailable", reply.details.to_string()),
            Conclusion::Unmetered(details) => ("unmetered", details),
            other @ Conclusion::Continue(..) => panic!("{other:?}"),
        };
        assert_eq!(given, format!("sluicegate_{what}{{{names}reason=store}}"));
        assert_eq!(what == "unavailable", of_rule == "deny");
    }
}

#[test]
fn a_missing_or_ambiguous_component_is_refused_with_rule_and_limit_in_the_details() {
    let rules = rules(
        r#"{"name":"r","checks":[{"limit":"l","key":[{"header":"x-key"}],"when_missing":"deny"}],"when_unavailable":"allow"}"#,
    );
    let twice: &[(&str, &[u8])] = &[("x-key", b"secret"), ("x-key", b"other")];
    for (headers, details) in [
        (&[][..], "sluicegate_missing_part{rule=r,limit=l}"),
        (twice, "sluicegate_ambiguous_part{rule=r,limit=l}"),
    ] {
        match rules.evaluate(&get("/", headers)) {
            Evaluation::Refuse(reply) => assert_eq!(&*reply.details, details),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn envoys_own_callout_errors_are_distinguished_from_the_sidecars_answers() {
    let status = |text: &str| VerdictError::Status(text.to_owned());
    let unreachable = "Envoy cannot reach the sidecar: no healthy endpoint or connection refused";
    assert_eq!(callout_outcome(Some(b"200")), Ok(()));
    for (given, why, counter, message) in [
        (None, VerdictError::Timeout, "error_no_answer", "in time"),
        (
            Some("504"),
            VerdictError::Timeout,
            "error_no_answer",
            "in time",
        ),
        (
            Some("503"),
            VerdictError::Unreachable,
            "error_unreachable",
            unreachable,
        ),
        (Some("413"), status("413"), "error_status", "413"),
        (Some(""), status(""), "error_status", "status"),
    ] {
        assert_eq!(callout_outcome(given.map(str::as_bytes)), Err(why.clone()));
        assert!(why.to_string().contains(message), "{why}");
        let rules = rule(r#","when_unavailable":"allow""#);
        let question = question(&rules, &get("/", &[]));
        question.conclude(Err(why), &|| 1_795_758_000);
        let counted = counted(&rules);
        assert!(counted.iter().any(|one| one == counter), "{given:?}");
    }
}
