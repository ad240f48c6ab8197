"""The cluster's network, in a network namespace of its own: a bridge, an address for each pod, Services, DNS.

Nothing of it can be reached from outside, and nothing in it can reach the outside. NetworkPolicies are not enforced.
"""

from __future__ import annotations

import ipaddress
import random
import selectors
import socket
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterable
from typing import Final

from tests.live.api import Object

HOST: Final = "10.244.0.1"
PODS: Final = "10.244.0.0/16"
SERVICES: Final = "10.96.0.0/16"
KUBERNETES: Final = "10.96.0.1"
"""The API server's, which takes the first."""
DNS: Final = "10.96.0.10"
DOMAIN: Final = "cluster.local"
Targets = dict[tuple[str, int], list[tuple[str, int]]]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """Addresses and names. `update` tells it what the cluster has."""

    def __init__(self) -> None:
        ip("link", "set", "lo", "up")
        ip("link", "add", "pods", "type", "bridge")
        ip("address", "add", f"{HOST}/16", "dev", "pods")
        ip("link", "set", "pods", "up")
        ip("address", "add", f"{DNS}/32", "dev", "lo")
        self._free = (str(address) for address in list(ipaddress.ip_network(PODS).hosts())[9:])
        self._lock = threading.Lock()
        self._listening: dict[tuple[str, int], _Proxy] = {}
        self.targets: Targets = {}
        self.names: dict[str, list[str]] = {}
        self.aliases: dict[str, str] = {}
        """Names outside of the cluster -> names in it: a Redis that is not the chart's, for example."""
        names = _Names((DNS, 53), _Question)
        names.network = self
        threading.Thread(target=names.serve_forever, daemon=True).start()

    def join(self, pod: str) -> str:
        """A namespace for a pod, with an address in it."""
        with self._lock:
            address = next(self._free)
        end = f"v{int(ipaddress.ip_address(address)) & 0xFFFF}"
        ip("netns", "add", pod)
        ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", pod)
        ip("link", "set", end, "master", "pods", "up")
        for command in (f"address add {address}/16 dev eth0", "link set eth0 up", "link set lo up"):
            ip("-n", pod, *command.split())
        ip("-n", pod, "route", "add", "default", "via", HOST)
        return address

    def leave(self, pod: str) -> None:
        ip("netns", "delete", pod)

    def update(self, services: Iterable[Object], slices: Iterable[Object]) -> None:
        """Services with an address get a proxy, those without are names of pods; as kube-proxy and CoreDNS have it."""
        targets: Targets = {}
        names: dict[str, list[str]] = {}
        of_service: dict[tuple[str, str], list[Object]] = {}
        for each in slices:
            meta = each["metadata"]
            owner = meta.get("labels", {}).get("kubernetes.io/service-name", "")
            of_service.setdefault((meta["namespace"], owner), []).append(each)
        for service in services:
            namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
            full = f"{name}.{namespace}.svc.{DOMAIN}"
            found = of_service.get((namespace, name), [])
            address = service["spec"].get("clusterIP", "")
            if address in ("", "None"):
                for endpoint in _ready(found):
                    names.setdefault(full, []).extend(endpoint["addresses"])
                    if endpoint.get("hostname"):
                        names[f"{endpoint['hostname']}.{full}"] = endpoint["addresses"]
                continue
            names[full] = [address]
            for port in service["spec"].get("ports", []):
                targets[address, port["port"]] = [
                    (host, entry["port"])
                    for each in found
                    for entry in each.get("ports") or []
                    if entry.get("name", "") == port.get("name", "")
                    for endpoint in _ready([each])
                    for host in endpoint["addresses"]
                ]
        self.targets, self.names = targets, names
        for key in targets.keys() - self._listening.keys():
            subprocess.run(["ip", "address", "add", f"{key[0]}/32", "dev", "lo"], check=False, capture_output=True)
            self._listening[key] = _Proxy(key, self)
        for key in self._listening.keys() - targets.keys():
            self._listening.pop(key).close()

    def resolve(self, name: str) -> list[str] | None:
        name = self.aliases.get(name, name)
        return self.names.get(name)


def _ready(slices: Iterable[Object]) -> list[Object]:
    return [
        endpoint
        for each in slices
        for endpoint in each.get("endpoints") or []
        if endpoint.get("conditions", {}).get("ready", True)
    ]


class _Proxy:
    """Listens at a Service's address and port, and joins each connection with a ready pod."""

    def __init__(self, key: tuple[str, int], network: Network) -> None:
        self._key = key
        self._network = network
        self._listener = socket.create_server(key, backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One pod, by chance. If it does not answer, the connection breaks: kube-proxy does not try another either."""
        targets = self._network.targets.get(self._key)
        with client:
            if not targets:
                return
            try:
                server = socket.create_connection(random.choice(targets), timeout=5)
            except OSError:
                return
            server.settimeout(None)
            with server:
                _pump(client, server)


def _pump(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as ready:
        ready.register(one, selectors.EVENT_READ, other)
        ready.register(other, selectors.EVENT_READ, one)
        while ready.get_map():
            for key, _ in ready.select():
                source, sink = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                try:
                    data = source.recv(65536)
                    if data:
                        sink.sendall(data)
                        continue
                    sink.shutdown(socket.SHUT_WR)
                except OSError:
                    return
                ready.unregister(source)


class _Names(socketserver.ThreadingUDPServer):
    daemon_threads = True
    network: Network


class _Question(socketserver.BaseRequestHandler):
    """Answers questions for IPv4 addresses (RFC 1035): all other questions about a known name have an empty answer."""

    def handle(self) -> None:
        data, sock = self.request
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii", "replace"))
            at += 1 + data[at]
        question = data[12 : at + 5]
        kind = struct.unpack("!H", data[at + 1 : at + 3])[0]
        assert isinstance(self.server, _Names)
        found = self.server.network.resolve(".".join(labels).lower())
        addresses = random.sample(found, len(found)) if found and kind == 1 else []
        code = 0x8180 if found is not None else 0x8183
        answer = data[:2] + struct.pack("!HHHHH", code, 1, len(addresses), 0, 0) + question
        for address in addresses:
            answer += struct.pack("!HHHIH", 0xC00C, 1, 1, 2, 4) + socket.inet_aton(address)
        sock.sendto(answer, self.client_address)
