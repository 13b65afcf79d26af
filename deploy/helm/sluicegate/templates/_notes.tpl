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
A Gateway without it lets everything pass if its rules say `when_unavailable: allow`: send more requests than the limit, and
expect 429.
{{- else if eq .Values.kind "istio" -}}
1. Give istiod the template that adds the sidecar to pods (once, and after changes of `sidecar`):
     kubectl -n {{ .Release.Namespace }} get configmap {{ $name }}-istiod-values -o 'jsonpath={.data.values\.yaml}' > {{ $name }}-istiod.yaml
     helm -n istio-system upgrade istiod istio/istiod --reuse-values -f {{ $name }}-istiod.yaml
2. Annotate the pods, and restart them:
     inject.istio.io/templates: {{ eq .Values.istio.proxy "gateway" | ternary "gateway" "sidecar" }},{{ $name }}
     sidecar.istio.io/extraStatTags: rule,limit
     {{- if eq .Values.istio.proxy "workload" }}
     traffic.sidecar.istio.io/excludeInboundPorts: "{{ .Values.sidecar.adminPort }}"
     {{- end }}
3. Send more requests than the limit, and expect 429: without the sidecar, rules with `when_unavailable: allow` let
   everything pass.
{{- else if .Values.kubernetes.deployment.enabled -}}
The Deployment waits for the filter:
  kubectl -n {{ .Release.Namespace }} create configmap {{ .Values.kubernetes.deployment.filterConfigMap }} --from-file=sluicegate.wasm
Then send more requests than the limit to Service `{{ $name }}`, and expect 429.
{{- else -}}
Give the pods of your Envoys this label, container and volume:

{{ include "sluicegate.podTemplate" . }}

and your Envoy's configuration this cluster:

{{ include "sluicegate.envoyCluster" . }}
{{- end }}
{{- end }}
