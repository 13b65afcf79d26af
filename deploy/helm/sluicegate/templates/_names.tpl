{{/* Names, labels and namespaces that several templates share. */}}

{{/* Refused and not cut when it is too long: two releases would get one name. */}}
{{- define "sluicegate.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) -}}
{{- $name = printf "%s-%s" $name .Chart.Name -}}
{{- end -}}
{{- $name = .Values.fullnameOverride | default $name -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$" $name) -}}
{{- fail (printf "fullnameOverride: set a name, because `%s`, made from the release's, cannot be that of a Service: up to 40 of a-z, 0-9 and -, beginning with a letter" $name) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* Every manifest has them, so this is where values are checked: Helm renders files in an order of its own. */}}
{{- define "sluicegate.labels" -}}
{{- include "sluicegate.validate" . -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* The label of every pod that has the sidecar: PodMonitor, PodDisruptionBudget and NetworkPolicy select by it. Not one of
`app.kubernetes.io`, which say whose pods they are: in a mesh, another's. */}}
{{- define "sluicegate.podLabels" -}}
sluicegate.github.io/release: {{ include "sluicegate.fullname" . }}
{{- end }}

{{/* The namespace of the pods that have the sidecar, and so of the policy that they mount. */}}
{{- define "sluicegate.podNamespace" -}}
{{- if eq .Values.kind "envoyGateway" -}}
{{- .Values.envoyGateway.proxyNamespace | default .Values.envoyGateway.namespace -}}
{{- else -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end }}

{{- define "sluicegate.policyName" -}}
{{- .Values.existingPolicy | default (printf "%s-policy" (include "sluicegate.fullname" .)) -}}
{{- end }}

{{/* The host of Istio's ServiceEntry for the sidecar. */}}
{{- define "sluicegate.istioHost" -}}
{{- include "sluicegate.fullname" . }}.internal
{{- end }}

{{/* "true" if the chart installs the filter, unless `filter.enabled` is false: for its own Envoys and the meshes'. */}}
{{- define "sluicegate.runsFilter" -}}
{{- if or (has .Values.kind (list "envoyGateway" "istio")) .Values.kubernetes.deployment.enabled -}}true{{- end -}}
{{- end }}

{{/* The name of istiod's injection template. istiod has one set of templates for all namespaces; neither part has a dot. */}}
{{- define "sluicegate.istioTemplate" -}}
{{- include "sluicegate.fullname" . }}.{{ .Release.Namespace }}
{{- end }}

{{/* Envoy's name for the cluster that holds the sidecar. */}}
{{- define "sluicegate.cluster" -}}
{{- if eq .Values.kind "istio" -}}
outbound|{{ .Values.sidecar.port }}||{{ include "sluicegate.istioHost" . }}
{{- else -}}
sluicegate
{{- end -}}
{{- end }}

{{/* An image's reference, from .image with a repository and a digest or tag. */}}
{{- define "sluicegate.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .chart.AppVersion }}
{{- end -}}
{{- end }}
