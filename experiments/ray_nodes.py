"""Two machines of a Ray cluster on one: the second has its own network, name and, if asked for, its own disk.

python -m experiments.ray_nodes     # one run by two processes, one on each machine; needs root, for the network
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

FIRST, SECOND = "10.213.7.1", "10.213.7.2"  # on a link between two namespaces of this machine
NAMESPACE, LINK, PEER = "coattend-grid", "coattend0", "coattend1"
PORT = 6399
NAME = "second"  # the host name of the second machine
START = "--num-cpus=1 --object-store-memory=100000000 --disable-usage-stats --block"
LIMIT = 60.0  # seconds until a machine has joined
RAY = str(Path(sys.executable).with_name("ray"))


class Machine:
    """A machine of the cluster: `ray start` and all processes below it."""

    def __init__(self, command: str) -> None:
        silent = subprocess.DEVNULL
        self.process = subprocess.Popen(shlex.split(command), stdout=silent, stderr=silent)

    def kill(self) -> int:
        """Kill all its processes with SIGKILL; return their number."""
        pids = descendants(self.process.pid)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        return len(pids)


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


@contextmanager
def linked_namespace(address: str) -> Iterator[None]:
    """A network namespace with a link to this one and a route to its address; needs root."""
    commands = (
        f"ip netns add {NAMESPACE}",
        f"ip link add {LINK} type veth peer name {PEER} netns {NAMESPACE}",
        f"ip addr add {FIRST}/24 dev {LINK}",
        f"ip link set {LINK} up",
        f"ip -n {NAMESPACE} addr add {SECOND}/24 dev {PEER}",
        f"ip -n {NAMESPACE} link set {PEER} up",
        f"ip -n {NAMESPACE} link set lo up",
        f"ip -n {NAMESPACE} route add {address} via {FIRST}",
    )
    try:
        for command in commands:
            subprocess.run(shlex.split(command), check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=False)  # and with it the link


@contextmanager
def two_machines(apart: Path | None = None) -> Iterator[tuple[str, Machine, Machine]]:
    """Start a cluster of two machines with a processor each; yields its address and both.

    ``apart`` is a folder that the second machine does not share with the first.
    """
    with ExitStack() as stack:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of this cluster alone
        host = _answer("print(ray.util.get_node_ip_address())")  # where programs here expect the first machine
        stack.enter_context(linked_namespace(host))
        address = f"{host}:{PORT}"
        head = Machine(f"{RAY} start --head --node-ip-address={host} --port={PORT} --include-dashboard=false {START}")
        stack.callback(head.kill)
        _await_members(address, 1)
        own_disk = "" if apart is None else f"mount -t tmpfs none {shlex.quote(str(apart))} && "
        started = f"{RAY} start --address={address} --node-ip-address={SECOND} {START}"
        inside = f"hostname {NAME} && {own_disk}exec {started}"
        second = Machine(f"ip netns exec {NAMESPACE} unshare --uts --mount sh -c {shlex.quote(inside)}")
        stack.callback(second.kill)
        _await_members(address, 2)
        yield address, head, second


def _await_members(address: str, number: int) -> None:
    """Wait until so many machines are in the cluster."""
    count = (
        f"ray.init(address={address!r}, logging_level='ERROR', log_to_driver=False); "
        "print(sum(node['Alive'] for node in ray.nodes()))"
    )
    deadline = time.monotonic() + LIMIT
    while _answer(count) != str(number):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster at {address} did not get {number} machines within {LIMIT:.0f} s.")
        time.sleep(1)


def _answer(program: str) -> str:
    """Return what a program prints last, in a process of its own: Ray reads the token when it is imported."""
    asked = subprocess.run(
        [sys.executable, "-c", f"import ray; {program}"], capture_output=True, text=True, check=False
    )
    return asked.stdout.split()[-1] if asked.stdout.split() else ""


def main() -> int:
    """Train one run by two processes, one on each machine, and print what the grid prints and what the run recorded."""
    settings = ("epochs=2", "train_images=256", "test_images=100")
    words = ["compare", "p4cnn:width=2", *(word for setting in settings for word in ("--set", setting))]
    with tempfile.TemporaryDirectory(prefix="grid-") as root, two_machines() as (address, _, _):
        words += ["--folder", root, "--nodes", "2", "--on", "ray", "--address", address]
        ended = subprocess.run([sys.executable, "-m", "coattend", *words], check=False)
        for path in Path(root).rglob("run.json"):
            print(json.loads(path.read_text())["arithmetic"])
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
