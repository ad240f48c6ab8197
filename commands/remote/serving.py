"""`trimtab serve`: checks the options; the server is in api/server.py."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

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
    if options.tls_cert is not None:
        _check_certificate(options.tls_cert, options.tls_key)
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


def _check_certificate(certificate: Path, key: Path) -> None:
    """Refuse what OpenSSL would, before anything starts. It must not ask for a password: nobody may be there."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidInput(
            "--tls-cert",
            str(certificate),
            f"cannot be used with --tls-key = {str(key)!r} ({why or error})",
            "Give a certificate and its own key, both as PEM and without a password.",
        ) from None
