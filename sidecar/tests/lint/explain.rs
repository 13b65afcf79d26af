//! `sluicegate explain` on an Envoy file.

use crate::{GOOD, envoy, run};

#[test]
fn explain_lists_the_checks_of_a_request() {
    let (output, printed) = run(
        &[
            "explain",
            "--request",
            "GET /x/../search?q=x",
            "-H",
            "X-Api-Key: k",
            "--peer",
            "198.51.100.7",
        ],
        true,
        &envoy(&GOOD.replace(
            "{ header: x-api-key }",
            "{ header: x-api-key, plain: true }",
        )),
    );
    assert_eq!(output.status.code(), Some(0), "{printed}");
    for line in [
        "rule `search` matches",
        "rule `all` matches",
        "rule `search`: limit `per-key`, key `x-api-key=k`, cost 5, subject 752629eec0a1",
        "rule `search`: limit `everyone`, key `@constant=everyone`, cost 1",
        "rule `all`: limit `per-key`, key `@address=198.51.100.7`, cost 1",
        "10 per 1s",
        "100 per 1m",
    ] {
        assert!(printed.contains(line), "no {line:?} in\n{printed}");
    }
    let (_, printed) = run(&["explain", "--request", "GET /other"], false, &envoy(GOOD));
    assert!(
        printed.contains("rule `search` does not match"),
        "{printed}"
    );
}

#[test]
fn explain_accepts_claims_and_attributes() {
    let file = GOOD.replace(
        "{ header: x-api-key }",
        "{ jwt: { payload: jwt, claim: sub }, plain: true }, { mtls: spiffe }",
    );
    let (_, printed) = run(
        &[
            "explain",
            "--request",
            "GET /search",
            "--claims",
            r#"jwt={"sub":"alice"}"#,
            "--attribute",
            "connection.uri_san_peer_certificate=spiffe://a/b",
        ],
        false,
        &envoy(&file),
    );
    assert!(
        printed.contains("key `@jwt/jwt/sub=alice;@mtls/spiffe=spiffe://a/b`"),
        "{printed}"
    );
}
