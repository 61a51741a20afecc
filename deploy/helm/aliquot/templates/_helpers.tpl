{{- define "aliquot.fullname" -}}
{{- if contains "aliquot" .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-aliquot" .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "aliquot.labels" -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "aliquot.selector" -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "aliquot.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (printf "%s-node" (include "aliquot.fullname" .)) -}}
{{- end -}}

{{- define "aliquot.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "aliquot.pluginDir" -}}
{{- .Values.pluginDir | default (printf "%s/plugins/%s" .Values.kubeletRoot .Values.driverName) -}}
{{- end -}}

{{- define "aliquot.registryDir" -}}
{{- .Values.registryDir | default (printf "%s/plugins_registry" .Values.kubeletRoot) -}}
{{- end -}}

{{- define "aliquot.mpsSocket" -}}
{{- printf "%s/supervisor.sock" .Values.shares.runDir -}}
{{- end -}}

{{- /* A whole device class; arguments: root, name, cel, resource, parameters. */ -}}
{{- define "aliquot.class" -}}
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: {{ .name }}
  labels:
    {{- include "aliquot.labels" .root | nindent 4 }}
spec:
  selectors:
  - cel:
      expression: >-
        device.driver == {{ .root.Values.driverName | quote }} &&
        device.attributes[{{ .root.Values.driverName | quote }}].{{ .cel }}
  {{- with .resource }}
  extendedResourceName: {{ . }}
  {{- end }}
  {{- with .parameters }}
  config:
  - opaque:
      driver: {{ $.root.Values.driverName }}
      parameters:
        {{- toYaml . | nindent 8 }}
  {{- end }}
{{- end -}}

{{- /* Where the DaemonSets run, and what all their pods have. */ -}}
{{- define "aliquot.placement" -}}
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.affinity }}
affinity:
  {{- toYaml .Values.affinity | nindent 2 }}
{{- else if not .Values.simulate }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      {{- range list "feature.node.kubernetes.io/pci-10de.present" "feature.node.kubernetes.io/pci-0300_10de.present" "feature.node.kubernetes.io/pci-0302_10de.present" "nvidia.com/gpu.present" }}
      - matchExpressions:
        - {key: {{ . }}, operator: In, values: ["true"]}
      {{- end }}
{{- end }}
{{- end -}}
