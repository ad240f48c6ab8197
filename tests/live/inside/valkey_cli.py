"""`valkey-cli [--tls --cacert FILE] --user NAME ping`, with the password in REDISCLI_AUTH: all that the chart uses.

It is a probe's command, which has little time: so it speaks the protocol itself, and imports next to nothing.
"""

import os
import socket
import sys


def words(*texts: str) -> bytes:
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(text), text.encode()) for text in texts)


given = sys.argv[1:]
connection = socket.create_connection(("127.0.0.1", 6379), timeout=5)
if "--tls" in given:
    import ssl

    context = ssl.create_default_context(cafile=given[given.index("--cacert") + 1])
    # As in valkey-cli: the authority is checked, not the name.
    context.check_hostname = False
    connection = context.wrap_socket(connection)
user = given[given.index("--user") + 1]
connection.sendall(words("AUTH", user, os.environ["REDISCLI_AUTH"]) + words(given[-1]))
answer = b""
while answer.count(b"\r\n") < 2:
    more = connection.recv(4096)
    if not more:
        break
    answer += more
print(answer.decode().replace("\r\n", "\n").replace("+", ""), end="")
