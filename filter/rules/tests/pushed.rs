//! Until the rules come from the sidecar, and which set a request's route names.

use std::time::Duration;

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value as Protobuf};
use serde_json::{Value, json};
use sluicegate_rules::{Conclusion, ConfigError, Pushed, WhenUnavailable, config};

use crate::support::{FakeRequest, get};

fn read(more: &Value) -> Result<Pushed, ConfigError> {
    let mut configuration = json!({
        "version": 2,
        "sidecar": { "cluster": "sluicegate" },
        "rule_sets": { "default": "gateway" },
    });
    let fields = configuration.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    fields.retain(|_, value| !value.is_null());
    config::settings(configuration).map(|(_, pushed)| pushed)
}

/// Serialized metadata of a route, as Envoy passes it.
fn metadata(namespace: &str, name: &str, value: Kind) -> Vec<u8> {
    #[derive(Clone, PartialEq, Message)]
    struct Metadata {
        #[prost(btree_map = "string, message", tag = "1")]
        filter_metadata: std::collections::BTreeMap<String, Struct>,
    }
    let field = (name.to_owned(), Protobuf { kind: Some(value) });
    let fields = Struct {
        fields: [field].into(),
    };
    let filter_metadata = [(namespace.to_owned(), fields)].into();
    Metadata { filter_metadata }.encode_to_vec()
}

#[test]
fn without_rule_sets_a_filter_runs_the_set_called_default() {
    let of_default = read(&json!({ "rule_sets": null })).unwrap();
    assert_eq!(of_default.sets, ["default"]);
}

#[test]
fn requests_wait_two_seconds_for_rules_and_are_denied_then_unless_the_configuration_says_otherwise()
{
    let default = read(&json!({})).unwrap();
    assert_eq!(
        (default.hold, default.then),
        (Duration::from_secs(2), WhenUnavailable::Deny)
    );
    let until = read(&json!({ "until_rules": { "hold": "0ms", "then": "allow" } })).unwrap();
    assert_eq!(
        (until.hold, until.then),
        (Duration::ZERO, WhenUnavailable::Allow)
    );
    let longest = read(&json!({ "until_rules": { "hold": "10s" } })).unwrap();
    assert_eq!(
        (longest.hold, longest.then),
        (Duration::from_secs(10), WhenUnavailable::Deny)
    );
}

#[test]
fn without_rules_a_request_is_answered_or_passes_and_both_say_why() {
    let pushed = read(&json!({})).unwrap();
    let (conclusion, counter) = pushed.without_rules(&get("/", &[]));
    let Conclusion::Answer(reply) = conclusion else {
        panic!("{conclusion:?}")
    };
    assert_eq!((reply.status, counter), (503, "no_rules_denied"));
    assert_eq!(&*reply.details, "sluicegate_unavailable{reason=no_rules}");
    let grpc = get("/", &[("content-type", b"application/grpc")]);
    let (Conclusion::Answer(reply), _) = pushed.without_rules(&grpc) else {
        panic!("passed")
    };
    assert_eq!((reply.grpc_status, reply.headers.is_empty()), (14, true));
    let pushed = read(&json!({ "until_rules": { "then": "allow" } })).unwrap();
    let why = "sluicegate_unmetered{reason=no_rules}".to_owned();
    let expected = (Conclusion::Unmetered(why), "no_rules_allowed");
    assert_eq!(pushed.without_rules(&get("/", &[])), expected);
}

#[test]
fn the_routes_name_is_that_of_its_set_if_it_is_listed() {
    let route = |name: &str| get("/", &[]).with("xds.route_name", name.as_bytes());
    let sets = json!({ "rule_sets": { "default": "a", "others": ["b", "c"], "by": "route_name" } });
    let pushed = read(&sets).unwrap();
    assert_eq!(pushed.sets, ["a", "b", "c"]);
    let index = |request: FakeRequest| pushed.set_of(&request);
    assert_eq!(
        ["a", "b", "c", "d", ""].map(|name| index(route(name))),
        [0, 1, 2, 0, 0]
    );
    assert_eq!(index(get("/", &[("xds.route_name", b"b")])), 0, "a header");
    assert_eq!(index(FakeRequest::default()), 0);
    let by_nothing = read(&json!({ "rule_sets": { "default": "a", "others": ["b"] } })).unwrap();
    assert_eq!(by_nothing.set_of(&route("b")), 0);
}

#[test]
fn a_text_in_the_routes_metadata_is_the_name_of_its_set_if_it_is_listed() {
    let by = json!({ "route_metadata": { "namespace": "sluicegate", "name": "rules" } });
    let sets = json!({ "rule_sets": { "default": "a", "others": ["b"], "by": by } });
    let pushed = read(&sets).unwrap();
    let of = |bytes: Vec<u8>| pushed.set_of(&get("/", &[]).with("xds.route_metadata", &bytes));
    let text = |name: &str| Kind::StringValue(name.to_owned());
    assert_eq!(of(metadata("sluicegate", "rules", text("b"))), 1);
    for other in [
        metadata("sluicegate", "rules", text("c")),
        metadata("sluicegate", "other", text("b")),
        metadata("other", "rules", text("b")),
        metadata("sluicegate", "rules", Kind::NumberValue(1.0)),
        vec![0xff; 9],
        Vec::new(),
    ] {
        assert_eq!(of(other), 0);
    }
    // What a client can influence is not read.
    let dynamic = metadata("sluicegate", "rules", text("b"));
    assert_eq!(pushed.set_of(&get("/", &[]).with("metadata", &dynamic)), 0);
}

#[test]
fn a_pepper_from_the_environment_is_that_of_a_file_and_missing_it_is_refused() {
    let digest = |configuration: Value, value: Option<&str>| {
        let (mut settings, _) = config::settings(configuration).unwrap();
        let read = config::read_pepper(&mut settings, |name| {
            assert_eq!(name, "SALT");
            value.map(str::to_owned)
        });
        read.map(|()| settings.hasher.pepper_digest())
    };
    let with = |field: &str, text: &str| json!({ "version": 2, "sidecar": { "cluster": "sluicegate" }, field: text });
    let written = digest(with("pepper", "secret"), None);
    // A Secret that was made of a file ends with a line break.
    for value in ["secret", "secret\n"] {
        assert_eq!(digest(with("pepper_env", "SALT"), Some(value)), written);
    }
    for value in [None, Some(""), Some("\n")] {
        let refused = digest(with("pepper_env", "SALT"), value).unwrap_err();
        assert_eq!(refused.field, "pepper_env");
        assert!(refused.why.contains("no `SALT`"), "{refused}");
    }
    let mut both = with("pepper", "secret");
    both["pepper_env"] = json!("SALT");
    let refused = config::settings(both).unwrap_err();
    assert_eq!(refused.field, "pepper_env");
}
