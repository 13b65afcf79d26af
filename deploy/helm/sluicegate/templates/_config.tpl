{{/* The policy and the filter's configuration, as they are deployed and as `check-config` sees them. */}}

{{/* The policy file, with `store` filled in from `store`. SLUICEGATE_STORE, if it is set, replaces the URL and nothing else. */}}
{{- define "sluicegate.policy" -}}
{{- $policy := .Values.policy | default dict | deepCopy -}}
{{- $url := .Values.store.url -}}
{{- if and .Values.store.existingSecret.name (not $policy.store) -}}
{{- $url = "redis://127.0.0.1:6379" -}}
{{- end -}}
{{- if eq $url "memory" -}}
{{- $_ := set $policy "store" $url -}}
{{- else if $url -}}
{{- $_ := set $policy "store" (dict "url" $url "key_prefix" (tpl .Values.store.keyPrefix . | trunc 64)) -}}
{{- end -}}
{{- toYaml $policy -}}
{{- end }}

{{/* The filter's configuration, with the sidecar's cluster filled in. */}}
{{- define "sluicegate.filterConfig" -}}
{{- $config := .Values.filter.config | default dict | deepCopy -}}
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
