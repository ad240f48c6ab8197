"""The page's files: read once, served by name, without a key. They hold no data: what the page shows it asks for with
its user's key.

Only these names exist. A path is looked up, never joined to a directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from api.answers import Headers, HttpAnswer

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
INDEX: Final = "index.html"
_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_HEADERS: Final[Headers] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@cache
def page_files() -> Mapping[str, HttpAnswer]:
    """Path -> the answer to it."""
    found: dict[str, HttpAnswer] = {}
    for file in files("api").joinpath("page").iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is None:
            continue
        is_index = file.name == INDEX
        found["/" if is_index else f"/page/{file.name}"] = _answer(file.read_bytes(), kind, kept=not is_index)
    return found


def page_answer(method: str, path: str, if_none_match: str | None) -> HttpAnswer | None:
    """The file at this path, or None: then the request needs a key like any other."""
    if method not in ("GET", "HEAD"):
        return None
    answer = page_files().get(path)
    if answer is None:
        return None
    tag = dict(answer.headers).get(b"etag", b"").decode()
    if tag and tag in [each.strip().removeprefix("W/") for each in (if_none_match or "").split(",")]:
        return HttpAnswer(304, tuple(each for each in answer.headers if each[0] != b"content-length"), b"")
    return answer if method == "GET" else HttpAnswer(answer.status, answer.headers, b"")


def _answer(body: bytes, kind: bytes, *, kept: bool) -> HttpAnswer:
    """A file that may be kept is asked for again all the same: the files of two versions must not be mixed."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'.encode()
    caching: Headers = ((b"cache-control", b"no-cache"), (b"etag", tag)) if kept else ((b"cache-control", b"no-store"),)
    length = str(len(body)).encode()
    return HttpAnswer(200, ((b"content-type", kind), (b"content-length", length), *caching, *_HEADERS), body)
