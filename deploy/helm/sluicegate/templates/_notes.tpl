{{/* What `helm install` prints. */}}
{{- define "sluicegate.notes" -}}
{{- $name := include "sluicegate.fullname" . -}}
{{- if eq .Values.kind "envoyGateway" -}}
{{- if .Values.envoyGateway.gatewayClass -}}
Gateways of class `{{ .Values.envoyGateway.gatewayClass }}` have the sidecar. For an existing Gateway in {{ .Release.Namespace }}:
  kubectl -n {{ .Release.Namespace }} patch gateway GATEWAY --type merge -p '{"spec":{"gatewayClassName":"{{ .Values.envoyGateway.gatewayClass }}"}}'
{{- else -}}
Give your Gateway in {{ .Release.Namespace }} the sidecar:
  kubectl -n {{ .Release.Namespace }} patch gateway GATEWAY --type merge -p '{"spec":{"infrastructure":{"parametersRef":{"group":"gateway.envoyproxy.io","kind":"EnvoyProxy","name":"{{ $name }}"}}}}'
{{- end }}
{{- if .Values.filter.enabled }}
Send more requests than the limit, and expect 429.
{{ include "sluicegate.withoutSidecar" . }}
{{- end }}
{{- else if eq .Values.kind "istio" -}}
1. Give istiod the template that adds the sidecar to pods (once, and after changes of `sidecar`):
     kubectl -n {{ .Release.Namespace }} get configmap {{ $name }}-istiod-values -o 'jsonpath={.data.values\.yaml}' > {{ $name }}-istiod.yaml
     helm -n istio-system get metadata istiod # its VERSION, below: without it Helm takes the newest
     helm -n istio-system upgrade istiod istio/istiod --version VERSION --reuse-values -f {{ $name }}-istiod.yaml
2. Annotate the pods, and restart them:
     inject.istio.io/templates: {{ eq .Values.istio.proxy "gateway" | ternary "gateway" "sidecar" }},{{ include "sluicegate.istioTemplate" . }}
     sidecar.istio.io/extraStatTags: rule,limit
     {{- if eq .Values.istio.proxy "workload" }}
     traffic.sidecar.istio.io/excludeInboundPorts: "{{ .Values.sidecar.adminPort }}"
     {{- end }}
{{- if .Values.filter.enabled }}
3. Send more requests than the limit, and expect 429.
   {{ include "sluicegate.withoutSidecar" . }}
{{- end }}
{{- else if .Values.kubernetes.deployment.enabled -}}
{{- if .Values.filter.enabled -}}
The Deployment waits for the filter:
  kubectl -n {{ .Release.Namespace }} create configmap {{ .Values.kubernetes.deployment.filterConfigMap }} --from-file=sluicegate.wasm=sluicegate-{{ .Chart.AppVersion }}.wasm
Then send more requests than the limit to Service `{{ $name }}`, and expect 429.
{{- end }}
{{- else -}}
Give the pods of your Envoys this label, container and volume:

{{ include "sluicegate.podTemplate" . }}

and your Envoy's configuration this cluster:

{{ include "sluicegate.envoyCluster" . }}
{{- end }}
{{- if and (include "sluicegate.runsFilter" .) (not .Values.filter.enabled) }}
Nothing is limited yet: the filter is not installed. When every pod has the sidecar, run `helm upgrade` without
`filter.enabled: false`.
{{- end }}
{{- if and .Values.existingPolicy (not .Values.store.existingSecret.name) }}
The policy in ConfigMap `{{ .Values.existingPolicy }}` must name its `store`: otherwise every pod counts on its own.
{{- end }}
{{- if and .Values.alerts.enabled (not .Values.podMonitor.enabled) }}
Nothing here scrapes the pods, although `alerts.enabled` is set: SluicegateSidecarMissing fires until your Prometheus does, with
the jobs `{{ $name }}` and `{{ $name }}-envoy`. Set `podMonitor.enabled` to have the Prometheus operator do it.
{{- end }}
{{- end }}

{{- define "sluicegate.withoutSidecar" -}}
Without the sidecar there are no rules: 503, or what `filter.config.until_rules` says.
{{- end }}
