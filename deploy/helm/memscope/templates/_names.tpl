{{- define "memscope.name" -}}
{{- if contains "memscope" .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-memscope" .Release.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "memscope.selector" -}}
app.kubernetes.io/name: memscope
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "memscope.labels" -}}
{{ include "memscope.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "memscope.settings" -}}
{{- $settings := deepCopy .Values.settings }}
{{- $_ := set $settings "state-dir" "/var/lib/memscope" }}
{{- $_ := set $settings "pod-logs" "/var/log/pods" }}
{{- if .Values.paths.podVolumes }}
{{- $_ := set $settings "pod-volumes" "/var/lib/kubelet/pods" }}
{{- end }}
{{- if .Values.metrics.enabled }}
{{- $_ := set $settings "metrics" (printf "0.0.0.0:%d" (int .Values.metrics.port)) }}
{{- $_ := set $settings "metrics-for-everybody" true }}
{{- end }}
{{- if index $settings "listen" }}
{{- with .Values.tls }}
{{- if .secretName }}
{{- $_ := set $settings "tls-cert" (printf "/etc/memscope-tls/%s" .certificate) }}
{{- $_ := set $settings "tls-key" (printf "/etc/memscope-tls/%s" .key) }}
{{- $_ := set $settings "tls-client-ca" (printf "/etc/memscope-tls/%s" .clientCa) }}
{{- if .clientCrl }}
{{- $_ := set $settings "tls-client-crl" (printf "/etc/memscope-tls/%s" .clientCrl) }}
{{- end }}
{{- else if not (index $settings "tls-cert") }}
{{- fail "settings.listen needs tls.secretName: a secret with the certificate, the key and the authority of those who ask" }}
{{- end }}
{{- end }}
{{- end }}
{{- /* Numbers of values are floating-point ones to Helm; in JSON they look as TOML wants them, and so does the rest. */}}
{{- range $name, $value := $settings }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- range .Values.attach }}
[[attach]]
{{- range $name, $value := . }}
{{- if kindIs "map" $value }}
{{- range $key, $pattern := $value }}
{{ $name }}.{{ toJson $key }} = {{ toJson $pattern }}
{{- end }}
{{- else }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
