"""Runs of ``fit`` on a cluster of Dask or Ray, through the interface of ``concurrent.futures``.

Each run is a new Python on a machine of the cluster, with the folders of this process on its path
and the variables of it that decide what torch does. Scripts are read where the run is, so they
stand in a folder that all machines have.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import psutil

from ..errors import UsageError
from .child import NEW_PYTHON, ChildWork, done_elsewhere, request_of

EXPECTED: Final = "a cluster is dask://HOST:PORT or ray://HOST:PORT"
_PATIENCE: Final = 20.0
"""Seconds to wait for the answer of a cluster."""

_MOST_PRINTED: Final = 1 << 20
"""Bytes of what a run printed that come back, the last ones."""

_PREFIXES: Final = ("PYTORCH", "TORCH", "CUDA", "NCCL_")
_NAMES: Final = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@dataclass(frozen=True)
class Cluster:
    """The machines of a cluster, and what gives them work."""

    executor: Executor
    hosts: frozenset[str]
    places: int
    """How many runs there are at a time."""

    def run(self, works: Sequence[ChildWork[Any, Any]]) -> Iterator[tuple[int, Any]]:
        """Do several things on the cluster; when this is closed or fails, those that wait end."""
        futures: dict[Future[Any], int] = {}
        try:
            for index, work in enumerate(works):
                futures[self.executor.submit(_run_there, *_packed(work))] = index
            for future in as_completed(futures):
                yield futures[future], _result(works[futures[future]], future)
        finally:
            for future in futures:
                future.cancel()

    def check_side_by_side(self, count: int) -> None:
        """Refuse ranks that cannot run at the same time, or cannot reach each other."""
        if not self.hosts <= _own_addresses():
            raise UsageError(
                "ranks run side by side on one machine: give a cluster on this one, or leave out"
                " --cluster"
            )
        if self.places < count:
            raise UsageError(
                f"{count} ranks run side by side, and the cluster has room for {self.places}"
                " runs at a time: give it more workers, or leave out --cluster"
            )


@contextmanager
def on_cluster(
    # ``dask://HOST:PORT`` of a scheduler, or ``ray://HOST:PORT`` of a cluster's client server
    address: str,
) -> Iterator[Cluster]:
    """Let the runs of ``fit`` be those of a cluster."""
    # ``ray://HOST`` and ``ray://auto`` are the cluster on this machine. Raises UsageError if there
    # is no such cluster, or if its package is not installed.
    kind, separator, place = address.partition("://")
    if not separator or not place or kind not in _KINDS:
        raise UsageError(f"{EXPECTED}, not {address}")
    module, connected = _KINDS[kind]
    try:
        importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UsageError(
            f"--cluster {kind}:// needs {package}: pip install 'pytorch-memlab[{kind}]'"
        ) from None
    with connected(place) as cluster, done_elsewhere(cluster.run):
        yield cluster


@contextmanager
def _dask(place: str) -> Iterator[Cluster]:
    distributed: Any = importlib.import_module("distributed.client")
    try:
        client = distributed.Client(f"tcp://{place}", timeout=_PATIENCE, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"no scheduler of Dask answers at {place}: {error}") from None
    with client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        if not workers:
            raise UsageError(f"the cluster of Dask at {place} has no worker")
        hosts = frozenset(worker["host"] for worker in workers)
        places = sum(worker["nthreads"] for worker in workers)
        # The same call twice would be one task.
        with client.get_executor(pure=False) as executor:
            yield Cluster(executor, hosts, places)


class _RayExecutor(Executor):
    """Tasks of Ray, of one processor each."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._tasks: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a task once there is a processor for it."""
        task = self._ray.remote(fn).options(max_retries=0).remote(*args, **kwargs)
        future: Future[Any] = task.future()
        self._tasks[future] = task
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - as in Executor
        """End the tasks that have not ended."""
        for future, task in self._tasks.items():
            if not future.done():
                with suppress(Exception):
                    self._ray.cancel(task, force=True)


@contextmanager
def _ray(place: str) -> Iterator[Cluster]:
    ray: Any = importlib.import_module("ray")
    address = "auto" if place == "auto" else f"ray://{place}"
    is_own = not ray.is_initialized()
    if is_own:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # of several kinds, some of them of gRPC
            raise UsageError(f"no cluster of Ray answers at {place}: {error}") from None
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        hosts = frozenset(node["NodeManagerAddress"] for node in nodes)
        with _RayExecutor(ray) as executor:
            yield Cluster(executor, hosts, int(ray.cluster_resources().get("CPU", 0)))
    finally:
        if is_own:
            ray.shutdown()


# A folder of the user that is called "distributed" has no module "client".
_KINDS: Final = {"dask": ("distributed.client", _dask), "ray": ("ray", _ray)}


def _packed(work: ChildWork[Any, Any]) -> tuple[bytes, str, dict[str, str]]:
    """The file that a new Python reads, its folder, and variables of its environment."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) or name in _NAMES
    }
    try:
        return request_of(work), os.getcwd(), environment
    except Exception as error:
        raise UsageError(
            f"the program cannot be sent to the cluster: {error}: run a script, or make what it"
            " uses in the function"
        ) from None


_Outcome: TypeAlias = tuple[int, bytes, bytes]
"""The exit status of a run, its result, and the end of what it printed."""


def _run_there(request: bytes, folder: str, environment: dict[str, str]) -> _Outcome:
    """Do work in a new Python of a machine of the cluster."""
    with tempfile.TemporaryDirectory(prefix="pytorch-memlab-") as own:
        paths = [os.path.join(own, name) for name in ("request", "result")]
        with open(paths[0], "wb") as file:
            file.write(request)
        process = subprocess.run(
            [sys.executable, "-c", NEW_PYTHON, *paths],
            cwd=folder if os.path.isdir(folder) else None,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        content = b""
        with suppress(OSError), open(paths[1], "rb") as file:
            content = file.read()
        return process.returncode, content, process.stdout[-_MOST_PRINTED:]


def _result(work: ChildWork[Any, Any], future: Future[_Outcome]) -> Any:
    try:
        status, content, printed = future.result()
    except Exception as error:
        raise UsageError(
            f"a run on the cluster has ended: {type(error).__name__}: {error}"
        ) from error
    if work.output:
        with open(work.output, "wb") as file:
            file.write(printed)
    return pickle.loads(content) if content else work.lost(status)  # noqa: S301 - our own run


def _own_addresses() -> frozenset[str]:
    """The addresses of this machine."""
    interfaces = psutil.net_if_addrs().values()
    return frozenset(
        {"localhost", *(address.address for interface in interfaces for address in interface)}
    )
