"""`valkey-cli [--tls --cacert FILE] --user NAME ping`, with the password in REDISCLI_AUTH: all that the chart uses."""

import argparse
import os

import redis

parser = argparse.ArgumentParser()
parser.add_argument("--tls", action="store_true")
parser.add_argument("--cacert")
parser.add_argument("--user")
parser.add_argument("command", nargs="+")
given = parser.parse_args()
secure = {"ssl": True, "ssl_ca_certs": given.cacert, "ssl_check_hostname": False} if given.tls else {}
client = redis.Redis(username=given.user, password=os.environ.get("REDISCLI_AUTH"), socket_timeout=5, **secure)
answer = client.execute_command(*given.command)  # type: ignore[no-untyped-call]  # redis has no types for it
print("PONG" if answer is True else answer)
