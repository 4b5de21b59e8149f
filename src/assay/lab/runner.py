"""Run studies: compute the cells that are missing, keep the rest.

A run is a list of cells and a store. A cell that the store has, made by today's code, is reused; one of other code or
of another number of threads is computed again; one that another runner is computing is left to it. Whatever happens to
a run, running it again goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.lab.cell import Cell, CellRecord
from assay.lab.engine import Engine, make_engine
from assay.lab.measurement import Measurement
from assay.lab.provenance import code_hash, packages
from assay.lab.store import Store
from assay.lab.study import Study
from assay.validation import check_integer

__all__ = ["Run", "RunInterruptedError", "plan", "run"]

_POLL_SECONDS = 0.25
_LONGEST_TIMEOUT = 1e8  # three years, which timers of all systems can count


class RunInterruptedError(KeyboardInterrupt):
    """Ctrl-C during a run.

    Attributes
    ----------
    run : Run
        What was done until then; all of it is stored.
    """

    def __init__(self, run: Run):
        super().__init__(f"interrupted: {run.n_finished} of {len(run.cells)} cells are done and stored")
        self.run = run


@dataclass
class Run:
    """What a run did.

    Attributes
    ----------
    cells : tuple of Cell
        All that were asked for.
    computed : list of CellRecord
        Computed by this run.
    n_reused : int
        Found in the store (or computed by another runner meanwhile).
    n_stale : int
        Of those computed, how many replaced a cell of other code or of another number of threads.
    set_aside : list of (pathlib.Path, str)
        Damaged files, and why.
    """

    cells: tuple[Cell, ...]
    computed: list[CellRecord] = field(default_factory=list)
    n_reused: int = 0
    n_stale: int = 0
    set_aside: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def n_finished(self) -> int:
        """Cells that are in the store now."""
        return len(self.computed) + self.n_reused

    @property
    def failures(self) -> list[CellRecord]:
        """Records of the cells that are not done."""
        return [record for record in self.computed if record.status != "done"]


def plan(studies: Iterable[type[Study]], size: str = "quick", seeds: Sequence[int] | None = None) -> tuple[Cell, ...]:
    """List the cells of studies.

    Parameters
    ----------
    studies : iterable of type
        Study classes.
    size : str, default="quick"
        A key of each study's ``sizes``.
    seeds : sequence of int, optional
        Defaults to what each study declares for the size.

    Returns
    -------
    tuple of Cell
        Seeds outermost, so that a run that is stopped has whole comparisons.

    Raises
    ------
    ValueError
        If a study has no such size or contradicts itself, or a seed is negative or missing.
    TypeError
        If a seed is not an integer.
    """
    wanted = None if seeds is None else [check_integer(seed, "seeds", minimum=0) for seed in seeds]
    if wanted == []:
        raise ValueError("seeds must be a non-empty sequence of integers >= 0, got none")
    cells = []
    for study in studies:
        study.check_declarations()
        if size not in study.sizes:
            raise ValueError(f"size must be one of {', '.join(study.sizes)} for {study.name}, got {size!r}")
        chosen = range(study.seeds[size]) if wanted is None else wanted
        cells += [Cell.of(study, size, contender.name, seed) for seed in chosen for contender in study.contenders]
    return tuple(dict.fromkeys(cells))


def run(
    studies: Iterable[type[Study]],
    *,
    size: str = "quick",
    seeds: Sequence[int] | None = None,
    out: str | os.PathLike[str] = "assay-out",
    engine: str | Engine = "local",
    address: str | None = None,
    workers: int | None = None,
    threads: int = 1,
    timeout: float | None = None,
    fresh: bool = False,
    progress: Callable[[Run, CellRecord | None], None] | None = None,
) -> Run:
    """Compute what is missing of the given studies.

    Parameters
    ----------
    studies : iterable of type
        Study classes.
    size : str, default="quick"
        Which of the study's sizes.
    seeds : sequence of int, optional
        Defaults to what each study declares.
    out : path, default="assay-out"
        Directory of the store.
    engine : {"local", "ray"} or Engine, default="local"
        Where cells are computed.
    address : str, optional
        Of the Ray cluster.
    workers : int, optional
        Cells in flight; the number of processors that this process may use, divided by ``threads``, by default.
    threads : int, default=1
        Threads per cell.
    timeout : float, optional
        Seconds per cell.
    fresh : bool, default=False
        Compute every cell again.
    progress : callable, optional
        Called with the run and the record of a cell that just ended (None at the start and for reused cells).

    Returns
    -------
    Run

    Raises
    ------
    ValueError
        If an argument is out of range; nothing has been computed then.
    StoreError
        If the store cannot be written.
    RunInterruptedError
        After Ctrl-C.
    """
    studies = list(studies)
    cells = plan(studies, size, seeds)
    codes = {study.name: code_hash(study) for study in studies}
    if threads < 1 or (workers is not None and workers < 1):
        raise ValueError(f"workers and threads must be at least 1, got {workers} and {threads}")
    if timeout is not None and not 0 < timeout <= _LONGEST_TIMEOUT:
        raise ValueError(f"timeout must be greater than 0 and at most {_LONGEST_TIMEOUT:g} seconds, got {timeout}")
    store = Store(out)
    store.prepare()
    result = Run(cells, set_aside=store.set_aside)
    if isinstance(engine, str):
        if workers is None:
            from joblib import cpu_count  # which respects the limits of a container, as os.cpu_count does not

            workers = max(1, cpu_count() // threads)
        workers = min(workers, len(cells) or 1)  # a process that gets no cell would be started for nothing
        shipped = tuple(dict.fromkeys(package for study in studies for package in packages(study)))
        engine = make_engine(
            engine, workers=workers, threads=threads, timeout=timeout, address=address, packages=shipped
        )
    with engine:
        try:
            _work(engine, store, codes, fresh, result, progress or (lambda *_: None))
        except KeyboardInterrupt:
            raise RunInterruptedError(result) from None
    return result


def _work(
    engine: Engine,
    store: Store,
    codes: dict[str, str],
    fresh: bool,
    result: Run,
    progress: Callable[[Run, CellRecord | None], None],
) -> None:
    waiting = deque(result.cells)
    locks: dict[Cell, contextlib.ExitStack] = {}
    progress(result, None)
    try:
        while waiting or locks:
            busy = 0
            while waiting and engine.capacity > 0 and busy < len(waiting):
                cell = waiting.popleft()
                stack = contextlib.ExitStack()
                if not store.try_lock(cell, stack):
                    waiting.append(cell)
                    busy += 1
                    continue
                locks[cell] = stack
                # Looked up under the lock: another runner may have finished it a moment ago.
                stored = store.read(cell)
                if stored is not None and _reusable(stored, codes[cell.study], engine.threads) and not fresh:
                    result.n_reused += 1
                    locks.pop(cell).close()
                    progress(result, None)
                    continue
                result.n_stale += stored is not None and _is_stale(stored, codes[cell.study], engine.threads)
                engine.submit(cell)
            if not locks:
                time.sleep(_POLL_SECONDS)  # only cells of other runners are left
                continue
            for record in engine.collect(_POLL_SECONDS):
                kept = _store(store, record)
                locks.pop(kept.cell).close()
                result.computed.append(kept)
                progress(result, kept)
    finally:
        for stack in locks.values():
            stack.close()


def _store(store: Store, record: CellRecord) -> CellRecord:
    """Store a record, or one that says why it cannot be stored; the rest of the run goes on."""
    try:
        store.write(record)
    except (TypeError, ValueError, OverflowError) as error:  # what pyarrow and json raise
        message = f"what was measured cannot be stored: {type(error).__name__}: {error}"
        record = dataclasses.replace(record, status="error", measurement=Measurement(), message=message)
        store.write(record)
    return record


def _reusable(record: CellRecord, code: str, threads: int) -> bool:
    """Whether a stored cell need not be computed again; one that failed is tried again."""
    return record.status == "done" and not _is_stale(record, code, threads)


def _is_stale(record: CellRecord, code: str, threads: int) -> bool:
    """Whether a cell was made in another way than it would be now; timings depend on the number of threads."""
    return record.code != code or record.environment.get("threads", threads) != threads
