{{/* The sidecar in a pod: its container and volumes, the same for every kind. */}}

{{/*
An init container that keeps running: it starts before Envoy and ends after it, so no request comes while it is missing.
No startup probe under Istio: until its proxy runs, redirection would refuse the probe, and the pod would never start.
*/}}
{{- define "sluicegate.container" -}}
name: sluicegate
image: {{ include "sluicegate.image" (dict "image" .Values.sidecar.image "chart" .Chart) }}
imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
restartPolicy: Always
args:
  - serve
  - --policy
  - /etc/sluicegate/policy.yaml
  - --listen
  - 127.0.0.1:{{ .Values.sidecar.port }}
  - --state-dir
  - /var/lib/sluicegate
  - --admin-listen
  - {{ printf (contains ":" .Values.listenAddress | ternary "[%s]:%v" "%s:%v") .Values.listenAddress .Values.sidecar.adminPort | quote }}
  {{- with .Values.sidecar.args }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "sluicegate.env" . }}
env:
  {{- . | nindent 2 }}
{{- end }}
ports:
  - { name: sluicegate, containerPort: {{ .Values.sidecar.adminPort }} }
{{- if ne .Values.kind "istio" }}
startupProbe:
  httpGet: { path: /readyz, port: {{ .Values.sidecar.adminPort }} }
  periodSeconds: 1
  failureThreshold: 60
{{- end }}
readinessProbe:
  httpGet: { path: /readyz, port: {{ .Values.sidecar.adminPort }} }
  periodSeconds: 5
livenessProbe:
  httpGet: { path: /healthz, port: {{ .Values.sidecar.adminPort }} }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
resources:
  {{- toYaml .Values.sidecar.resources | nindent 2 }}
securityContext:
  {{- include "sluicegate.securityContext" . | nindent 2 }}
volumeMounts:
  - { name: sluicegate-policy, mountPath: /etc/sluicegate, readOnly: true }
  - { name: sluicegate-state, mountPath: /var/lib/sluicegate }
  {{- with .Values.sidecar.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Envoy's variable with the filter's pepper, if there is one; Envoy passes it on to the filter. */}}
{{- define "sluicegate.pepperEnv" -}}
{{- with .Values.filter.pepper.existingSecret -}}
{{- if .name -}}
{{- list (dict "name" "SLUICEGATE_PEPPER" "valueFrom" (dict "secretKeyRef" .)) | toYaml -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "sluicegate.env" -}}
{{- $env := list -}}
{{- with .Values.store.existingSecret -}}
{{- if .name -}}
{{- $env = append $env (dict "name" "SLUICEGATE_STORE" "valueFrom" (dict "secretKeyRef" .)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.sidecar.adminToken.existingSecret -}}
{{- if .name -}}
{{- $env = append $env (dict "name" "SLUICEGATE_ADMIN_TOKEN" "valueFrom" (dict "secretKeyRef" .)) -}}
{{- $env = append $env (dict "name" "SLUICEGATE_OPEN_METRICS" "value" "true") -}}
{{- end -}}
{{- end -}}
{{- with concat $env (.Values.sidecar.env | default list) -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}

{{- define "sluicegate.securityContext" -}}
{{- .Values.securityContext | default dict | toYaml -}}
{{- end }}

{{/* The folder, not the file: a mounted file (`subPath`) would not follow changes of the ConfigMap. The last good policy
and earlier ones survive a restart of the container in the pod. */}}
{{- define "sluicegate.volumes" -}}
- { name: sluicegate-policy, configMap: { name: {{ include "sluicegate.policyName" . }} } }
- { name: sluicegate-state, emptyDir: {} }
{{- with .Values.sidecar.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Replaces the chart's own pods when a field changes that a sidecar reads at its start only: a running one would refuse the
whole policy. It is not in the template for istiod or in the notes: there, the chart does not replace pods.
*/}}
{{- define "sluicegate.storeChecksum" -}}
{{- if not .Values.existingPolicy -}}
checksum/store: {{ pick (include "sluicegate.policy" . | fromYaml) "store" "store_timeout" "memory_limit" | toJson | sha256sum }}
{{- end -}}
{{- end }}

{{/* Where the chart's own pods may run, and as whom. */}}
{{- define "sluicegate.placement" -}}
{{- $security := dict "securityContext" (.Values.podSecurityContext | default dict) -}}
{{- pick .Values "affinity" "nodeSelector" "priorityClassName" "serviceAccountName" "tolerations" | merge $security | toYaml -}}
{{- end }}

{{/* The pods that run `sluicegate` once: the check before an install or upgrade, and that of `helm test`. */}}
{{- define "sluicegate.onceMetadata" -}}
labels:
  {{- /* A proxy would keep them from ending. */}}
  {{- $own := set (include "sluicegate.labels" . | fromYaml) "sidecar.istio.io/inject" "false" }}
  {{- merge $own (.Values.podLabels | default dict) | toYaml | nindent 2 }}
annotations:
  {{- .Values.podAnnotations | default dict | toYaml | nindent 2 }}
{{- end }}

{{- define "sluicegate.onceSpec" -}}
restartPolicy: Never
automountServiceAccountToken: false
{{ include "sluicegate.placement" . }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "sluicegate.onceContainer" -}}
image: {{ include "sluicegate.image" (dict "image" .Values.sidecar.image "chart" .Chart) }}
imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
resources:
  requests: { cpu: 10m, memory: 32Mi }
  limits: { memory: 128Mi }
securityContext:
  {{- include "sluicegate.securityContext" . | nindent 2 }}
{{- end }}

{{/* What a pod needs, to merge into its template. */}}
{{- define "sluicegate.podTemplate" -}}
metadata:
  labels:
    {{- include "sluicegate.podLabels" . | nindent 4 }}
spec:
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  initContainers:
    - {{ include "sluicegate.container" . | nindent 6 | trim }}
  {{- if eq .Values.kind "istio" }}
  {{- with include "sluicegate.pepperEnv" . }}
  containers:
    - name: istio-proxy
      env:
        {{- . | nindent 8 }}
  {{- end }}
  {{- end }}
  volumes:
    {{- include "sluicegate.volumes" . | nindent 4 }}
{{- end }}
