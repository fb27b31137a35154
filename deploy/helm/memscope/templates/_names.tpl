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

{{- /* The ports of `listen`, each once, with commas between them: two addresses may have the same. */}}
{{- define "memscope.ports" -}}
{{- $ports := list }}
{{- range index .Values.settings "listen" }}
{{- $ports = append $ports (regexFind "[0-9]+$" .) }}
{{- end }}
{{- $ports | uniq | join "," }}
{{- end }}

{{- define "memscope.settings" -}}
{{- $settings := deepCopy .Values.settings }}
{{- /* What the chart sets, and the value that says it otherwise. The same in the settings would be lost without a word. */}}
{{- $own := dict "state-dir" (list "/var/lib/memscope" "paths.state") }}
{{- $_ := set $own "pod-logs" (list "/var/log/pods" "paths.podLogs") }}
{{- if or .Values.paths.podVolumes (hasKey $settings "pod-volumes") }}
{{- $_ := set $own "pod-volumes" (list "/var/lib/kubelet/pods" "paths.podVolumes") }}
{{- end }}
{{- with .Values.metrics }}
{{- if .enabled }}
{{- $address := .address | default "0.0.0.0" }}
{{- if and (contains ":" $address) (not (hasPrefix "[" $address)) }}
{{- $address = printf "[%s]" $address }}
{{- end }}
{{- $_ := set $own "metrics" (list (printf "%s:%d" $address (int .port)) "metrics.address and metrics.port") }}
{{- $_ := set $own "metrics-for-everybody" (list true "metrics.enabled") }}
{{- end }}
{{- end }}
{{- if index $settings "listen" }}
{{- with .Values.tls }}
{{- if .secretName }}
{{- $_ := set $own "tls-cert" (list (printf "/etc/memscope-tls/%s" .certificate) "tls.certificate") }}
{{- $_ := set $own "tls-key" (list (printf "/etc/memscope-tls/%s" .key) "tls.key") }}
{{- $_ := set $own "tls-client-ca" (list (printf "/etc/memscope-tls/%s" .clientCa) "tls.clientCa") }}
{{- if .clientCrl }}
{{- $_ := set $own "tls-client-crl" (list (printf "/etc/memscope-tls/%s" .clientCrl) "tls.clientCrl") }}
{{- end }}
{{- else if not (index $settings "tls-cert") }}
{{- fail "settings.listen needs tls.secretName: a secret with the certificate, the key and the authority of those who ask" }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $set := $own }}
{{- if hasKey $settings $name }}
{{- fail (printf "settings.%s is set by the chart: say %s instead" $name (last $set)) }}
{{- end }}
{{- $_ := set $settings $name (first $set) }}
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
