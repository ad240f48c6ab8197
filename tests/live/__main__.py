"""`make chart-live`: the chart on a real API server. See README.md beside this file.

python -m tests.live --cluster PROGRAM [--only SHAPE ... | --only query]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import yaml

from tests.chart.tools import SHAPES
from tests.live.story import STARTED, Failed, Story, tell

ROOT: Final = Path(__file__).parents[2]
NODES: Final = 3


def main() -> int:
    names = [path.name.removesuffix("-values.yaml") for path in SHAPES]
    parser = argparse.ArgumentParser(prog="python -m tests.live")
    parser.add_argument("--cluster", type=Path, required=True, help="the program made from cluster/main.go")
    parser.add_argument("--only", action="append", choices=[*names, "query"], help="only this part of the story")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if os.geteuid() != 0:
        print(
            "make chart-live makes namespaces, bridges and mounts: run it as root (sudo make chart-live).",
            file=sys.stderr,
        )
        return 2
    if not given.inside:
        # Processes, mounts and network of their own: whatever happens, nothing of it is left.
        apart = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return subprocess.run(
            [*apart, sys.executable, "-m", "tests.live", *sys.argv[1:], "--inside"], check=False
        ).returncode
    return inside(given.cluster.resolve(), given.only or [*names, "query"])


def look_around(story: Story) -> None:
    """After a failure: what a person would look at."""
    story.kubectl("get", "pods", "--all-namespaces", "-o", "wide")
    story.kubectl("get", "events", "--all-namespaces", "--field-selector", "type=Warning")
    names = story.kubectl(
        "get", "pods", "-A", "-o", "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {end}"
    )
    for name in names.split():
        namespace, _, pod = name.partition("/")
        story.kubectl("--namespace", namespace, "logs", pod, "--tail=15", tried=True)


def inside(program: Path, parts: list[str]) -> int:
    from tests.live.control_plane import ControlPlane
    from tests.live.crds import definitions
    from tests.live.kubelet import Kubelet
    from tests.live.log_server import serve_logs
    from tests.live.network import DNS, DOMAIN, Network
    from tests.live.query import the_query
    from tests.live.shapes import one_shape
    from tests.live.volumes import CLASSES, storage_class

    state = ROOT / "artifacts/live/state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    scratch = state / "scratch"
    scratch.mkdir()
    # Names of Services are resolved here as in a pod.
    resolve = scratch / "resolv.conf"
    resolve.write_text(f"nameserver {DNS}\nsearch svc.{DOMAIN} {DOMAIN}\noptions ndots:5 timeout:2\n")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    real = Path("/etc/resolv.conf").resolve()
    real.parent.mkdir(parents=True, exist_ok=True)
    real.touch()
    subprocess.run(["mount", "--bind", str(resolve), str(real)], check=True)
    network = Network()
    plane = ControlPlane(program, state / "control-plane")
    failure = ""
    try:
        api = plane.start()
        for name in CLASSES:
            api.create("storageclasses", None, storage_class(name))
        kubelet = Kubelet(api, network, state, NODES)
        serve_logs(kubelet, scratch)
        story = Story(plane.kubeconfig, scratch / "home")
        story.title("a cluster: etcd, kube-apiserver, kube-controller-manager, kube-scheduler")
        story.apply(yaml.safe_dump_all(definitions()))
        story.kubectl("version")
        story.kubectl("get", "nodes,storageclasses,customresourcedefinitions")
        plane.check()
        for part in parts:
            path = next((each for each in SHAPES if each.name == f"{part}-values.yaml"), None)
            if path is not None:
                one_shape(path, story, network, scratch)
            else:
                the_query(story)
        tell(f"\nAll of it in {(time.monotonic() - STARTED) / 60:.1f} minutes.")
    except Failed as error:
        failure = str(error)
        plane.check()
        look_around(story)
    finally:
        plane.stop()
    if failure:
        tell(f"\nFAILED: {failure}")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
