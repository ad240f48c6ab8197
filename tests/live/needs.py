"""What a platform engineer makes before an install: Secrets, claims, and a Redis elsewhere."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Final

import yaml

from tests.chart.tools import CHART
from tests.live.log_server import make_certificate

ELSEWHERE: Final = "elsewhere"


def needs_of(shape: str, namespace: str, scratch: Path) -> list[str]:
    """Manifests, for each of the shapes that name something that exists already."""
    if shape == "external-redis":
        return _external_redis(namespace, scratch)
    if shape == "small":
        certificate, key = make_certificate(scratch, "valkey", [f"trimtab-valkey.{namespace}.svc"])
        return [_tls(namespace, "valkey-tls", certificate, key)]
    if shape == "queries":
        return [_secret(namespace, "s3-credentials", {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "none"})]
    if shape == "spark-operator":
        return [claim(namespace, "checkpoints")]
    return []


def claim(namespace: str, name: str) -> str:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "nfs",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return _text("v1", "PersistentVolumeClaim", namespace, name, spec=spec)


def _external_redis(namespace: str, scratch: Path) -> list[str]:
    """A server with our users and TLS in another namespace, and what the release must know of it."""
    passwords = {f"{role}-password": secrets.token_hex(20) for role in ("manager", "api", "query", "probe")}
    users = (CHART / "files/users.acl").read_text(encoding="utf-8")
    for name, password in passwords.items():
        users = users.replace(f"{name.partition('-')[0].upper()}_PASSWORD", password)
    certificate, key = make_certificate(scratch, "redis", ["redis.example.com"])
    web = make_certificate(scratch, "web", [f"trimtab.{namespace}.svc"])
    conf = "dir /data\naclfile /etc/redis/users.acl\nport 0\ntls-port 6380\n"
    conf += "tls-cert-file /etc/redis/tls.crt\ntls-key-file /etc/redis/tls.key\n"
    files = {"users.acl": users, "redis.conf": conf, "tls.crt": certificate.read_text(), "tls.key": key.read_text()}
    container = {
        "name": "redis",
        "image": "valkey/valkey:9",
        "command": ["valkey-server", "/etc/redis/redis.conf"],
        "volumeMounts": [{"name": "files", "mountPath": "/etc/redis"}, {"name": "data", "mountPath": "/data"}],
    }
    volumes = [{"name": "files", "secret": {"secretName": "redis"}}, {"name": "data", "emptyDir": {}}]
    pod = {"containers": [container], "volumes": volumes, "securityContext": {"runAsUser": 999, "fsGroup": 999}}
    port = {"selector": {"app": "redis"}, "ports": [{"port": 6380}]}
    keys = {
        name: f"scope: {scope}\nkey: trimtab_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}\n"
        for name, scope in (("ops", "operate"), ("reader", "read"))
    }
    return [
        yaml.safe_dump({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}}),
        _secret(ELSEWHERE, "redis", files),
        _text("v1", "Pod", ELSEWHERE, "redis", labels={"app": "redis"}, spec=pod),
        _text("v1", "Service", ELSEWHERE, "redis", spec=port),
        _secret(namespace, "redis-passwords", passwords),
        _secret(namespace, "redis-ca", {"ca.crt": certificate.read_text()}),
        _secret(namespace, "trimtab-keys", keys),
        _tls(namespace, "trimtab-tls", *web),
    ]


def _secret(namespace: str, name: str, entries: dict[str, str], kind: str = "Opaque") -> str:
    return _text("v1", "Secret", namespace, name, type=kind, stringData=entries)


def _tls(namespace: str, name: str, certificate: Path, key: Path) -> str:
    text = certificate.read_text()
    entries = {"tls.crt": text, "tls.key": key.read_text(), "ca.crt": text}
    return _secret(namespace, name, entries, "kubernetes.io/tls")


def _text(api: str, kind: str, namespace: str, name: str, labels: dict[str, str] | None = None, **rest: Any) -> str:
    meta = {"name": name, "namespace": namespace, "labels": labels or {}}
    return yaml.safe_dump({"apiVersion": api, "kind": kind, "metadata": meta, **rest})
