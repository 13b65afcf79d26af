{{/* Values that contradict each other or that a cluster would refuse. values.schema.json has what one value may be. */}}

{{/* Fails with the name of the value that is missing or contradicts another. */}}
{{- define "sluicegate.validate" -}}
{{- if and .Values.existingPolicy .Values.policy -}}
{{- fail "policy: set only one of policy and existingPolicy (`policy: null` unsets a policy from another file of values)" -}}
{{- end -}}
{{- if and .Values.existingPolicy .Values.consumers -}}
{{- fail "consumers: put it into the ConfigMap of existingPolicy, beside the policy.yaml" -}}
{{- end -}}
{{- $policy := include "sluicegate.givenPolicy" . | fromYaml -}}
{{- with $policy.Error -}}
{{- fail (printf "policy: is not YAML: %s" .) -}}
{{- end -}}
{{- include "sluicegate.validateStore" (list . $policy) -}}
{{- if not (or .Values.existingPolicy $policy.limits) -}}
{{- fail "policy.limits: set the limits, or existingPolicy to a ConfigMap with a policy.yaml" -}}
{{- end -}}
{{- if and .Values.filter.http.url (not .Values.filter.http.sha256) -}}
{{- fail "filter.http.sha256: set the SHA-256 of the file at filter.http.url" -}}
{{- end -}}
{{- if and .Values.filter.pepper.existingSecret.name (.Values.filter.config).pepper -}}
{{- fail "filter.pepper.existingSecret.name: filter.config.pepper is set too; set one of them" -}}
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
{{- if and .Values.podMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.adminFrom) -}}
{{- fail "networkPolicy.adminFrom: without Prometheus's pods here, podMonitor.enabled scrapes nothing; set them, such as [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]" -}}
{{- end -}}
{{- include "sluicegate.validateInterval" . -}}
{{- include "sluicegate.validatePorts" . -}}
{{- end }}

{{/* One store, and no password where everybody may read it. */}}
{{- define "sluicegate.validateStore" -}}
{{- $policy := last . -}}
{{- with first . -}}
{{- $stores := 0 -}}
{{- range list .Values.store.url .Values.store.existingSecret.name $policy.store -}}
{{- if . -}}{{- $stores = add1 $stores -}}{{- end -}}
{{- end -}}
{{- if gt (int $stores) 1 -}}
{{- fail "store: set only one of store.url, store.existingSecret.name and policy.store" -}}
{{- end -}}
{{- if and (eq (int $stores) 0) (not .Values.existingPolicy) -}}
{{- fail "store: set store.url to a Redis URL, or store.existingSecret.name to a Secret that holds it (store.url=memory: every pod counts on its own)" -}}
{{- end -}}
{{- if and .Values.existingPolicy .Values.store.url -}}
{{- fail "store.url: does not change the policy in existingPolicy; set `store` in that policy, or store.existingSecret.name" -}}
{{- end -}}
{{- range $field, $store := dict "store.url" .Values.store.url "policy.store" $policy.store -}}
{{- $url := $store -}}
{{- if kindIs "map" $store -}}
{{- $url = $store.url -}}
{{- end -}}
{{- /* The URL is not printed: what Helm prints is in the logs of CI. */ -}}
{{- if regexMatch "://[^@]*:[^@]+@|[?&]pass=" ($url | default "" | toString) -}}
{{- fail (printf "%s: has a password, which would be in a ConfigMap; put the URL in a Secret, and set store.existingSecret.name instead" $field) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Rates over a minute need two scrapes in it: with fewer, the alerts about requests without a verdict would be silent. */}}
{{- define "sluicegate.validateInterval" -}}
{{- $interval := .Values.podMonitor.interval -}}
{{- $unit := regexFind "[a-z]+$" $interval -}}
{{- $ms := mul (regexFind "^[0-9]+" $interval | atoi) (get (dict "ms" 1 "s" 1000 "m" 60000) $unit) -}}
{{- if and .Values.podMonitor.enabled .Values.alerts.enabled (gt $ms 30000) -}}
{{- fail (printf "podMonitor.interval: the alerts need a scrape every 30 seconds, and this is `%s`; set 30s or less" $interval) -}}
{{- end -}}
{{- end }}

{{/* The containers of a pod share its ports. */}}
{{- define "sluicegate.validatePorts" -}}
{{- $ports := list -}}
{{- if .Values.kubernetes.deployment.enabled -}}
{{- $ports = list (list "Envoy's admin interface" 9901) (list "Envoy's metrics" 9902) (list "kubernetes.deployment.port" .Values.kubernetes.deployment.port) -}}
{{- end -}}
{{- $taken := dict -}}
{{- range concat $ports (list (list "sidecar.port" .Values.sidecar.port) (list "sidecar.adminPort" .Values.sidecar.adminPort)) -}}
{{- $name := first . -}}
{{- $port := last . | int | toString -}}
{{- with get $taken $port -}}
{{- fail (printf "%s: %s is the port of %s; set another" $name $port .) -}}
{{- end -}}
{{- $_ := set $taken $port $name -}}
{{- end -}}
{{- range .Values.networkPolicy.ports -}}
{{- if eq (int .) (int $.Values.sidecar.adminPort) -}}
{{- fail "networkPolicy.ports: has sidecar.adminPort, which would be open to everybody; networkPolicy.adminFrom opens it to some" -}}
{{- end -}}
{{- end -}}
{{- end }}
