"""`trimtab serve`: checks the options; the server is in api/server.py."""

from __future__ import annotations

import argparse

from api.server import ServeSettings, run_server
from commands.remote.commands import redis_url
from trimtab.errors import InvalidInput


def serve(options: argparse.Namespace) -> int:
    for name, path in (("--tls-cert", options.tls_cert), ("--tls-key", options.tls_key)):
        if path is not None and not path.is_file():
            raise InvalidInput(name, str(path), "is not a file", "Give a PEM file.")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidInput(
            "--tls-key" if options.tls_key is None else "--tls-cert",
            None,
            "is missing",
            "Give both --tls-cert and --tls-key.",
        )
    return run_server(
        ServeSettings(
            redis=redis_url(options.redis),
            host=options.host,
            port=options.port,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
            access_log=options.access_log,
            keys=options.keys,
            metrics_host=options.metrics_host,
            metrics_port=options.metrics_port,
        )
    )
