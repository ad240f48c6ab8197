"""The API server, as much of it as a node and a test need: plain HTTPS, lists and patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

Object = dict[str, Any]

_CORE = "/api/v1"
_GROUPS = {
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "storageclasses": "/apis/storage.k8s.io/v1",
}
MERGE = "application/strategic-merge-patch+json"


class Api:
    """One user's view. May be used by several threads."""

    def __init__(self, url: str, authority: Path, token: str) -> None:
        self.url = url
        self._http = httpx.Client(
            base_url=url,
            verify=str(authority),
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=20),
        )

    def ready(self) -> bool:
        try:
            return self._http.get("/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def list(self, kind: str, namespace: str | None = None, **query: str) -> list[Object]:
        answer = self._http.get(_path(kind, namespace), params=query)
        answer.raise_for_status()
        return list(answer.json()["items"])

    def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        answer = self._http.get(_path(kind, namespace, name))
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return dict(answer.json())

    def create(self, kind: str, namespace: str | None, body: Object, *below: str) -> Object:
        answer = self._http.post(_path(kind, namespace, *below), json=body)
        if answer.status_code >= 400:
            raise RuntimeError(f"{kind} {body.get('metadata', {}).get('name')}: {answer.text}")
        return dict(answer.json())

    def patch(self, kind: str, namespace: str | None, *name: str, body: Object) -> bool:
        """Whether it is still there."""
        answer = self._http.patch(_path(kind, namespace, *name), json=body, headers={"Content-Type": MERGE})
        if answer.status_code in (404, 409):
            return False
        answer.raise_for_status()
        return True

    def delete(self, kind: str, namespace: str | None, name: str, uid: str) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        answer = self._http.request("DELETE", _path(kind, namespace, name), json=body)
        if answer.status_code not in (404, 409):
            answer.raise_for_status()


def _path(kind: str, namespace: str | None, *below: str) -> str:
    within = f"/namespaces/{namespace}" if namespace else ""
    return "/".join((f"{_GROUPS.get(kind, _CORE)}{within}/{kind}", *below))
