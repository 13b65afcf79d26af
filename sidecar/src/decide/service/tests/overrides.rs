//! Whom an override is for, before and after changes of the policy.

use sluicegate_protocol::{Problem, read_remove_override, read_set_override};

use super::*;
use crate::telemetry::subject::Subject;

const HASH: &str = "00112233445566778899aabbccddeeff";

/// A policy of an entry `partner`: two consumers have keys, and these have limits of their own.
fn policy(tiers: &[&str], more: &str) -> String {
    let (mut limits, mut of) = (String::new(), String::new());
    for tier in tiers {
        of += &format!("{tier}: partner.{tier}, ");
    }
    for tier in tiers.iter().chain(&["default"]) {
        limits += &format!(
            "  partner.{tier}: {{ algorithm: sliding_log, windows: [{{ quota: 5, per: 1h }}] }}\n"
        );
    }
    format!(
        "
limits:
{limits}{more}
consumers:
  partner:
    pepper: \"0123456789ab\"
    keys: {{ {HASH}: acme, ffeeddccbbaa99887766554433221100: evil }}
    limits: {{ {of}default: partner.default }}
"
    )
}

fn plain(name: &str) -> String {
    format!("  {name}: {{ algorithm: sliding_log, windows: [{{ quota: 5, per: 1h }}] }}")
}

/// A service whose policy changes.
struct Changing(TempDir, Service);

impl Changing {
    fn new(policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let service = service_of(&folder, &StoreAddress::Memory, policy);
        Self(folder, service)
    }

    /// What is told of the change.
    fn become_(&self, policy: &str) -> String {
        std::fs::write(self.0.path().join("policy.yaml"), policy).unwrap();
        let (kind, told) = self.1.policy.reload(&self.1.metrics).unwrap();
        assert_eq!(kind, EventKind::PolicyLoaded, "{told}");
        told
    }

    async fn set(&self, body: Value) -> Result<Value, Problem> {
        let asked = read_set_override(body.to_string().as_bytes()).unwrap();
        let set = self.1.set_override(asked).await?;
        Ok(serde_json::to_value(set).unwrap())
    }

    async fn remove(&self, body: Value) -> Result<bool, Problem> {
        let asked = read_remove_override(body.to_string().as_bytes()).unwrap();
        Ok(self.1.remove_override(asked).await?.removed)
    }

    async fn outcome(&self, limit: &str, key: &str) -> Value {
        ask(&self.1, json!([{ "limit": limit, "key": key }])).await["outcome"].take()
    }

    /// Limit, key and state of each override.
    async fn list(&self) -> Vec<(String, String, Value)> {
        let list = self.1.list_overrides().await.unwrap();
        let list = list.overrides.into_iter();
        list.map(|one| {
            let state = serde_json::to_value(one.state).unwrap();
            (one.limit, one.key.or(one.subject).unwrap(), state)
        })
        .collect()
    }

    fn metric(&self, allowance: &str) -> String {
        let text = String::from_utf8(self.1.metrics_text().unwrap()).unwrap();
        let series = format!("sluicegate_overrides{{allowance=\"{allowance}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap().to_owned()
    }
}

fn blocked(limit: &str, whom: &str, is: &str) -> Value {
    json!({ "limit": limit, whom: is, "blocked": true })
}

#[tokio::test]
async fn an_override_of_a_consumer_is_in_force_whatever_its_tier_is() {
    let evil = "@consumer=evil";
    for (before, after, named) in [
        (&[][..], &["evil"][..], "partner"),
        (&["evil"], &[], "partner"),
        (&["evil"], &[], "partner.evil"),
        (&["acme"], &["evil"], "partner.default"),
    ] {
        let service = Changing::new(&policy(before, ""));
        service.set(blocked(named, "key", evil)).await.unwrap();
        for tiers in [before, after, before, after] {
            service.become_(&policy(tiers, &plain("other")));
            service.become_(&policy(tiers, ""));
            assert_eq!(service.outcome("partner", evil).await, "denied", "{named}");
            let acme = service.outcome("partner", "@consumer=acme").await;
            assert_eq!(acme, "admitted");
            let listed = ("partner".to_owned(), evil.to_owned(), json!("in_force"));
            assert_eq!(service.list().await, [listed]);
            assert_eq!(service.metric("blocked"), "1");
        }
        let words = json!({ "limit": named, "key": evil });
        assert!(service.remove(words).await.unwrap(), "the same words");
        assert_eq!(service.outcome("partner", evil).await, "admitted");
    }
}

#[tokio::test]
async fn the_policy_files_override_of_a_consumer_follows_it_too() {
    let overridden = "overrides: [{ key: '@consumer=evil', blocked: true }], algorithm";
    let file = |tiers: &[&str]| policy(tiers, "").replacen("algorithm", overridden, 1);
    let service = Changing::new(&file(&["acme"]));
    for tiers in [&["acme"][..], &["acme", "evil"]] {
        service.become_(&(file(tiers) + "\n#"));
        assert_eq!(service.outcome("partner", "@consumer=evil").await, "denied");
        assert_eq!(service.list().await[0].2, json!("in_force"));
    }
    // Its tier and the override are gone.
    service.become_(&policy(&[], ""));
    let evil = service.outcome("partner", "@consumer=evil").await;
    assert_eq!(evil, "admitted");
}

#[tokio::test]
async fn what_the_policy_has_no_more_is_told_at_once_and_acts_while_filters_ask_for_it() {
    let service = Changing::new(&policy(&["acme"], &plain("rate")));
    let address = "@address=192.0.2.7";
    service.set(blocked("rate", "key", address)).await.unwrap();
    let told = service.become_(&policy(&["acme"], &plain("tiers")));
    assert!(
        told.contains("do not fit") && told.contains("`rate`"),
        "{told}"
    );
    assert_eq!(service.list().await[0].2, json!("unfit"));
    assert_eq!(
        (service.metric("blocked"), service.metric("unfit")),
        ("0".into(), "1".into())
    );
    assert_eq!(service.outcome("rate", address).await, "denied");
    let told = service.become_(&policy(&["acme"], &plain("more")));
    assert!(!told.contains("do not fit"), "once: {told}");
    service.become_(&policy(&["acme"], &plain("rate")));
    assert_eq!(service.list().await[0].2, json!("in_force"));
    // A consumer can be lost too, and an entry of consumers.
    service
        .set(blocked("partner", "key", "@consumer=acme"))
        .await
        .unwrap();
    let without = policy(&[], &plain("rate")).replace(": acme", ": other");
    assert!(service.become_(&without).contains("`partner`"));
    assert_eq!(service.list().await[0].2, json!("unfit"));
    assert_eq!(service.outcome("partner", "@consumer=acme").await, "denied");
    let renamed = policy(&["acme"], &plain("rate")).replace("  partner:", "  vip:");
    service.become_(&renamed);
    assert_eq!(service.list().await[0].2, json!("unfit"));
    assert_eq!(service.outcome("partner", "@consumer=acme").await, "denied");
}

#[tokio::test]
async fn a_name_that_nobody_has_is_refused_unless_it_is_forced() {
    let service = Changing::new(&policy(&["acme"], &plain("rate")));
    let table = "
        partner | key | x-api-key#00000000000000000000000000000000 | malformed_entry | no consumer with this key
        partner | key | x-api-key#0011223344556677 | malformed_entry | no consumer with this key
        partner | key | @consumer=evli | malformed_entry | did you mean `evil`
        partner.acme | key | @consumer=nobody | malformed_entry | has no consumer `nobody`
        partner.acme | key | @consumer=evil | malformed_entry | `partner.default`: name `partner`
        partner.gold | key | @consumer=evil | unknown_limit | no limit `partner.gold`
        rate | key | @consumer=evil | malformed_entry | has no consumer
        partner | subject | 0123456789abcdef0123 | malformed_entry | --limit partner --consumer NAME
        partner.default | subject | 0123456789abcdef0123 | malformed_entry | --limit partner --consumer NAME
    ";
    for line in table.trim().lines() {
        let row: Vec<_> = line.trim().split(" | ").collect();
        let [limit, whom, is, code, told] = row[..] else {
            panic!("{line}")
        };
        let mut body = blocked(limit, whom, is);
        let refused = service.set(body.clone()).await.unwrap_err();
        assert_eq!(json!(refused.code), code, "{refused}");
        assert!(refused.message.contains(told), "{refused}");
        assert!(service.list().await.is_empty());
        body["force"] = json!(true);
        assert!(service.set(body).await.is_ok(), "{limit} {is}");
        assert!(
            service
                .remove(json!({ "limit": limit, whom: is }))
                .await
                .unwrap()
        );
    }
    let set = service
        .set(blocked("rate", "key", "@address=192.0.2.7"))
        .await;
    assert!(set.is_ok(), "other programs make such keys");
}

#[tokio::test]
async fn digits_of_a_consumer_are_the_consumer_wherever_they_were_shown() {
    let service = Changing::new(&policy(&["acme"], ""));
    let sent = format!("x-api-key#{HASH};@missing/x-api-key=192.0.2.7");
    let stranger = format!("x-api-key#{};@missing/x-api-key=192.0.2.8", "0".repeat(32));
    for key in [&sent, &stranger] {
        for _ in 0..6 {
            service.outcome("partner", key).await;
        }
    }
    let digits = |key: &str| Subject::of(key).to_string();
    let hash = format!("x-api-key#{HASH}");
    // Of Envoy's access log, and of `sluicegate top`; and the part of the filter's key that is the consumer's.
    for (limit, whom, is) in [
        ("partner", "subject", digits(&sent)),
        ("partner.acme", "subject", digits("@consumer=acme")),
        ("partner.default", "subject", digits("@consumer=acme")),
        ("partner", "key", hash.clone()),
        ("partner.default", "key", hash),
    ] {
        let mut body = json!({ "limit": limit, whom: is, "quota": 20 });
        let set = service.set(body.clone()).await.unwrap();
        assert_eq!(set["override"]["key"], "@consumer=acme");
        assert_eq!(set["override"]["limit"], "partner");
        assert_eq!(service.outcome("partner", &sent).await, "admitted");
        body.as_object_mut().unwrap().remove("quota");
        assert!(service.remove(body).await.unwrap(), "the same words");
    }
    let body = json!({ "limit": "partner", "subject": digits(&stranger), "quota": 9 });
    let set = service.set(body).await.unwrap();
    let of_address = digits("@missing/x-api-key=192.0.2.8");
    assert_eq!(set["override"]["subject"], of_address);
    assert_eq!(service.outcome("partner", &stranger).await, "admitted");
    let unknown = json!({ "limit": "partner", "subject": "0123456789abcdef0123" });
    assert!(
        service.remove(unknown).await.is_err(),
        "it may be anybody's"
    );
    // Whom `top` names.
    let top = service.1.metrics.top();
    let acme = top
        .limits
        .iter()
        .find(|one| one.limit == "partner.acme")
        .unwrap();
    let named = |consumer: &Option<String>| consumer.as_deref() == Some("acme");
    assert!(named(&acme.most_denied[0].consumer) && named(&acme.nearest[0].consumer));
}
