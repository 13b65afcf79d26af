//! `render --for istio` and `--for envoy-gateway`: what the chart makes, for those without Helm.

/// Written by `make chart`, for a namespace of this name.
const ISTIO: &str = include_str!("../../../../deploy/rendered/istio.yaml");
const ENVOY_GATEWAY: &str = include_str!("../../../../deploy/rendered/envoy-gateway.yaml");
const NAMESPACE: &str = "NAMESPACE";
/// Between these is the policy, indented by four.
const POLICY: [&str; 2] = ["  policy.yaml: |\n", "---\n"];

/// The manifests for this proxy and namespace, with this policy.
pub fn manifests(proxy: &str, namespace: &str, policy: &str) -> String {
    let text = match proxy {
        "istio" => ISTIO,
        _ => ENVOY_GATEWAY,
    };
    let text = text.replace(NAMESPACE, namespace);
    let [start, end] = POLICY;
    let (before, rest) = text.split_once(start).unwrap_or((&text, ""));
    let (_, after) = rest.split_once(end).unwrap_or_default();
    // A blank line with more spaces than the first would be no YAML.
    let lines = policy.lines().map(|line| match line.trim() {
        "" => "\n".to_owned(),
        _ => format!("    {line}\n"),
    });
    let policy: String = lines.collect();
    format!("{before}{start}{policy}{end}{after}")
}
