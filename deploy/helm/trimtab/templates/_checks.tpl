{{/* What the schema cannot say: values that exclude each other. Each message names the field, its value and a remedy. */}}
{{- define "trimtab.checks" -}}
{{- if and .Values.valkey.enabled .Values.externalRedis.url -}}
{{- fail (printf "\n\nexternalRedis.url = %q: cannot be combined with valkey.enabled = true. Set valkey.enabled=false to use that Redis, or leave externalRedis.url empty to use the chart's own.\n" .Values.externalRedis.url) -}}
{{- end -}}
{{- if .Values.valkey.enabled -}}
{{- range $field := list "existingSecret" "caSecret" -}}
{{- with get $.Values.externalRedis $field -}}
{{- fail (printf "\n\nexternalRedis.%s = %q: is for a Redis of your own, and valkey.enabled = true. Set valkey.enabled=false, or use valkey.existingSecret and valkey.tlsSecret.\n" $field .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.externalRedis.caSecret (hasPrefix "redis:" .Values.externalRedis.url) -}}
{{- fail (printf "\n\nexternalRedis.caSecret = %q: has no meaning without TLS. Write rediss:// in externalRedis.url, or leave it out.\n" .Values.externalRedis.caSecret) -}}
{{- end -}}
{{- if not (or .Values.valkey.enabled .Values.externalRedis.url) -}}
{{- fail "\n\nexternalRedis.url = \"\": there is no Redis. Give the URL of yours, or set valkey.enabled=true for one of the chart's own.\n" -}}
{{- end -}}
{{- if and (not .Values.keys.existingSecret) (empty .Values.keys.generate) -}}
{{- fail "\n\nkeys.generate = {}: there would be no way in. Name a key and its scope, such as keys.generate.admin=admin, or a Secret in keys.existingSecret.\n" -}}
{{- end -}}
{{- if and .Values.tests.enabled (not .Values.keys.existingSecret) (not (hasKey .Values.keys.generate .Values.tests.keyName)) -}}
{{- fail (printf "\n\ntests.keyName = %q: is not one of the keys in keys.generate (%s). Name one of them, or set tests.enabled=false.\n" .Values.tests.keyName (keys .Values.keys.generate | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and .Values.metrics.enabled (eq (int .Values.metrics.port) 8765) -}}
{{- fail "\n\nmetrics.port = 8765: the API has that port in the manager's pod. Give another one, such as 9765.\n" -}}
{{- end -}}
{{- range $field, $labels := dict "commonLabels" .Values.commonLabels "manager.podLabels" .Values.manager.podLabels -}}
{{- range $label, $_ := $labels -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|part-of|version|managed-by)|helm\\.sh/chart|trimtab\\.io/query)$" $label -}}
{{- fail (printf "\n\n%s[%q]: is set by the chart, which finds its pods by it. Use another label.\n" $field $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "trimtab.checkEnv" (list "manager.extraEnv" .Values.manager.extraEnv) -}}
{{- $taken := dict -}}
{{- $places_taken := dict -}}
{{- range $index, $query := .Values.queries -}}
{{- $name := include "trimtab.queryName" (list $ $query) -}}
{{- if hasKey $taken $name -}}
{{- fail (printf "\n\nqueries[%d].name = %q: there are two queries of this name. Names must differ.\n" $index $query.name) -}}
{{- end -}}
{{- $_ := set $taken $name $query.name -}}
{{- $all := include "trimtab.query" (list $ $query) | fromYaml -}}
{{- include "trimtab.checkEnv" (list (printf "queries[%d].extraEnv (%s)" $index $query.name) $all.extraEnv) -}}
{{- range $all.extraVolumes -}}
{{- if regexMatch "^(tmp|local|query|checkpoint|redis|redis-ca|spark-auth|spark-local-dir-.*)$" .name -}}
{{- fail (printf "\n\nqueries[%d].extraVolumes (%s): %s is a volume of the chart's own. Give it another name.\n" $index $query.name .name) -}}
{{- end -}}
{{- end -}}
{{- $places := 0 -}}
{{- range list $all.checkpoint.uri $all.checkpoint.existingClaim $all.checkpoint.size -}}
{{- if . }}{{ $places = add1 $places }}{{ end -}}
{{- end -}}
{{- if ne (int $places) 1 -}}
{{- fail (printf "\n\nqueries[%d].checkpoint (%s): has %d places. Give exactly one of uri (an object store), existingClaim (a ReadWriteMany claim) and size (of a claim to be made).\n" $index $query.name (int $places)) -}}
{{- end -}}
{{- with $all.checkpoint.uri | trimSuffix "/" -}}
{{- if hasKey $places_taken . -}}
{{- fail (printf "\n\nqueries[%d].checkpoint.uri = %q (%s): is the checkpoint of the query %q, too. Each query needs one of its own.\n" $index $all.checkpoint.uri $query.name (get $places_taken .)) -}}
{{- end -}}
{{- $_ := set $places_taken . $query.name -}}
{{- end -}}
{{- range list "redis" "checkpoint" -}}
{{- if hasKey $query.definition . -}}
{{- fail (printf "\n\nqueries[%d].definition.%s = %q (%s): is filled in by the chart. Leave it out: the Redis is in valkey or externalRedis, the checkpoint in queries[].checkpoint.\n" $index . (toString (get $query.definition .)) $query.name) -}}
{{- end -}}
{{- end -}}
{{- if hasKey ($query.definition.spark | default dict) "master" -}}
{{- fail (printf "\n\nqueries[%d].definition.spark.master (%s): is filled in by the chart: executors are pods. Leave it out.\n" $index $query.name) -}}
{{- end -}}
{{- $named := get ($query.definition.query | default dict) "name" -}}
{{- if and $named (ne (toString $named) $query.name) -}}
{{- fail (printf "\n\nqueries[%d].definition.query.name = %q: is not the query's name %q. Leave it out, or write the same.\n" $index (toString $named) $query.name) -}}
{{- end -}}
{{- if and (eq $all.mode "sparkApplication") (not ($.Capabilities.APIVersions.Has "sparkoperator.k8s.io/v1beta2")) -}}
{{- fail (printf "\n\nqueries[%d].mode = \"sparkApplication\" (%s): this cluster has no sparkoperator.k8s.io/v1beta2. Install kubeflow's spark-operator, or use mode: driver.\n" $index $query.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* No variable twice: Kubernetes would take one of the two, or refuse the pod. Takes the field's name and its value. */}}
{{- define "trimtab.checkEnv" -}}
{{- $seen := dict -}}
{{- range index . 1 -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "\n\n%s: %s is there twice. Leave one of the two out.\n" (index $ 0) .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- if regexMatch "^(TRIMTAB_(SERVE|REDIS).*|HOME|NUMBA_CACHE_DIR|SPARK_LOCAL_DIRS)$" .name -}}
{{- fail (printf "\n\n%s: %s is set by the chart. Leave it out, and use the value that is meant for it (values.yaml).\n" (index $ 0) .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
