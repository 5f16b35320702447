{{/* The name of what is deployed: the release's, with the chart's where it is not in it. */}}
{{- define "lln.name" -}}
{{- $name := ternary .Release.Name (printf "%s-lln" .Release.Name) (contains "lln" .Release.Name) -}}
{{- $name | trunc 48 | trimSuffix "-" -}}
{{- end }}

{{- define "lln.selector" -}}
app.kubernetes.io/name: lln
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lln.labels" -}}
{{ include "lln.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "lln.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A setting as text. Helm reads whole numbers from files as floats, which would print as 2e+09. */}}
{{- define "lln.setting" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{- define "lln.probe" -}}
httpGet: {path: {{ .path }}, port: http{{ if .root.Values.tls.secret }}, scheme: HTTPS{{ end }}}
{{- end }}

{{- define "lln.claim" -}}
{{ .Values.modelStorage.existingClaim | default (printf "%s-models" (include "lln.name" .)) }}
{{- end }}

{{/* Refuses what the schema cannot see, because it concerns several values. */}}
{{- define "lln.check" -}}
{{- $own := dict "LLN_REPLICA" "" "LLN_HTTP_PORT" "" "LLN_GRPC_PORT" "" "LLN_MODELS" "models" "LLN_OTLP_ENDPOINT" "tracing.endpoint" "LLN_ENGINE__DEVICE" "gpu.count" "LLN_TLS_CERT_FILE" "tls.secret" "LLN_TLS_KEY_FILE" "tls.secret" "LLN_API_KEYS" "keys.secret" }}
{{- range $name, $_ := .Values.settings }}
{{- if hasKey $own $name }}
{{- $instead := ternary (printf "give %s instead" (get $own $name)) "leave it out" (ne (get $own $name) "") }}
{{- fail (printf "settings.%s is set by the chart: %s" $name $instead) }}
{{- end }}
{{- end }}
{{- with .Values.autoscaling }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "autoscaling.minReplicas is %d and must be at most autoscaling.maxReplicas, which is %d" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- $storage := .Values.modelStorage }}
{{- if and .Values.networkPolicy.hub (not $storage.enabled) }}
{{- fail "networkPolicy.hub needs modelStorage.enabled: every pod would fetch the models again at each start" }}
{{- end }}
{{- if and .Values.networkPolicy.hub $storage.readOnly }}
{{- fail "networkPolicy.hub cannot be combined with modelStorage.readOnly: models from the hub are written there" }}
{{- end }}
{{- $replicas := ternary .Values.replicas .Values.autoscaling.minReplicas (eq .Values.autoscaling.kind "none") }}
{{- $budget := .Values.disruptionBudget }}
{{- if and $budget.enabled (gt (int $budget.minAvailable) 0) (ge (int $budget.minAvailable) (int $replicas)) }}
{{- fail (printf "disruptionBudget.minAvailable is %d of %d replicas, so no node could be drained: lower it, or have more replicas" (int $budget.minAvailable) (int $replicas)) }}
{{- end }}
{{- end }}
