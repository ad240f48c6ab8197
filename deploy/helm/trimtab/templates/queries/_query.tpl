{{/* What queries are made of. Most of these take a list: the root, the query as in values. */}}

{{/* The query with the defaults filled in, as YAML. */}}
{{- define "trimtab.query" -}}
{{- $root := index . 0 -}}
{{- mergeOverwrite (deepCopy $root.Values.queryDefaults) (deepCopy (index . 1)) | toYaml -}}
{{- end -}}

{{/* Its name as Kubernetes allows it, 20 characters: Orders_v2 becomes orders-v2-3c1f5a, so that orders-v2 is another.
So does one by which the chart calls something of its own: a query `valkey` would take Valkey's place. */}}
{{- define "trimtab.queryShort" -}}
{{- $name := (index . 1).name -}}
{{- $legal := regexReplaceAll "[^a-z0-9]+" (lower $name) "-" | trimAll "-" -}}
{{- $ours := "^(dashboard|deny|keys|manager|metrics|redis|test|tested|valkey)$|-(checkpoint|driver|executor|spark)$" -}}
{{- if and (eq $legal $name) (le (len $name) 20) (not (regexMatch $ours $name)) -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" ($legal | trunc 13 | trimSuffix "-") (sha256sum $name | trunc 6) -}}
{{- end -}}
{{- end -}}

{{- define "trimtab.queryName" -}}
{{- printf "%s-%s" (include "trimtab.fullname" (index . 0)) (include "trimtab.queryShort" .) -}}
{{- end -}}

{{- define "trimtab.queryLabels" -}}
{{ include "trimtab.labels" (index . 0) }}
trimtab.io/query: {{ include "trimtab.queryShort" . }}
{{- end -}}

{{- define "trimtab.queryPodLabels" -}}
{{ include "trimtab.podLabels" (index . 0) }}
trimtab.io/query: {{ include "trimtab.queryShort" . }}
{{- end -}}

{{- define "trimtab.querySelector" -}}
{{ include "trimtab.selector" (index . 0) }}
trimtab.io/query: {{ include "trimtab.queryShort" . }}
{{- end -}}

{{/* Its image's values, as YAML. The common image's digest belongs to the common image alone. */}}
{{- define "trimtab.queryImageValues" -}}
{{- $root := index . 0 -}}
{{- $own := (include "trimtab.query" . | fromYaml).image -}}
{{- $common := deepCopy $root.Values.sparkImage -}}
{{- if or $own.registry $own.repository $own.tag }}{{ $_ := set $common "digest" "" }}{{ end -}}
{{- mergeOverwrite $common $own | toYaml -}}
{{- end -}}

{{- define "trimtab.queryImage" -}}
{{- include "trimtab.image" (list (index . 0) (include "trimtab.queryImageValues" . | fromYaml)) -}}
{{- end -}}

{{- define "trimtab.queryPullPolicy" -}}
{{- (include "trimtab.queryImageValues" . | fromYaml).pullPolicy -}}
{{- end -}}

{{- define "trimtab.checkpointClaim" -}}
{{- $all := include "trimtab.query" . | fromYaml -}}
{{- if $all.checkpoint.existingClaim -}}
{{- $all.checkpoint.existingClaim -}}
{{- else if $all.checkpoint.size -}}
{{- printf "%s-checkpoint" (include "trimtab.queryName" .) -}}
{{- end -}}
{{- end -}}

{{/* Spark's settings, in both modes. `sparkConf` of the query comes last, so it may change any of them. */}}
{{- define "trimtab.sparkConf" -}}
{{- $root := index . 0 -}}
{{- $all := include "trimtab.query" . | fromYaml -}}
{{- $conf := dict
  "spark.sql.warehouse.dir" "/tmp/spark-warehouse"
  "spark.jars.ivy" "/tmp/.ivy2"
  "spark.speculation" "false"
  "spark.authenticate" "true"
  "spark.authenticate.secret.file" "/etc/trimtab/spark-auth/secret"
  "spark.network.crypto.enabled" "true"
  "spark.io.encryption.enabled" "true"
  "spark.kubernetes.executor.deleteOnTermination" "true"
-}}
{{- $local := "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1" -}}
{{- if $all.state.storageClass -}}
{{- $local = "spark.kubernetes.executor.volumes.persistentVolumeClaim.spark-local-dir-1" -}}
{{- $_ := set $conf (printf "%s.options.claimName" $local) "OnDemand" -}}
{{- $_ := set $conf (printf "%s.options.storageClass" $local) $all.state.storageClass -}}
{{- end -}}
{{- $_ := set $conf (printf "%s.options.sizeLimit" $local) $all.state.size -}}
{{- $_ := set $conf (printf "%s.mount.path" $local) "/var/trimtab/local" -}}
{{- $_ := set $conf (printf "%s.mount.readOnly" $local) "false" -}}
{{- mergeOverwrite $conf (get ($all.definition.spark | default dict) "config" | default dict) ($all.sparkConf | default dict) | toYaml -}}
{{- end -}}

{{/* The file that the driver runs: the definition, with what only the chart knows. Takes root, query, Spark's part. */}}
{{- define "trimtab.queryFile" -}}
{{- $root := index . 0 -}}
{{- $query := index . 1 -}}
{{- $pair := list $root $query -}}
{{- $all := include "trimtab.query" $pair | fromYaml -}}
{{- $location := $all.checkpoint.uri | default (printf "file:///checkpoint/%s" (include "trimtab.queryShort" $pair)) -}}
{{- $file := mergeOverwrite (deepCopy $query.definition) (dict
  "spark" (index . 2)
  "redis" (include "trimtab.redisUrl" $root)
  "checkpoint" $location
  "query" (dict "name" $query.name)
) -}}
{{- toYaml $file -}}
{{- end -}}

{{/* Environment, mounts and volumes of driver and executors alike. */}}
{{- define "trimtab.queryEnv" -}}
{{- $root := index . 0 -}}
{{- $all := include "trimtab.query" . | fromYaml -}}
- name: HOME
  value: /tmp
- name: NUMBA_CACHE_DIR
  value: /tmp/numba
{{ include "trimtab.redisEnv" (list $root "query") }}
{{- with $all.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "trimtab.queryEnvFrom" -}}
{{- $all := include "trimtab.query" . | fromYaml -}}
{{- with $all.checkpoint.credentialsSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end -}}

{{- define "trimtab.queryMounts" -}}
- name: tmp
  mountPath: /tmp
- name: spark-auth
  mountPath: /etc/trimtab/spark-auth
  readOnly: true
{{- if include "trimtab.checkpointClaim" . }}
- name: checkpoint
  mountPath: /checkpoint
{{- end }}
{{- include "trimtab.redisMounts" (index . 0) }}
{{- with (include "trimtab.query" . | fromYaml).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "trimtab.queryVolumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 2Gi}
- name: spark-auth
  secret:
    secretName: {{ include "trimtab.queryName" . }}-spark
    defaultMode: 0440
{{- with include "trimtab.checkpointClaim" . }}
- name: checkpoint
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- include "trimtab.redisVolumes" (list (index . 0) (list "query")) }}
{{- with (include "trimtab.query" . | fromYaml).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The executors' pod template. Spark adds image, resources, command and the local volume. */}}
{{- define "trimtab.executorTemplate" -}}
{{- $root := index . 0 -}}
{{- $all := include "trimtab.query" . | fromYaml -}}
metadata:
  labels:
    {{- include "trimtab.queryPodLabels" . | nindent 4 }}
    app.kubernetes.io/component: executor
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- include "trimtab.pullSecrets" $root | nindent 2 }}
  securityContext:
    {{- include "trimtab.podSecurity" 185 | nindent 4 }}
  {{- with $all.executors.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $all.executors.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  affinity:
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 50
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels:
                {{- include "trimtab.querySelector" . | nindent 16 }}
                app.kubernetes.io/component: executor
  containers:
    - name: spark-kubernetes-executor
      image: {{ include "trimtab.queryImage" . | quote }}
      env:
        # An executor reads no file of a secret before the driver has told it its master, and the driver wants the secret.
        - name: _SPARK_AUTH_SECRET
          valueFrom:
            secretKeyRef:
              name: {{ include "trimtab.queryName" . }}-spark
              key: encoded
        {{- include "trimtab.queryEnv" . | nindent 8 }}
      {{- include "trimtab.queryEnvFrom" . | nindent 6 }}
      securityContext:
        {{- include "trimtab.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "trimtab.queryMounts" . | nindent 8 }}
  volumes:
    {{- include "trimtab.queryVolumes" . | nindent 4 }}
{{- end -}}

{{/* Heap and overhead together, as a quantity: 2g and 512m are 2560Mi. */}}
{{- define "trimtab.memory" -}}
{{- $sum := 0 -}}
{{- range . -}}
{{- $number := regexFind "^[0-9]+" . | int -}}
{{- $sum = add $sum (ternary (mul $number 1024) $number (hasSuffix "g" .)) -}}
{{- end -}}
{{- printf "%dMi" $sum -}}
{{- end -}}
