{{- define "rootstock.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "rootstock" $name) }}{{ $name = printf "%s-rootstock" $name }}{{ end -}}
{{- default $name .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- end }}

{{- define "rootstock.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- /* Arguments: a list of the root and the component. */ -}}
{{- define "rootstock.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: rootstock
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "rootstock.labels" -}}
{{- $root := index . 0 -}}
{{ include "rootstock.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{- define "rootstock.secretName" -}}
{{ default (include "rootstock.fullname" .) .Values.secrets.existingSecret }}
{{- end }}

{{- define "rootstock.sharedClaim" -}}
{{ default (printf "%s-shared" (include "rootstock.fullname" .)) .Values.shared.existingClaim }}
{{- end }}

{{- define "rootstock.isEncrypted" -}}
{{- if .Values.engine.encryption.publicKey }}true{{ end -}}
{{- end }}

{{- /* Of a bundled server, from the key secret: the same at every upgrade, and another for every use. */ -}}
{{- define "rootstock.password" -}}
{{- $root := index . 0 -}}
{{ printf "%s of %s" (index . 1) $root.Values.secrets.keySecret | sha256sum | trunc 48 }}
{{- end }}

{{- define "rootstock.databaseUrl" -}}
{{- $root := index . 0 -}}
{{- $host := printf "%s-postgresql" (include "rootstock.fullname" $root) -}}
postgresql+psycopg://{{ index . 1 }}:{{ include "rootstock.password" . }}@{{ $host }}:5432/rootstock
{{- end }}

{{- define "rootstock.ownerUrl" -}}
{{- if .Values.postgresql.bundled }}{{ include "rootstock.databaseUrl" (list . "rootstock") }}
{{- else }}{{ required "secrets.databaseOwnerUrl is not set: name the database's owner, set secrets.existingSecret, or postgresql.bundled to try the chart out" .Values.secrets.databaseOwnerUrl }}
{{- end }}
{{- end }}

{{- /* Where API and workers find the engines. */ -}}
{{- define "rootstock.engineEndpoints" -}}
{{- if include "rootstock.isEncrypted" . -}}
registry+$(ROOTSTOCK_REDIS_URL)?secret=/etc/rootstock/clients/clients.key
{{- else -}}
{{- $name := printf "%s-engine" (include "rootstock.fullname" .) -}}
{{- $port := .Values.engine.port -}}
{{- range $number := until (int .Values.engine.replicas) }}{{ if $number }},{{ end }}tcp://{{ $name }}-{{ $number }}.{{ $name }}:{{ $port }}{{ end }}
{{- end }}
{{- end }}

{{- define "rootstock.artifacts" -}}/var/lib/rootstock/shared/artifacts{{- end }}

{{- define "rootstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "rootstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* What every pod of ours begins with. */ -}}
{{- define "rootstock.pod" -}}
automountServiceAccountToken: false
# The pause process reaps what our processes leave behind.
shareProcessNamespace: true
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  {{- include "rootstock.podSecurity" 10001 | nindent 2 }}
{{- end }}

{{- define "rootstock.container" -}}
image: {{ include "rootstock.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "rootstock.containerSecurity" . | nindent 2 }}
{{- end }}

{{- define "rootstock.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "rootstock.baseMount" -}}
{{- if .Values.base.existingClaim }}
- name: base
  mountPath: {{ .Values.base.path }}
  readOnly: true
  {{- with .Values.base.subPath }}
  subPath: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "rootstock.baseVolume" -}}
{{- with .Values.base.existingClaim }}
- name: base
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- end }}
{{- end }}

{{- define "rootstock.clientsMount" -}}
{{- if include "rootstock.isEncrypted" . }}
- name: clients
  mountPath: /etc/rootstock/clients
  readOnly: true
{{- end }}
{{- end }}

{{- define "rootstock.clientsVolume" -}}
{{- if include "rootstock.isEncrypted" . }}
- name: clients
  secret:
    secretName: {{ required "engine.encryption.existingSecret is not set: name the Secret with clients.key" .Values.engine.encryption.existingSecret }}
    defaultMode: 0440
    items:
      - key: clients.key
        path: clients.key
{{- end }}
{{- end }}

{{- define "rootstock.signingMount" -}}
{{- if .Values.signing.existingSecret }}
- name: signing
  mountPath: /etc/rootstock/signing
  readOnly: true
{{- end }}
{{- end }}

{{- define "rootstock.signingVolume" -}}
{{- with .Values.signing.existingSecret }}
- name: signing
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: signing.key
        path: signing.key
{{- end }}
{{- end }}

{{- define "rootstock.sharedVolume" -}}
- name: shared
  persistentVolumeClaim:
    claimName: {{ include "rootstock.sharedClaim" . }}
{{- end }}

{{- /* Whether the process that wrote the file, once its base was loaded, still runs. */ -}}
{{- define "rootstock.engineServes" -}}
exec:
  command:
    - sh
    - -c
    - >-
      read -r pid began < "$ROOTSTOCK_ENGINE_DATA_DIR/engine/$ROOTSTOCK_ENGINE_ENGINE_ID/serving" &&
      [ "$(cut -d ' ' -f 22 "/proc/$pid/stat")" = "$began" ]
{{- end }}
