"""Where cells are computed: processes of this machine, or a Ray cluster. A study does not see the difference.

An engine takes a cell and later says what became of it. A worker that dies takes its cell with it, never the
run: the local engine finds out which of the cells in flight was the killer by computing each of them alone.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import multiprocessing.resource_tracker
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from assay.extras import import_extra
from assay.lab.cell import Cell, CellRecord, Status, execute
from assay.lab.provenance import code_hash

__all__ = ["Engine", "LocalEngine", "RayEngine", "make_engine"]

# How long after its time limit a cell may go on in code that cannot be interrupted before its worker is killed.
_GRACE_SECONDS = 20.0


class Engine(abc.ABC):
    """Computes cells somewhere else.

    Parameters
    ----------
    workers : int
        How many cells may be in flight.
    threads : int
        Threads per cell.
    timeout : float, optional
        Seconds per cell.
    """

    def __init__(self, workers: int, threads: int = 1, timeout: float | None = None):
        self.workers = workers
        self.threads = threads
        self.timeout = timeout

    @abc.abstractmethod
    def submit(self, cell: Cell) -> None:
        """Start a cell."""

    @abc.abstractmethod
    def collect(self, patience: float) -> list[CellRecord]:
        """Wait at most ``patience`` seconds for cells in flight and return the records of those that ended."""

    @property
    @abc.abstractmethod
    def capacity(self) -> int:
        """How many more cells may be submitted now."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop all workers at once, whatever they are doing."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalEngine(Engine):
    """Processes on this machine (loky, the process pool of joblib)."""

    def __init__(self, workers: int, threads: int = 1, timeout: float | None = None):
        super().__init__(workers, threads, timeout)
        self._pool: Any = None
        self._flying: dict[Future, tuple[Cell, float]] = {}
        # Cells that were in flight when a worker died: each is computed again, alone, to see which one it is.
        self._suspects: list[Cell] = []
        self._on_trial = False

    @property
    def capacity(self) -> int:
        """How many more cells may be submitted now: none while suspects are tried alone."""
        if self._suspects or (self._on_trial and self._flying):
            return 0
        return self.workers - len(self._flying)

    def submit(self, cell: Cell) -> None:
        """Start a cell."""
        try:
            self._start(cell)
        except BrokenProcessPool:  # a worker has died since the last look
            if self._flying:
                self._suspects.append(cell)  # collect finds out who it was
            else:
                self._kill_pool()
                self._start(cell)

    def _start(self, cell: Cell) -> None:
        code = code_hash(cell.load())
        if self._pool is None:
            self._pool = self._new_pool()
        with _interrupts_postponed():
            future = self._pool.submit(execute, cell, threads=self.threads, timeout=self.timeout, expected_code=code)
        self._flying[future] = (cell, time.monotonic())

    def collect(self, patience: float) -> list[CellRecord]:
        """Wait for cells in flight and return the records of those that ended."""
        if not self._flying:
            self._on_trial = bool(self._suspects)
            if self._suspects:
                self.submit(self._suspects.pop(0))
        alone = len(self._flying) == 1
        done, _ = wait(self._flying, timeout=patience, return_when=FIRST_COMPLETED)
        records, broken = [], False
        for future in done:
            cell, _ = self._flying[future]
            error = future.exception()
            if error is None:
                records.append(future.result())
                del self._flying[future]
            elif isinstance(error, BrokenProcessPool):
                broken = True
            else:  # the record could not be sent back
                records.append(_lost(cell, "error", f"{type(error).__name__}: {error}"))
                del self._flying[future]
        if broken:
            records += self._after_a_death(alone)
        return records + self._overdue()

    def _after_a_death(self, alone: bool) -> list[CellRecord]:
        cells = [cell for cell, _ in self._flying.values()]
        self._flying.clear()
        self._kill_pool()
        if alone:
            why = "the worker process died (out of memory, a crash in compiled code, or killed)"
            return [_lost(cell, "crashed", why) for cell in cells]
        self._suspects += cells
        return []

    def _overdue(self) -> list[CellRecord]:
        """Kill the workers when a cell did not heed its time limit; the other cells in flight start again."""
        if self.timeout is None:
            return []
        limit = time.monotonic() - self.timeout - _GRACE_SECONDS
        overdue = [cell for cell, started in self._flying.values() if started < limit]
        if not overdue:
            return []
        innocent = [cell for cell, started in self._flying.values() if started >= limit]
        self._flying.clear()
        self._kill_pool()
        for cell in innocent:
            self.submit(cell)
        why = f"gave up after {self.timeout:g} s (the worker had to be killed)"
        return [_lost(cell, "timeout", why) for cell in overdue]

    def _new_pool(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        # A worker that goes to sleep between cells would have to import everything again.
        return ProcessPoolExecutor(
            self.workers,
            timeout=None,
            initializer=_start_worker,
            initargs=(os.getpid(), list(sys.path)),
            # torch's profiler, which some studies measure memory with, otherwise prints when it starts and stops
            env=dict.fromkeys(pools, str(self.threads)) | {"KINETO_LOG_LEVEL": "99"},
        )

    def _kill_pool(self) -> None:
        if self._pool is not None:
            threading.excepthook = _without_killed_pools
            self._pool.shutdown(wait=False, kill_workers=True)
            self._pool = None

    def close(self) -> None:
        """Stop all workers at once."""
        self._flying.clear()
        self._suspects.clear()
        self._kill_pool()


@contextlib.contextmanager
def _interrupts_postponed() -> Iterator[None]:
    """Deliver Ctrl-C after the block: workers that are started in it inherit that, and do not die of it half-made."""
    if not hasattr(signal, "pthread_sigmask"):  # pragma: no cover  Windows
        yield
        return
    # The first worker would start it, and starting it unblocks the signal.
    multiprocessing.resource_tracker.ensure_running()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _without_killed_pools(failure: threading.ExceptHookArgs) -> None:
    """Report an exception of a thread, but not that loky's manager misses a cell which the kill took from it."""
    thread = failure.thread.name if failure.thread is not None else ""
    if not (thread == "ExecutorManagerThread" and failure.exc_type is KeyError):
        threading.__excepthook__(failure)


def _start_worker(parent: int, path: Sequence[str]) -> None:
    """Make a worker import what its parent can, leave Ctrl-C to the parent, and die with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    sys.path[:] = path

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="assay-parent-watch").start()


class RayEngine(Engine):
    """A Ray cluster. The source of the studies is shipped to it, and a worker with other code refuses the cell.

    Parameters
    ----------
    workers : int
        How many cells may be in flight.
    threads : int, default=1
        Processors that a cell reserves.
    timeout : float, optional
        Seconds per cell.
    address : str, optional
        Address of the cluster, e.g. ``"ray://head:10001"``, or ``"auto"``. None starts Ray on this machine.
    packages : sequence of str, default=("assay",)
        Top-level packages whose source is shipped.

    Raises
    ------
    MissingExtraError
        If Ray is not installed.
    ConnectionError
        If nobody answers at the address.
    """

    def __init__(
        self,
        workers: int,
        threads: int = 1,
        timeout: float | None = None,
        address: str | None = None,
        packages: Sequence[str] = ("assay",),
    ):
        super().__init__(workers, threads, timeout)
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self._ray = import_extra("ray", extra="ray")
        if address is not None:
            _check_reachable(address)
        thread_variables = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
        local = {} if address else {"num_cpus": workers * threads, "include_dashboard": False}
        self._ray.init(
            address=address,
            log_to_driver=False,
            configure_logging=True,
            logging_level="ERROR",
            runtime_env={
                "py_modules": [str(_source_of(package)) for package in packages],
                "env_vars": thread_variables,
            },
            **local,
        )
        self._task = self._ray.remote(num_cpus=threads, max_retries=0)(execute)
        self._flying: dict[Any, tuple[Cell, float]] = {}

    @property
    def capacity(self) -> int:
        """How many more cells may be submitted now."""
        return self.workers - len(self._flying)

    def submit(self, cell: Cell) -> None:
        """Start a cell."""
        ticket = self._task.remote(
            cell, threads=self.threads, timeout=self.timeout, expected_code=code_hash(cell.load())
        )
        self._flying[ticket] = (cell, time.monotonic())

    def collect(self, patience: float) -> list[CellRecord]:
        """Wait for cells in flight and return the records of those that ended."""
        if not self._flying:
            return []
        done, _ = self._ray.wait(list(self._flying), num_returns=1, timeout=patience)
        records = []
        for ticket in done:
            cell, _ = self._flying.pop(ticket)
            try:
                records.append(self._ray.get(ticket))
            except self._ray.exceptions.WorkerCrashedError as error:
                records.append(_lost(cell, "crashed", f"the worker process died: {error}"))
            except Exception as error:  # noqa: BLE001  what Ray raises for a task it could not run
                records.append(_lost(cell, "error", f"{type(error).__name__}: {error}"))
        return records + self._overdue()

    def _overdue(self) -> list[CellRecord]:
        """Kill the workers of cells that did not heed their time limit, and give up those that found no node."""
        if self.timeout is None:
            return []
        limit = time.monotonic() - self.timeout - _GRACE_SECONDS
        late = [ticket for ticket, (_, submitted) in self._flying.items() if submitted < limit]
        records = []
        for ticket in late:
            cell, _ = self._flying.pop(ticket)
            self._ray.cancel(ticket, force=True)
            why = f"gave up after {self.timeout:g} s (no node was free, or the worker had to be killed)"
            records.append(_lost(cell, "timeout", why))
        return records

    def close(self) -> None:
        """Stop all workers at once."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            for ticket in self._flying:
                self._ray.cancel(ticket, force=True)
        self._flying.clear()
        self._ray.shutdown()


def _lost(cell: Cell, status: Status, why: str) -> CellRecord:
    """Record of a cell that never came back from its worker."""
    return CellRecord(cell, status, message=why, code=code_hash(cell.load()))


def _check_reachable(address: str) -> None:
    """Say at once that nobody answers, where Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # "auto", or something that Ray knows
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConnectionError(f"no Ray cluster answers at {address}: {reason}") from error


def _source_of(package: str) -> Path:
    """Directory of a package, or the file of a module that is not one."""
    module = importlib.import_module(package)
    directories = list(getattr(module, "__path__", []))  # a namespace package has no file
    return Path(directories[0] if directories else str(module.__file__))


def make_engine(
    name: str,
    *,
    workers: int,
    threads: int = 1,
    timeout: float | None = None,
    address: str | None = None,
    packages: Sequence[str] = ("assay",),
) -> Engine:
    """Make an engine by its name, ``"local"`` or ``"ray"``.

    Raises
    ------
    ValueError
        If the name is unknown, or an address is given to the local engine.
    """
    if name == "local":
        if address is not None:
            raise ValueError("address must be None for the local engine; use engine='ray'")
        return LocalEngine(workers, threads, timeout)
    if name == "ray":
        return RayEngine(workers, threads, timeout, address, packages)
    raise ValueError(f"engine must be one of 'local', 'ray', got {name!r}")
