{{/* The policy and the filter's configuration, as they are deployed and as `check-config` sees them. */}}

{{/* The value `policy`: a mapping, whose names Helm sorts, or the text of a policy file. */}}
{{- define "sluicegate.givenPolicy" -}}
{{- if kindIs "string" .Values.policy -}}
{{- .Values.policy | trimSuffix "\n" -}}
{{- else -}}
{{- .Values.policy | default dict | toYaml -}}
{{- end -}}
{{- end }}

{{/*
The policy file: `policy`, and at its end, so that lines in messages are those of a text, a `store` made from `store`.
SLUICEGATE_STORE, if it is set, replaces the URL and nothing else.
*/}}
{{- define "sluicegate.policy" -}}
{{- $policy := include "sluicegate.givenPolicy" . -}}
{{- $policy -}}
{{- $url := .Values.store.url -}}
{{- if and .Values.store.existingSecret.name (not ($policy | fromYaml).store) -}}
{{- $url = "redis://127.0.0.1:6379" -}}
{{- end -}}
{{- if eq $url "memory" }}
store: memory
{{- else if $url }}
{{ dict "store" (dict "url" $url "key_prefix" (tpl .Values.store.keyPrefix . | trunc 64)) | toYaml }}
{{- end -}}
{{- end }}

{{/* The filter's configuration, with version and the sidecar's cluster filled in. */}}
{{- define "sluicegate.filterConfig" -}}
{{- $defaults := dict "version" 2 "rule_sets" (dict "default" "default") -}}
{{- $config := merge (.Values.filter.config | default dict | deepCopy) $defaults -}}
{{- if .Values.filter.pepper.existingSecret.name -}}
{{- $_ := set $config "pepper_env" "SLUICEGATE_PEPPER" -}}
{{- end -}}
{{- $sidecar := merge (dict "cluster" (include "sluicegate.cluster" .)) ($config.sidecar | default dict) -}}
{{- toYaml (set $config "sidecar" $sidecar) -}}
{{- end }}

{{/* Not empty if routes choose the rule set. */}}
{{- define "sluicegate.byRoute" -}}
{{- with (((.Values.filter).config).rule_sets).by }}true{{ end -}}
{{- end }}

{{/* An `rbac` without rules: it makes Envoy select the route again, which a filter before it may have cleared. */}}
{{- define "sluicegate.routeAgain" -}}
{ name: sluicegate-route, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC } }
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
