"""The manager image's health check: /healthz answers where the environment says that `trimtab serve` listens."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from collections.abc import Mapping
from typing import Final

WAIT_S: Final = 4
ANY_ADDRESS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""A server that listens on all addresses is asked on the loopback one."""


def address(environ: Mapping[str, str]) -> str:
    scheme = "https" if environ.get("TRIMTAB_SERVE_TLS_CERT") else "http"
    host = environ.get("TRIMTAB_SERVE_HOST", "")
    host = ANY_ADDRESS.get(host, host)
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{environ['TRIMTAB_SERVE_PORT']}/healthz"


def main() -> int:
    # The certificate is for the name by which others know this server, and it is asked by its address.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(address(os.environ), timeout=WAIT_S, context=context):
            return 0
    except OSError as problem:
        print(f"{address(os.environ)}: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
