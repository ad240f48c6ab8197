"""The custom resources that the chart makes, as far as it makes them: a field that is not here is a typing error.

Written after the definitions of kubeflow's spark-operator (v1beta2) and of the Prometheus operator (v1). Templates of
pods are checked against Kubernetes' own schema.
"""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]
_TEXT: Final[Json] = {"type": "string"}
_TEXTS: Final[Json] = {"type": "object", "additionalProperties": _TEXT}


def _closed(required: str, **properties: Json) -> Json:
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def _resource(spec: Json) -> Json:
    meta = _closed("name namespace labels", name=_TEXT, namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS)
    return _closed("apiVersion kind metadata spec", apiVersion=_TEXT, kind=_TEXT, metadata=meta, spec=spec)


def _role(**more: Json) -> Json:
    memory = {"type": "string", "pattern": "^[0-9]+[mg]$"}
    return _closed(
        "cores memory memoryOverhead serviceAccount template",
        cores={"type": "integer", "minimum": 1},
        memory=memory,
        memoryOverhead=memory,
        serviceAccount=_TEXT,
        template={"type": "object", "required": ["spec"]},
        **more,
    )


RESOURCES: Final[dict[str, Json]] = {
    "SparkApplication": _resource(
        _closed(
            "type mode sparkVersion image mainApplicationFile restartPolicy driver executor",
            type={"enum": ["Java", "Python", "Scala", "R"]},
            pythonVersion={"enum": ["2", "3"]},
            mode={"enum": ["cluster"]},
            sparkVersion=_TEXT,
            image=_TEXT,
            imagePullPolicy=_TEXT,
            imagePullSecrets={"type": "array", "items": _TEXT},
            mainApplicationFile=_TEXT,
            arguments={"type": "array", "items": _TEXT},
            restartPolicy=_closed("type", type={"enum": ["Never", "OnFailure", "Always"]}),
            sparkConf=_TEXTS,
            driver=_role(),
            executor=_role(instances={"type": "integer", "minimum": 1}),
        )
    ),
    "ServiceMonitor": _resource(
        _closed(
            "selector endpoints",
            selector=_closed("matchLabels", matchLabels=_TEXTS),
            jobLabel=_TEXT,
            namespaceSelector=_closed("matchNames", matchNames={"type": "array", "items": _TEXT}),
            endpoints={
                "type": "array",
                "items": _closed(
                    "port",
                    port=_TEXT,
                    path=_TEXT,
                    interval={"type": "string", "pattern": "^[0-9]+(s|m)$"},
                ),
            },
        )
    ),
    "PrometheusRule": _resource(
        _closed(
            "groups",
            groups={
                "type": "array",
                "items": _closed(
                    "name rules",
                    name=_TEXT,
                    interval=_TEXT,
                    rules={
                        "type": "array",
                        "items": {
                            **_closed(
                                "expr",
                                alert=_TEXT,
                                record=_TEXT,
                                expr={"type": ["string", "integer"]},
                                labels=_TEXTS,
                                annotations=_TEXTS,
                                **{"for": _TEXT, "keep_firing_for": _TEXT},
                            ),
                            "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
                        },
                    },
                ),
            },
        )
    ),
}
