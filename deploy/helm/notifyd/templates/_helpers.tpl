{{- define "notifyd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "notifyd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "notifyd.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "notifyd.selectorLabels" -}}
app.kubernetes.io/name: {{ include "notifyd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "notifyd.migrateLabels" -}}
app.kubernetes.io/name: {{ include "notifyd.name" . }}-migrate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "notifyd.labels" -}}
{{ include "notifyd.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "notifyd.image" -}}
{{- with .Values.image -}}
{{- $repository := required "image.repository is empty: build the image with deploy/Dockerfile, push it, and name it, such as registry.example.com/notifyd" .repository -}}
{{- if .digest -}}
{{ $repository }}@{{ .digest }}
{{- else -}}
{{ $repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "notifyd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "notifyd.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* How the admin server is asked: service.https, or what config.admin says. */}}
{{- define "notifyd.adminScheme" -}}
{{- $tls := dig "admin" "tls" dict .Values.config -}}
{{- if or .Values.service.https (get $tls "cert_file") -}}HTTPS{{- else -}}HTTP{{- end -}}
{{- end -}}
