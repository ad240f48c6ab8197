"""etcd, API server, controllers and scheduler: the real ones, linked into one program (cluster/main.go)."""

from __future__ import annotations

import secrets
import subprocess
import time
from pathlib import Path
from typing import Final

import yaml

from tests.live.api import Api
from tests.live.network import HOST, SERVICES

PORT: Final = 6443
START_S: Final = 600
"""The API server starts in 10 s on an idle machine."""


class ControlPlane:
    """Runs until `stop`. Everything that it writes is below `directory`."""

    def __init__(self, program: Path, directory: Path) -> None:
        self._program = str(program)
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = directory / "kubeconfig"
        self.authority = directory / "certificates/apiserver.crt"
        directory.mkdir(parents=True)

    def start(self) -> Api:
        where = self._directory
        token = secrets.token_hex(24)
        (where / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        key = where / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        etcd = "http://127.0.0.1:2379"
        self._run(
            "etcd",
            f"--data-dir={where}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--cert-dir={self.authority.parent}",
            f"--token-auth-file={where}/tokens.csv",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={PORT}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--anonymous-auth=false",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
        )
        while not self.authority.exists():
            self.check()
            time.sleep(0.2)
        api = Api(f"https://{HOST}:{PORT}", self.authority, token)
        deadline = time.monotonic() + START_S
        while not api.ready():
            self.check()
            time.sleep(0.2)
            if time.monotonic() > deadline:
                raise RuntimeError(f"kube-apiserver is not ready after {START_S} s: see {where}/kube-apiserver.log")
        self._write_kubeconfig(api.url, token)
        shared = (
            f"--kubeconfig={self.kubeconfig}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        )
        self._run(
            "kube-controller-manager",
            *shared,
            f"--root-ca-file={self.authority}",
            f"--service-account-private-key-file={key}",
            "--use-service-account-credentials",
            # Nobody renews leases of nodes here, and no node is ever lost.
            "--controllers=*,-node-lifecycle-controller",
        )
        self._run("kube-scheduler", *shared)
        return api

    def stop(self) -> None:
        for process in reversed(self._running.values()):
            process.terminate()
        for process in reversed(self._running.values()):
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, name: str, *flags: str) -> None:
        with (self._directory / f"{name}.log").open("wb") as log:
            command = [self._program, name, *flags]
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)

    def check(self) -> None:
        """That every part still runs."""
        for name, process in self._running.items():
            if process.poll() is not None:
                said = (self._directory / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} ended with code {process.returncode}:\n{said[-3000:]}")

    def _write_kubeconfig(self, url: str, token: str) -> None:
        cluster = {"server": url, "certificate-authority": str(self.authority)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "live", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "live", "context": {"cluster": "live", "user": "admin"}}],
            "current-context": "live",
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(yaml.safe_dump(content))
