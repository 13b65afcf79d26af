{{/* The policy and the filter's configuration, as they are deployed and as `check-config` sees them. */}}

{{/* The policy file, with `store` filled in from `store.url`. */}}
{{- define "sluicegate.policy" -}}
{{- $policy := deepCopy .Values.policy -}}
{{- if .Values.store.url -}}
{{- $_ := set $policy "store" .Values.store.url -}}
{{- end -}}
{{- toYaml $policy -}}
{{- end }}

{{/* The filter's configuration, with the sidecar's cluster filled in. */}}
{{- define "sluicegate.filterConfig" -}}
{{- $config := deepCopy .Values.filter.config -}}
{{- $sidecar := merge (dict "cluster" (include "sluicegate.cluster" .)) ($config.sidecar | default dict) -}}
{{- toYaml (set $config "sidecar" $sidecar) -}}
{{- end }}

{{/* The sidecar's cluster in Envoy's own words, where no control plane makes it. */}}
{{- define "sluicegate.envoyCluster" -}}
name: {{ include "sluicegate.cluster" . }}
type: STATIC
connect_timeout: 1s
load_assignment:
  cluster_name: {{ include "sluicegate.cluster" . }}
  endpoints:
    - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: {{ .Values.sidecar.port }} } } }
{{- end }}

{{/* Fails with the name of the value that is missing or contradicts another. */}}
{{- define "sluicegate.validate" -}}
{{- $needsFilter := or (has .Values.kind (list "envoyGateway" "istio")) .Values.kubernetes.deployment.enabled -}}
{{- $stores := 0 -}}
{{- range list .Values.store.url .Values.store.existingSecret.name (.Values.policy.store) -}}
{{- if . -}}{{- $stores = add1 $stores -}}{{- end -}}
{{- end -}}
{{- if gt (int $stores) 1 -}}
{{- fail "store: set only one of store.url, store.existingSecret.name and policy.store" -}}
{{- end -}}
{{- if and (eq (int $stores) 0) (not .Values.existingPolicy) -}}
{{- fail "store: set store.url to a Redis URL, or store.existingSecret.name to a Secret that holds it (store.url=memory: every pod counts on its own)" -}}
{{- end -}}
{{- if and .Values.existingPolicy .Values.policy -}}
{{- fail "policy: set only one of policy and existingPolicy" -}}
{{- end -}}
{{- if and .Values.existingPolicy .Values.store.url -}}
{{- fail "store.url: does not change the policy in existingPolicy; set `store` in that policy, or store.existingSecret.name" -}}
{{- end -}}
{{- if not (or .Values.existingPolicy (.Values.policy).limits) -}}
{{- fail "policy.limits: set the limits, or existingPolicy to a ConfigMap with a policy.yaml" -}}
{{- end -}}
{{- if and $needsFilter (not (.Values.filter.config).rules) -}}
{{- fail "filter.config.rules: set the rules: which requests ask for which limits" -}}
{{- end -}}
{{- if and .Values.filter.http.url (not .Values.filter.http.sha256) -}}
{{- fail "filter.http.sha256: set the SHA-256 of the file at filter.http.url" -}}
{{- end -}}
{{- if and (eq .Values.kind "envoyGateway") (not .Values.envoyGateway.targetRefs) -}}
{{- fail "envoyGateway.targetRefs: name the Gateways or routes to limit, such as [{kind: Gateway, name: eg}]" -}}
{{- end -}}
{{- if and (eq .Values.kind "istio") (not .Values.istio.selector) -}}
{{- fail "istio.selector: set labels of the pods to limit, such as {istio: ingressgateway}" -}}
{{- end -}}
{{- if and .Values.kubernetes.deployment.enabled (ne .Values.kind "kubernetes") -}}
{{- fail "kubernetes.deployment.enabled: only with kind: kubernetes" -}}
{{- end -}}
{{- if and .Values.kubernetes.deployment.enabled (not .Values.kubernetes.deployment.upstream.host) -}}
{{- fail "kubernetes.deployment.upstream.host: set the Service to which Envoy sends requests" -}}
{{- end -}}
{{- end }}
