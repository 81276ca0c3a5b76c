{{/* Labels of every object. */}}
{{- define "sandbox-apiserver.labels" -}}
{{ include "sandbox-apiserver.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels of the objects of the node agent. */}}
{{- define "sandbox-apiserver.agentLabels" -}}
app.kubernetes.io/name: sandbox-agent
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What the Service and the Deployment select Pods by. It cannot change in an upgrade. */}}
{{- define "sandbox-apiserver.selectorLabels" -}}
app.kubernetes.io/name: sandbox-apiserver
{{- end }}

{{/* The subjects of every binding. */}}
{{- define "sandbox-apiserver.subjects" -}}
- kind: ServiceAccount
  name: sandbox-apiserver
  namespace: {{ .Release.Namespace }}
{{- end }}
