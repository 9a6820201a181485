{{- /* Arguments: a list of the root, the process's given settings, and those that the chart makes. A given one replaces
the chart's: a name that occurs twice is refused by the cluster. */ -}}
{{- define "rootstock.env" -}}
{{- $root := index . 0 -}}
{{- $given := merge (deepCopy (index . 1)) $root.Values.env -}}
{{- range fromYamlArray (index . 2) }}
{{- if not (hasKey $given .name) }}
- {{ toYaml . | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- range $name, $value := $given }}
- name: {{ $name }}
  value: {{ ternary ($value | int64 | toString) ($value | toString) (kindIs "float64" $value | and (eq (toString (floor $value)) (toString $value))) | quote }}
{{- end }}
{{- end }}

{{- /* Arguments: a list of the root, the variable, and the secret's key. */ -}}
{{- define "rootstock.secretEnv" -}}
{{- $root := index . 0 -}}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ include "rootstock.secretName" $root }}
      key: {{ index . 2 }}
{{- end }}

{{/* Unset where the Secret has no such key. */}}
{{- define "rootstock.optionalSecretEnv" -}}
{{ include "rootstock.secretEnv" . }}
      optional: true
{{- end }}

{{- define "rootstock.redisEnv" -}}
{{ include "rootstock.secretEnv" (list . "ROOTSTOCK_REDIS_URL" "redis-url") }}
{{- end }}

{{- define "rootstock.databaseEnv" -}}
{{ include "rootstock.secretEnv" (list . "ROOTSTOCK_DB_URL" "database-url") }}
{{- end }}

{{- define "rootstock.storageEnv" -}}
- name: ROOTSTOCK_STORAGE_URL
  value: {{ default "file:///var/lib/rootstock/shared/objects" .Values.storage.url | quote }}
{{- if .Values.storage.url }}
- name: ROOTSTOCK_STORAGE_REGION
  value: {{ .Values.storage.region | quote }}
{{- with .Values.storage.endpoint }}
- name: ROOTSTOCK_STORAGE_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- if or .Values.storage.keysInSecret .Values.secrets.storageAccessKeyId }}
{{ include "rootstock.secretEnv" (list . "ROOTSTOCK_STORAGE_ACCESS_KEY_ID" "storage-access-key-id") }}
{{ include "rootstock.secretEnv" (list . "ROOTSTOCK_STORAGE_SECRET_ACCESS_KEY" "storage-secret-access-key") }}
{{- end }}
{{- end }}
{{- end }}

{{- define "rootstock.workerEnv" -}}
{{ include "rootstock.databaseEnv" . }}
{{ include "rootstock.redisEnv" . }}
- name: ROOTSTOCK_WORKER_REDIS_URL
  value: $(ROOTSTOCK_REDIS_URL)
{{ include "rootstock.secretEnv" (list . "ROOTSTOCK_TENANTS_KEY_SECRET" "key-secret") }}
{{ include "rootstock.optionalSecretEnv" (list . "ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET" "previous-key-secret") }}
{{- end }}

{{- define "rootstock.jobsEnv" -}}
{{ include "rootstock.workerEnv" . }}
{{ include "rootstock.storageEnv" . }}
- name: ROOTSTOCK_JOBS_BASE_PATH
  value: {{ .Values.base.path }}
- name: ROOTSTOCK_JOBS_BASE_NAME
  value: {{ .Values.base.name }}
- name: ROOTSTOCK_JOBS_ENGINE_ENDPOINT
  value: {{ include "rootstock.engineEndpoints" . | quote }}
- name: ROOTSTOCK_JOBS_ARTIFACTS_DIR
  value: {{ include "rootstock.artifacts" . }}
{{- if .Values.signing.existingSecret }}
- name: ROOTSTOCK_SIGNING_KEY_FILE
  value: /etc/rootstock/signing/signing.key
{{- end }}
{{- end }}

{{- define "rootstock.verificationEnv" -}}
{{- if .Values.signing.publicKeys }}
- name: ROOTSTOCK_SIGNING_PUBLIC_KEYS
  value: {{ .Values.signing.publicKeys | quote }}
- name: ROOTSTOCK_SIGNING_REQUIRED
  value: {{ .Values.signing.required | quote }}
{{- end }}
{{- end }}

{{- define "rootstock.apiEnv" -}}
{{ include "rootstock.databaseEnv" . }}
{{ include "rootstock.redisEnv" . }}
{{ include "rootstock.secretEnv" (list . "ROOTSTOCK_TENANTS_KEY_SECRET" "key-secret") }}
{{ include "rootstock.optionalSecretEnv" (list . "ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET" "previous-key-secret") }}
{{ include "rootstock.storageEnv" . }}
{{- include "rootstock.verificationEnv" . }}
- name: ROOTSTOCK_API_REDIS_URL
  value: $(ROOTSTOCK_REDIS_URL)
- name: ROOTSTOCK_API_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: ROOTSTOCK_API_HOST
  value: 0.0.0.0
- name: ROOTSTOCK_API_PORT
  value: {{ .Values.api.port | quote }}
- name: ROOTSTOCK_API_BASE_PATH
  value: {{ .Values.base.path }}
- name: ROOTSTOCK_API_BASE_NAME
  value: {{ .Values.base.name }}
- name: ROOTSTOCK_API_ENGINE_ENDPOINT
  value: {{ include "rootstock.engineEndpoints" . | quote }}
- name: ROOTSTOCK_API_DRAIN_TIMEOUT
  value: {{ .Values.api.drainSeconds | quote }}
- name: ROOTSTOCK_API_LOG_FORMAT
  value: json
- name: ROOTSTOCK_API_FORWARDED_ALLOW_IPS
  value: {{ .Values.api.trustedProxies | quote }}
{{- end }}

{{- define "rootstock.engineEnv" -}}
- name: ROOTSTOCK_ENGINE_ENGINE_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{ include "rootstock.redisEnv" . }}
{{- include "rootstock.verificationEnv" . }}
- name: ROOTSTOCK_ENGINE_REDIS_URL
  value: $(ROOTSTOCK_REDIS_URL)
- name: ROOTSTOCK_ENGINE_ENDPOINT
  value: tcp://0.0.0.0:{{ .Values.engine.port }}
{{- if .Values.engine.metrics.enabled }}
- name: ROOTSTOCK_ENGINE_METRICS_ENDPOINT
  value: 0.0.0.0:{{ .Values.engine.metrics.port }}
{{- end }}
{{- if include "rootstock.isEncrypted" . }}
- name: ROOTSTOCK_CLUSTER_CLIENT_KEYS
  value: {{ .Values.engine.encryption.publicKey | quote }}
- name: ROOTSTOCK_CLUSTER_HOST
  value: $(ROOTSTOCK_ENGINE_ENGINE_ID).{{ include "rootstock.fullname" . }}-engine
{{- end }}
- name: ROOTSTOCK_ENGINE_BASE
  value: {{ .Values.base.path }}
- name: ROOTSTOCK_ENGINE_BASE_NAME
  value: {{ .Values.base.name }}
- name: ROOTSTOCK_ENGINE_DATA_DIR
  value: /var/lib/rootstock
- name: ROOTSTOCK_ENGINE_ARTIFACTS_DIR
  value: {{ include "rootstock.artifacts" . }}
- name: ROOTSTOCK_ENGINE_DRAIN_SECONDS
  value: {{ .Values.engine.drainSeconds | quote }}
- name: ROOTSTOCK_DEVICE_DEVICE
  value: {{ ternary "cuda" "cpu" (gt (int .Values.engine.gpus) 0) }}
- name: ROOTSTOCK_DEVICE_QUANTIZATION
  value: {{ .Values.engine.quantization }}
- name: ROOTSTOCK_DEVICE_TENSOR_PARALLEL
  value: {{ .Values.engine.tensorParallel | quote }}
# Compiled kernels, kept over restarts.
- name: TRITON_CACHE_DIR
  value: /var/lib/rootstock/triton
{{- end }}
