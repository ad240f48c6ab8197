{{/* Names, labels, images, and the parts of pods that several resources share. */}}

{{/* A name of at most `length` characters that begins with a letter; one that is too long ends in a digest of itself. */}}
{{- define "trimtab.short" -}}
{{- $text := regexReplaceAll "[^a-z0-9-]+" (index . 0 | lower) "-" -}}
{{- $length := index . 1 | int -}}
{{- if regexMatch "^[0-9]" $text }}{{ $text = printf "t-%s" $text }}{{ end -}}
{{- if gt (len $text) $length -}}
{{- printf "%s-%s" ($text | trunc (sub $length 7 | int) | trimSuffix "-") (sha256sum $text | trunc 6) -}}
{{- else -}}
{{- $text | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.name" -}}
{{- include "trimtab.short" (list (default .Chart.Name .Values.nameOverride) 26) -}}
{{- end -}}

{{/* 26 characters: Spark allows 47 for the names of executors, of which a query's name takes 21. */}}
{{- define "trimtab.fullname" -}}
{{- $name := include "trimtab.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- include "trimtab.short" (list .Values.fullnameOverride 26) -}}
{{- else if contains $name .Release.Name -}}
{{- include "trimtab.short" (list .Release.Name 26) -}}
{{- else -}}
{{- include "trimtab.short" (list (printf "%s-%s" .Release.Name $name) 26) -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.selector" -}}
app.kubernetes.io/name: {{ include "trimtab.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of pods: no versions, so that a chart in which nothing else is new restarts neither Valkey nor a query. */}}
{{- define "trimtab.podLabels" -}}
{{ include "trimtab.selector" . }}
app.kubernetes.io/part-of: trimtab
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "trimtab.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "trimtab.podLabels" . }}
{{- end -}}

{{/* An image's name. Takes a list: the root, the image's values. */}}
{{- define "trimtab.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $registry := $root.Values.global.imageRegistry | default $image.registry -}}
{{- $name := ternary $image.repository (printf "%s/%s" $registry $image.repository) (empty $registry) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.pullSecretNames" -}}
{{- $names := list -}}
{{- range concat (.Values.global.imagePullSecrets | default list) (.Values.imagePullSecrets | default list) -}}
{{- $names = append $names (ternary .name . (kindIs "map" .)) -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end -}}

{{- define "trimtab.pullSecrets" -}}
{{- with include "trimtab.pullSecretNames" . | fromJsonArray }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What Pod Security "restricted" asks of a pod, and of a container. */}}
{{- define "trimtab.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "trimtab.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "trimtab.serviceAccount" -}}
{{- if .Values.manager.serviceAccount.create -}}
{{- default (printf "%s-manager" (include "trimtab.fullname" .)) .Values.manager.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.manager.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.keysSecret" -}}
{{- .Values.keys.existingSecret | default (printf "%s-keys" (include "trimtab.fullname" .)) -}}
{{- end -}}

{{/* Redis: where it is, and who we are to it. */}}
{{- define "trimtab.redisUrl" -}}
{{- if .Values.valkey.enabled -}}
{{- printf "%s://%s-valkey.%s.svc:6379/0" (ternary "rediss" "redis" (not (empty .Values.valkey.tlsSecret))) (include "trimtab.fullname" .) .Release.Namespace -}}
{{- else -}}
{{- .Values.externalRedis.url -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.redisSecret" -}}
{{- if .Values.valkey.enabled -}}
{{- .Values.valkey.existingSecret | default (printf "%s-redis" (include "trimtab.fullname" .)) -}}
{{- else -}}
{{- .Values.externalRedis.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.redisUser" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
{{- ternary (printf "trimtab-%s" $role) (get $root.Values.externalRedis.users $role) $root.Values.valkey.enabled -}}
{{- end -}}

{{- define "trimtab.redisCaSecret" -}}
{{- ternary .Values.valkey.tlsSecret .Values.externalRedis.caSecret .Values.valkey.enabled -}}
{{- end -}}

{{/* Environment of a process that talks to Redis as `role`. Passwords are in files, not in the environment. */}}
{{- define "trimtab.redisEnv" -}}
{{- $root := index . 0 -}}
{{- $role := index . 1 -}}
- name: TRIMTAB_REDIS
  value: {{ include "trimtab.redisUrl" $root | quote }}
{{- if include "trimtab.redisSecret" $root }}
- name: TRIMTAB_REDIS_USER
  value: {{ include "trimtab.redisUser" . | quote }}
- name: TRIMTAB_REDIS_PASSWORD_FILE
  value: /etc/trimtab/redis/{{ $role }}-password
{{- if eq $role "manager" }}
- name: TRIMTAB_REDIS_API_USER
  value: {{ include "trimtab.redisUser" (list $root "api") | quote }}
- name: TRIMTAB_REDIS_API_PASSWORD_FILE
  value: /etc/trimtab/redis/api-password
{{- end }}
{{- end }}
{{- if include "trimtab.redisCaSecret" $root }}
- name: TRIMTAB_REDIS_CA_FILE
  value: /etc/trimtab/redis-ca/ca.crt
{{- end }}
{{- end -}}

{{- define "trimtab.redisMounts" -}}
{{- if include "trimtab.redisSecret" . }}
- name: redis
  mountPath: /etc/trimtab/redis
  readOnly: true
{{- end }}
{{- if include "trimtab.redisCaSecret" . }}
- name: redis-ca
  mountPath: /etc/trimtab/redis-ca
  readOnly: true
{{- end }}
{{- end -}}

{{/* Only the passwords of the roles that the pod plays are mounted. */}}
{{- define "trimtab.redisVolumes" -}}
{{- $root := index . 0 -}}
{{- $roles := index . 1 -}}
{{- with include "trimtab.redisSecret" $root }}
- name: redis
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      {{- range $roles }}
      - key: {{ . }}-password
        path: {{ . }}-password
      {{- end }}
{{- end }}
{{- with include "trimtab.redisCaSecret" $root }}
- name: redis-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- end -}}

{{- define "trimtab.scheme" -}}
{{- ternary "http" "https" (empty .Values.manager.tlsSecret) -}}
{{- end -}}

{{- define "trimtab.url" -}}
{{- printf "%s://%s.%s.svc:%v" (include "trimtab.scheme" .) (include "trimtab.fullname" .) .Release.Namespace .Values.manager.service.port -}}
{{- end -}}
