//! What operators add to what the chart makes: Services, users, access logs, certificates, an EnvoyProxy of their own.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use sluicegate_tests::envoy::{MANAGER, at};
use sluicegate_tests::process::eventually;
use sluicegate_tests::{client, upstream};
use sluicegate_tests_full::chart;
use sluicegate_tests_full::identity::Identities;

use super::pod_ends::Pod;
use super::scenes::{rendered, rendered_with, template};

const OWN: &str = "kubernetes-deployment.yaml";
const MORE: &str = "kubernetes-more.yaml";

/// The `spec` of the chart's Deployment, and its Envoy's container.
fn deployment(manifests: &[Value]) -> (Value, Value) {
    let spec = chart::manifest(manifests, "Deployment", "sluicegate")["spec"].clone();
    let envoy = spec["template"]["spec"]["containers"][0].clone();
    (spec, envoy)
}

fn has(list: &Value, one: &Value) -> bool {
    list.as_array().is_some_and(|list| list.contains(one))
}

#[test]
fn the_deployment_and_its_envoy_take_what_is_added() {
    let (spec, envoy) = deployment(&rendered(MORE));
    assert!(spec.get("replicas").is_none(), "an autoscaler's: {spec}");
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "edge");
    assert_eq!(pod["securityContext"], json!({ "fsGroup": 2000 }));
    assert_eq!(envoy["imagePullPolicy"], "Always");
    let own = json!({ "name": "TZ", "value": "UTC" });
    assert!(has(&envoy["env"], &own), "{envoy}");
    assert!(has(&envoy["args"], &json!("--concurrency")), "{envoy}");
    let (volume, mount) = (
        json!({ "name": "scratch", "emptyDir": {} }),
        json!({ "name": "scratch", "mountPath": "/scratch" }),
    );
    assert!(has(&pod["volumes"], &volume), "{pod}");
    assert!(has(&envoy["volumeMounts"], &mount), "{envoy}");
    let (spec, _) = deployment(&rendered(OWN));
    assert_eq!(spec["replicas"], 2);
}

#[test]
fn the_service_is_what_the_values_say() {
    let of = |file| chart::manifest(&rendered(file), "Service", "sluicegate").clone();
    let more = of(MORE);
    let annotations = &more["metadata"]["annotations"];
    assert_eq!(*annotations, json!({ "example.com/internal": "true" }));
    let spec = &more["spec"];
    assert_eq!(spec["type"], "LoadBalancer");
    assert_eq!(spec["externalTrafficPolicy"], "Local");
    // TLS has another port.
    let port = |name, port| json!([{ "name": name, "port": port, "targetPort": "http" }]);
    assert_eq!(spec["ports"], port("https", 443));
    let plain = &of(OWN)["spec"];
    assert_eq!(plain["type"], "ClusterIP");
    assert_eq!(plain["ports"], port("http", 80));
    assert_eq!(plain["selector"], spec["selector"]);
}

/// OpenShift chooses a user itself and refuses any other.
#[test]
fn the_user_can_be_left_to_the_cluster() {
    let manifests = rendered(MORE);
    let mut seen = 0;
    for (kind, name, pod) in [
        ("Deployment", "sluicegate", "/spec/template/spec"),
        ("Job", "sluicegate-check", "/spec/template/spec"),
        ("Pod", "sluicegate-test", "/spec"),
    ] {
        let pod = chart::manifest(&manifests, kind, name).pointer(pod);
        let lists = ["initContainers", "containers"].map(|list| pod.unwrap()[list].as_array());
        for container in lists.into_iter().flatten().flatten() {
            let context = &container["securityContext"];
            assert!(context.get("runAsUser").is_none(), "{kind}: {context}");
            assert_eq!(context["runAsNonRoot"], true, "{kind}");
            seen += 1;
        }
    }
    assert_eq!(seen, 4);
}

#[test]
fn the_access_log_is_that_of_the_example_or_ones_own_or_none() {
    let log = |file, changes: &[&str]| {
        let manifests = rendered_with(file, changes);
        let mut envoy = chart::file(&manifests, "sluicegate-envoy", "envoy.yaml");
        let log = at(&mut envoy, MANAGER)["access_log"].take();
        log.pointer("/0/name").cloned().unwrap_or(log)
    };
    assert_eq!(log(OWN, &[]), "envoy.access_loggers.stdout");
    assert_eq!(log(MORE, &[]), "envoy.access_loggers.stderr");
    let none = "kubernetes.deployment.accessLog: { enabled: false }";
    assert_eq!(log(OWN, &[none]), Value::Null);
}

/// Kubernetes replaces all files of a Secret at once, by a link to their folder.
#[tokio::test]
async fn the_charts_envoy_answers_tls_and_follows_a_new_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let tls = at.join("tls");
    std::fs::create_dir(&tls).unwrap();
    let renew = |number: &str| {
        let files = tls.join(number);
        std::fs::create_dir(&files).unwrap();
        let identity = Identities::new(&files, "spiffe://a/b", "a", "a");
        for (from, to) in [("server.key", "tls.key"), ("server.pem", "tls.crt")] {
            std::fs::rename(files.join(from), files.join(to)).unwrap();
        }
        symlink(number, tls.join("..new")).unwrap();
        std::fs::rename(tls.join("..new"), tls.join("..data")).unwrap();
        identity
    };
    for name in ["tls.key", "tls.crt"] {
        symlink(format!("..data/{name}"), tls.join(name)).unwrap();
    }
    let first = renew("..1");
    let here = at.to_str().unwrap();
    let text = json!(rendered_with(MORE, &["filter.enabled: false"])).to_string();
    let text = text.replace("/etc/envoy-tls", tls.to_str().unwrap());
    let text = text.replace("/etc/envoy/tls.yaml", &format!("{here}/tls.yaml"));
    let manifests: Vec<Value> = serde_json::from_str(&text).unwrap();
    let secret = chart::file(&manifests, "sluicegate-envoy", "tls.yaml");
    std::fs::write(at.join("tls.yaml"), secret.to_string()).unwrap();

    let pod = Pod::start(&manifests, upstream::start().await).await;
    let request = b"GET /hello HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    let answer = first.exchange(pod.port, false, request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let certificates = format!("http://127.0.0.1:{}/certs", pod.admin_port);
    let (_, before) = client::get(&certificates).await;
    let serial = |text: &str| {
        let list: Value = serde_json::from_str(text).unwrap();
        list["certificates"][0]["cert_chain"][0]["serial_number"].clone()
    };
    assert!(serial(&before).is_string(), "{before}");
    let second = renew("..2");
    let is_new = async || serial(&client::get(&certificates).await.1) != serial(&before);
    eventually("the new certificate", is_new).await;
    let answer = second.exchange(pod.port, false, request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn an_envoy_proxy_keeps_its_own_bootstrap_and_patch_beside_the_charts() {
    let proxy = |file| chart::manifest(&rendered(file), "EnvoyProxy", "sluicegate")["spec"].clone();
    let (own, plain) = (
        proxy("envoy-gateway-more.yaml"),
        proxy("envoy-gateway.yaml"),
    );
    let patches = |spec: &Value| spec["bootstrap"]["jsonPatches"].as_array().unwrap().clone();
    let (mut merged, charts) = (patches(&own), patches(&plain));
    assert_eq!(merged.remove(0)["path"], "/layered_runtime");
    assert_eq!(merged, charts);
    let kubernetes = &own["provider"]["kubernetes"];
    assert!(kubernetes.get("envoyDeployment").is_none(), "{kubernetes}");
    assert_eq!(kubernetes["envoyPDB"]["maxUnavailable"], "25%");
    assert_eq!(own["logging"]["level"]["default"], "warn");

    let set = &kubernetes["envoyDaemonSet"];
    assert_eq!(set["pod"]["labels"]["team"], "edge");
    let theirs = &set["patch"]["value"]["spec"];
    assert_eq!(theirs["minReadySeconds"], 5);
    let charts =
        &plain["provider"]["kubernetes"]["envoyDeployment"]["patch"]["value"]["spec"]["template"];
    let template = &theirs["template"];
    let labels = &template["metadata"]["labels"];
    let release = "sluicegate.github.io/release";
    assert_eq!(
        (&labels["cost"], &labels[release]),
        (&json!("edge"), &charts["metadata"]["labels"][release])
    );
    let (pod, charts) = (&template["spec"], &charts["spec"]);
    assert_eq!(pod["dnsPolicy"], "Default");
    assert_eq!(pod["initContainers"], charts["initContainers"]);
    let mut volumes = pod["volumes"].as_array().unwrap().clone();
    assert_eq!(volumes.remove(0)["name"], "scratch");
    assert_eq!(json!(volumes), charts["volumes"]);
}

/// In each kind, Envoy has it from a Secret and passes it on, and what the chart makes does not contain it.
#[test]
fn the_pepper_comes_from_a_secret() {
    let secret = "filter.pepper: { existingSecret: { name: hidden, key: salt } }";
    let of_secret = json!({ "secretKeyRef": { "name": "hidden", "key": "salt" } });
    let variable = json!({ "name": "SLUICEGATE_PEPPER", "valueFrom": of_secret });
    for (file, envoy, filter, passed_on) in [
        (
            "kubernetes-deployment.yaml",
            "envoy",
            ("ConfigMap", "sluicegate-envoy"),
            "host_env_keys: [SLUICEGATE_PEPPER]",
        ),
        (
            "envoy-gateway.yaml",
            "envoy",
            ("EnvoyExtensionPolicy", "sluicegate"),
            r#""hostKeys":["SLUICEGATE_PEPPER"]"#,
        ),
        (
            "istio.yaml",
            "istio-proxy",
            ("WasmPlugin", "sluicegate"),
            r#""valueFrom":"HOST""#,
        ),
    ] {
        let manifests = rendered_with(file, &[secret]);
        let pod = template(&manifests);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["name"], envoy, "{file}");
        assert!(has(&container["env"], &variable), "{file}: {container}");
        let (kind, name) = filter;
        let filter = chart::manifest(&manifests, kind, name).to_string();
        assert!(filter.contains(passed_on), "{file}: {filter}");
        assert!(filter.contains("pepper_env"), "{file}: {filter}");
    }
}
