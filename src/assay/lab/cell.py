"""The unit of work: one contender on one problem, and the record of what came of it.

A cell is named by strings and a seed, so it can be sent to any process or machine that has the code, and
:func:`execute` turns it into a record. An exception of a study does not leave :func:`execute`: it becomes a
record with its traceback, since one broken contender must not take the others down.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import re
import signal
import threading
import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.lab.provenance import code_hash, environment
from assay.lab.study import Measurement, Study

__all__ = ["Cell", "CellRecord", "CellTimeoutError", "execute"]

Status = Literal["done", "error", "timeout", "crashed", "refused"]


class CellTimeoutError(Exception):
    """A cell took longer than it may."""


@dataclass(frozen=True, order=True)
class Cell:
    """Name of one unit of work.

    Parameters
    ----------
    study : str
        Name of the study, ``"family/method"``.
    size : str
        A key of the study's ``sizes``.
    contender : str
        Name of one of its contenders.
    seed : int
        Seed of the problem.
    path : str
        Where the class is: ``"module:qualified name"``.
    """

    study: str
    size: str
    contender: str
    seed: int
    path: str = field(compare=False)

    @classmethod
    def of(cls, study: type[Study], size: str, contender: str, seed: int) -> Cell:
        """Name the cell of a study class."""
        return cls(study.name, size, contender, seed, f"{study.__module__}:{study.__qualname__}")

    def load(self) -> type[Study]:
        """Import the study class."""
        module, _, qualified = self.path.partition(":")
        found: Any = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
        return found

    @property
    def file_name(self) -> str:
        """Relative path of the cell's file: readable, and unique whatever the contender is called."""
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.contender).strip("-.") or "contender"
        return f"{self.study}/{self.size}/{readable}-{zlib.crc32(self.contender.encode()):08x}/{self.seed:04d}.parquet"

    def __str__(self) -> str:
        return f"{self.study} [{self.size}] {self.contender}, seed {self.seed}"


@dataclass(frozen=True)
class CellRecord:
    """What came of a cell.

    Parameters
    ----------
    cell : Cell
        Which one.
    status : {"done", "error", "timeout", "crashed", "refused"}
        ``"crashed"`` is a worker that died, ``"refused"`` one that had other code.
    measurement : Measurement
        Empty unless done.
    seconds : float
        Wall time in the worker.
    message : str
        Traceback or explanation; empty when done.
    code : str
        Hash of the code that produced it.
    environment : dict
        Versions, processor, threads.
    """

    cell: Cell
    status: Status
    measurement: Measurement = field(default_factory=Measurement)
    seconds: float = 0.0
    message: str = ""
    code: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    finished: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    @property
    def reason(self) -> str:
        """Last line of the message, the one that says what went wrong."""
        lines = self.message.strip().splitlines()
        return lines[-1] if lines else ""


def execute(cell: Cell, *, threads: int = 1, timeout: float | None = None, expected_code: str = "") -> CellRecord:
    """Compute a cell in this process.

    Parameters
    ----------
    cell : Cell
        What to compute.
    threads : int, default=1
        Threads that BLAS, OpenMP, numba and torch may use.
    timeout : float, optional
        Seconds after which it is given up.
    expected_code : str, default=""
        Hash of the code that the caller has; when this process has another, the cell is refused.

    Returns
    -------
    CellRecord
        Also when the study raised.
    """
    started = time.perf_counter()
    code = expected_code
    try:
        study_class = cell.load()
        code = code_hash(study_class)
        if expected_code and code != expected_code:
            return CellRecord(
                cell,
                "refused",
                message=f"this worker has code {code[:12]} of {cell.study}, the runner has {expected_code[:12]}: "
                "install the same version on all machines",
                code=code,
            )
        with _pinned(threads), _time_limit(timeout):
            study = study_class()
            problem = study.problem(cell.size, study.problem_rng(cell.size, cell.seed))
            measurement = study.measure(
                cell.contender, problem, study.measure_rng(cell.size, cell.seed, cell.contender)
            )
        if not isinstance(measurement, Measurement):
            raise TypeError(f"measure must return a Measurement, got {type(measurement).__name__}")
    except Exception as error:  # noqa: BLE001  whatever a study raises belongs into its record
        status: Status = "timeout" if isinstance(error, CellTimeoutError) else "error"
        message = str(error) if status == "timeout" else traceback.format_exc()
        return CellRecord(
            cell, status, seconds=time.perf_counter() - started, message=message, code=code, environment={}
        )
    seconds = time.perf_counter() - started
    measurement.add("seconds_total", seconds)
    measurement.add("certificates_failed", sum(not c.holds for _, c in measurement.certificates))
    library = study_class.contender(cell.contender).library
    return CellRecord(cell, "done", measurement, seconds, "", code, environment(threads, library))


@contextlib.contextmanager
def _pinned(threads: int) -> Iterator[None]:
    """Limit every thread pool that is loaded now or will be, so that timings of cells can be compared."""
    import sys

    import threadpoolctl

    with threadpoolctl.threadpool_limits(limits=threads):
        for module, setter in (("torch", "set_num_threads"), ("numba", "set_num_threads")):
            if module in sys.modules:
                # numba refuses more threads than it was started with, which is then already the limit
                with contextlib.suppress(ValueError):
                    getattr(sys.modules[module], setter)(threads)
        yield


@contextlib.contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Raise CellTimeoutError in this thread when the time is up, where the platform can."""
    if seconds is None or threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def give_up(*_: object) -> None:
        raise CellTimeoutError(f"gave up after {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
