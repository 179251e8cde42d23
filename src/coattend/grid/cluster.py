"""Jobs on a Ray cluster; the only module that imports Ray."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from coattend.grid.network import free_port
from coattend.grid.process import LOG, MISTAKE, Ending
from coattend.grid.remote import Started, attempt_events, bring_back, marker_in, run_files
from coattend.models.records import MachineError
from coattend.train.job import Job

REACH = 10.0  # seconds within which a cluster has to answer


@contextmanager
def ray_pool(address: str | None, cpus: int, gpus: int, jobs: Sequence[Job]) -> Iterator[RayPool]:
    """Connect to a cluster, or start one on this machine, for these jobs; then leave it or stop it."""
    for name, number, least in (("cpus", cpus, 1), ("gpus", gpus, 0)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}.")
    if address is not None:
        _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    own: dict[str, Any] = {} if address is not None else {"include_dashboard": False}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"cannot connect to Ray at {address or 'this machine'}: {_refusal(error)}") from error
    with ExitStack() as stack:
        stack.callback(ray.shutdown)
        markers = {root: stack.enter_context(marker_in(root)) for root in {job.root for job in jobs}}
        pool = RayPool(cpus, gpus, markers)
        for job in jobs:
            if (reason := pool.lacks(job)) is not None:
                raise ValueError(f"{reason}; lower --cpus, --gpus, --devices or --nodes.")
        yield pool


def _check_reachable(address: str) -> None:
    """Raise if nobody listens at an address, since Ray would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise ValueError(f"--address is auto or HOST:PORT, got {address!r}.")
    try:
        socket.create_connection((host, int(port)), REACH).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"cannot connect to Ray at {address}: {reason}; check --address.") from error


def _refusal(error: BaseException) -> str:
    """Return why a cluster could not be reached, and what to do where the cause is known."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ray.exceptions.AuthenticationError) or "InvalidAuthToken" in str(cause):
            return (
                "it expects a token; set RAY_AUTH_MODE=token, and its token in RAY_AUTH_TOKEN or the file that "
                "RAY_AUTH_TOKEN_PATH names."
            )
        cause = cause.__cause__ or cause.__context__
    return str(error).partition("\n")[0].rstrip(".") + "; check --address, or leave it out to start Ray here."


class RayPool:
    """A cluster, which starts as many jobs as it has room for; each process of a run has ``cpus`` and ``gpus``."""

    def __init__(self, cpus: int, gpus: int, markers: Mapping[Path, Path]) -> None:
        self.cpus, self.gpus, self.markers = cpus, gpus, markers

    def has_room(self, active: int) -> bool:
        """Return True: the cluster queues what does not fit yet."""
        return True

    def start(self, job: Job) -> RayAttempt:
        """Submit a job; one of several processes gets a placement group with a bundle for each machine."""
        if (reason := self.lacks(job)) is not None:
            raise OSError(reason)
        marker, job = self.markers[job.root], replace(job, root=job.root.absolute())
        return RayAttempt(job, marker, self.cpus, self._share(job))

    def close(self) -> None:
        """Do nothing: Ray ends its own processes."""

    def lacks(self, job: Job) -> str | None:
        """Return which machines the cluster does not have, and for which Ray would wait forever; None if it has all."""
        share = self._share(job)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fitting = [node for node in nodes if all(node.get(name, 0.0) >= amount for name, amount in share.items())]
        if len(fitting) >= job.nodes:
            return None
        wanted = " and ".join(f"{amount:g} {name}" for name, amount in share.items() if amount)
        return f"{job.name} needs {job.nodes} machines with {wanted}; of {len(nodes)} on Ray, {len(fitting)} have that"

    def _share(self, job: Job) -> dict[str, float]:
        """The resources of a job on each machine."""
        return {"CPU": float(self.cpus * job.devices), "GPU": float(self.gpus * job.devices)}


class RayAttempt:
    """An attempt at a job on a cluster: a task for each machine, which report what happens to their processes."""

    def __init__(self, job: Job, marker: Path, threads: int, share: Mapping[str, float]) -> None:
        self.job, self.marker, self.threads, self.share = job, marker, threads, share
        self.where = ""
        self.endings: dict[int, Ending] = {}
        self.tasks: dict[int, Any] = {}
        self.ended: list[Any] = []  # a task that nobody refers to could be cancelled while it cleans up
        self.group = self.meeting = None
        if job.devices * job.nodes > 1:
            bundle = {name: amount for name, amount in share.items() if amount}
            self.group = placement_group([bundle] * job.nodes, strategy="STRICT_SPREAD")
            self.meeting = self._on_bundle(0, _meeting_point, max_retries=0).remote()
        else:
            self.tasks[0] = self._task(0, {})

    def is_running(self) -> bool:
        """Return whether the first process has started."""
        return bool(self.where)

    def ending(self) -> Ending | None:
        """Take over what the tasks have reported; return how the attempt ended, None before."""
        if self.meeting is not None:
            lost = self._meet()
            if lost is not None:
                self.stop()
                return lost
        for machine, task in list(self.tasks.items()):
            self._receive(machine, task)
        failed = [ending for ending in self.endings.values() if not ending.is_success]
        if not failed and len(self.endings) < self.job.nodes:
            return None
        self.stop()
        mistakes = [ending for ending in failed if ending.code == MISTAKE]  # of which lost peers are a consequence
        return (mistakes or failed or [self.endings[0]])[0]

    def stop(self) -> None:
        """End all processes now and give back the resources."""
        for task in self.tasks.values():
            ray.cancel(task, force=True)
        self.tasks.clear()
        if self.group is not None:
            remove_placement_group(self.group)
            self.group = None

    def _meet(self) -> Ending | None:
        """Start the processes of all machines when it is known where they meet."""
        assert self.meeting is not None
        ready, _ = ray.wait([self.meeting], timeout=0)
        if not ready:
            return None
        try:
            host, port = ray.get(self.meeting)
        except ray.exceptions.RayError as error:
            return _lost(error)
        self.meeting = None
        for machine in range(self.job.nodes):
            group = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "NODE_RANK": str(machine)}
            self.tasks[machine] = self._task(machine, group)
        return None

    def _task(self, machine: int, environment: Mapping[str, str]) -> Any:
        files = run_files(self.job.folder.path) if machine == 0 else {}
        log = LOG if machine == 0 else f"log{machine}.txt"
        task = self._on_bundle(machine, attempt_events, max_retries=0, num_returns="streaming")
        return task.remote(self.job, self.threads, self.marker, files, environment, log)

    def _on_bundle(self, machine: int, function: Callable[..., Any], **options: Any) -> Any:
        if self.group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self.group, machine)
        cpus, gpus = self.share["CPU"], self.share["GPU"]
        return ray.remote(num_cpus=cpus, num_gpus=gpus, **options)(function)

    def _receive(self, machine: int, task: Any) -> None:
        """Take over all events of a task that are there; the last is its ending, after which it cleans up by itself."""
        while machine in self.tasks and ray.wait([task], timeout=0)[0]:
            try:
                event = ray.get(next(task))
                if isinstance(event, dict):
                    bring_back(event, self.job.folder.path)
            except ray.exceptions.RayError as error:
                event = _lost(error)
            except OSError as error:
                reason = f"cannot bring back {error.filename or self.job.folder.path}: {error.strerror or error}"
                event = Ending(MachineError.exit_code, reason)
                ray.cancel(task, force=True)
            if isinstance(event, Started):
                self.where = self.where or event.where
            elif isinstance(event, Ending):
                self.endings[machine] = event
                self.ended.append(self.tasks.pop(machine))


def _meeting_point() -> tuple[str, int]:
    """Return the address of this machine and a free port on it."""
    return ray.util.get_node_ip_address(), free_port()


def _lost(error: ray.exceptions.RayError) -> Ending:
    """Return the ending of a process whose worker or machine is gone."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        code = MISTAKE if isinstance(cause, ValueError) else MachineError.exit_code
        return Ending(code, str(cause))
    return Ending(None, f"lost by Ray: {type(error).__name__}: {str(error).partition('.')[0].strip()}")
