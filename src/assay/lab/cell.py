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
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.lab.measurement import Measurement
from assay.lab.provenance import code_hash, environment
from assay.lab.study import Study

__all__ = ["Cell", "CellRecord", "CellTimeoutError", "execute"]

Status = Literal["done", "error", "timeout", "crashed", "refused"]

# The name of a contender is part of file names, of which file systems take 255 bytes.
_LONGEST_NAME = 80
# A message may have a whole array in it, and is kept and shown with every failed cell.
_LONGEST_MESSAGE = 20_000


class CellTimeoutError(BaseException):
    """A cell took longer than it may.

    Not an ``Exception``: a study that catches what an incumbent raises must not take this for it.
    """


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
        """Name the cell of a study class.

        Raises
        ------
        ValueError
            If no other process could import the class.
        """
        if study.__module__ == "__main__" or "<locals>" in study.__qualname__:
            raise ValueError(
                f"{study.__qualname__} must be a class at the top of a module that workers can import, "
                f"got one of {study.__module__}"
            )
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
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.contender)[:_LONGEST_NAME].strip("-.") or "contender"
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
        """Last line of the message, the one that says what went wrong, cut to a length that can be shown."""
        lines = self.message.strip().splitlines()
        line = lines[-1].strip() if lines else ""
        return line if len(line) <= 300 else line[:297] + "..."


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
        seconds = time.perf_counter() - started
        if not isinstance(measurement, Measurement):
            raise TypeError(f"measure must return a Measurement, got {type(measurement).__name__}")
        measurement.add("seconds_total", seconds)
        measurement.add("certificates_failed", sum(not c.holds for _, c in measurement.certificates))
        facts = environment(threads, study_class.contender(cell.contender).library)
    except (Exception, CellTimeoutError, SystemExit) as error:  # noqa: BLE001  it belongs into the record
        timed_out = isinstance(error, CellTimeoutError)
        return CellRecord(
            cell,
            "timeout" if timed_out else "error",
            seconds=time.perf_counter() - started,
            message=str(error) if timed_out else _shortened(traceback.format_exc()),
            code=code,
        )
    return CellRecord(cell, "done", measurement, seconds, "", code, facts)


def _shortened(message: str) -> str:
    """The beginning and the end of a message that is very long."""
    if len(message) <= _LONGEST_MESSAGE:
        return message
    half = _LONGEST_MESSAGE // 2
    return f"{message[:half]}\n... {len(message) - 2 * half} characters left out ...\n{message[-half:]}"


@contextlib.contextmanager
def _pinned(threads: int) -> Iterator[None]:
    """Limit the thread pools that are loaded, so that timings of cells can be compared.

    Those of libraries that the cell imports follow the environment variables that engines set for their workers.
    """
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
    # Once more every second, since an exception that is raised in a callback or a destructor goes nowhere.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # also when the time was up between the end of the cell and the line above
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
