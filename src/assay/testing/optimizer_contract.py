"""One contract for optimizers: what scikit-learn's ``check_estimator`` is for estimators.

PyTorch says what an optimizer's interface is, and leaves it to everyone to find out in production whether a checkpoint
goes on bit for bit, whether a half-precision state survives loading, or what a frozen parameter does. Here these are
checks that run in seconds, on the optimizers of this library, of PyTorch, and on your own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from assay.testing.optimizer_bench import Bench, SkipCheckError
from assay.testing.optimizer_checks import CHECKS
from assay.validation import check_choice

__all__ = ["CheckResult", "ContractReport", "OptimizerContractError", "check_optimizer", "optimizer_checks"]

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """What came of one check.

    Attributes
    ----------
    name : str
        Name of the check.
    status : {"passed", "failed", "skipped"}
    remark : str
        What was wrong, why it was skipped, or which of several permitted behaviours was seen.
    expected : bool
        Whether the failure had been declared.
    """

    name: str
    status: Status
    remark: str = ""
    expected: bool = False


@dataclass(frozen=True)
class ContractReport:
    """All checks of one optimizer.

    Attributes
    ----------
    optimizer : str
        Its class.
    results : tuple of CheckResult
    """

    optimizer: str
    results: tuple[CheckResult, ...]

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """Checks that failed, declared or not."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def unexpected(self) -> tuple[CheckResult, ...]:
        """Checks that failed and had not been declared."""
        return tuple(result for result in self.failures if not result.expected)

    def __str__(self) -> str:
        lines = [f"{self.optimizer}: {sum(r.status == 'passed' for r in self.results)} of {len(self.results)} passed"]
        lines += [
            f"  {result.status:8}{result.name}{': ' + result.remark if result.remark else ''}"
            for result in self.results
        ]
        return "\n".join(lines)


class OptimizerContractError(AssertionError):
    """An optimizer does not keep the contract; ``report`` has all results.

    Attributes
    ----------
    report : ContractReport
    """

    def __init__(self, report: ContractReport) -> None:
        self.report = report
        failed = "\n".join(f"  {result.name}: {result.remark}" for result in report.unexpected)
        super().__init__(
            f"{report.optimizer} fails {len(report.unexpected)} of {len(report.results)} checks:\n{failed}"
        )


def optimizer_checks(
    factory: Callable[..., torch.optim.Optimizer],
    *,
    needs_closure: bool = False,
    matrices_only: bool = False,
    nan_gradients: Literal["propagates", "raises", "skips"] = "propagates",
) -> Iterator[tuple[str, Callable[[], str | None]]]:
    """The checks one by one, to be run as tests of their own.

    Parameters
    ----------
    factory, needs_closure, matrices_only, nan_gradients
        As for :func:`check_optimizer`.

    Yields
    ------
    name : str
    check : callable
        Takes no argument; raises ``AssertionError`` when the optimizer fails it, and returns a remark or None. A
        check that does not apply returns a remark that begins with ``"skipped"``.

    Examples
    --------
    >>> import torch
    >>> from assay.testing import optimizer_checks
    >>> checks = dict(optimizer_checks(lambda params, **options: torch.optim.SGD(params, lr=0.1, **options)))
    >>> checks["a_checkpoint_goes_on"]()
    """
    check_choice(nan_gradients, "nan_gradients", ("propagates", "raises", "skips"))
    if not callable(factory):
        raise TypeError(f"factory must be callable, got {type(factory).__name__}")
    bench = Bench(factory, bool(needs_closure), bool(matrices_only), nan_gradients)

    def bound(check: Callable[[Bench], str | None]) -> Callable[[], str | None]:
        def run() -> str | None:
            try:
                return check(bench)
            except SkipCheckError as reason:
                return f"skipped: {reason}"

        return run

    for check in CHECKS:
        yield check.__name__, bound(check)


def check_optimizer(
    factory: Callable[..., torch.optim.Optimizer],
    *,
    needs_closure: bool = False,
    matrices_only: bool = False,
    nan_gradients: Literal["propagates", "raises", "skips"] = "propagates",
    expected_failures: Collection[str] = (),
    on_failure: Literal["raise", "warn", "ignore"] = "raise",
) -> ContractReport:
    """Check whether an optimizer does what training loops rely on.

    Parameters
    ----------
    factory : callable
        ``factory(params, **options)`` makes the optimizer from parameters or groups. The options ``foreach`` and
        ``maximize`` are tried; the checks about one that it does not take are skipped.
    needs_closure : bool, default=False
        Whether ``step`` has to be given a closure, as with sharpness-aware and zeroth-order methods.
    matrices_only : bool, default=False
        Whether the optimizer is for parameters with two dimensions alone.
    nan_gradients : {"propagates", "raises", "skips"}, default="propagates"
        What the documentation of the optimizer says about a nan in a gradient: that it gets into the parameters, that
        the step raises an error, or that it is left out.
    expected_failures : collection of str, default=()
        Names of checks that are known to fail. One that passes nevertheless is reported as a failure.
    on_failure : {"raise", "warn", "ignore"}, default="raise"
        What to do when a check fails that was not expected to.

    Returns
    -------
    ContractReport

    Raises
    ------
    OptimizerContractError
        If a check fails and ``on_failure="raise"``; it lists all that failed.
    ValueError
        If a name in ``expected_failures`` is no check.

    Notes
    -----
    All checks run on the processor, in some seconds together; the one that takes longest starts two processes.

    Examples
    --------
    >>> import torch
    >>> from assay.testing import check_optimizer
    >>> def adamw(params, **options):
    ...     return torch.optim.AdamW(params, lr=1e-2, **options)
    >>> report = check_optimizer(adamw)  # doctest: +SKIP
    """
    check_choice(on_failure, "on_failure", ("raise", "warn", "ignore"))
    checks = dict(
        optimizer_checks(factory, needs_closure=needs_closure, matrices_only=matrices_only, nan_gradients=nan_gradients)
    )
    unknown = set(expected_failures) - set(checks)
    if unknown:
        raise ValueError(f"expected_failures must be names of checks, got {sorted(unknown)}; there are {list(checks)}")
    probe = factory([torch.nn.Parameter(torch.zeros(2, 2))])
    results = []
    for name, check in checks.items():
        expected = name in expected_failures
        try:
            remark = check() or ""
        except Exception as error:  # noqa: BLE001  whatever it raises, it fails this check
            words = " ".join(str(error).split()) or "assertion failed"
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            results.append(CheckResult(name, "failed", f"{kind}{words[:300]}", expected))
        else:
            if remark.startswith("skipped"):
                results.append(CheckResult(name, "skipped", remark.removeprefix("skipped: ")))
            elif expected:
                results.append(CheckResult(name, "failed", "it was expected to fail, and passes", expected=False))
            else:
                results.append(CheckResult(name, "passed", remark))
    report = ContractReport(type(probe).__name__, tuple(results))
    if report.unexpected and on_failure == "raise":
        raise OptimizerContractError(report)
    if report.unexpected and on_failure == "warn":
        warnings.warn(str(OptimizerContractError(report)), UserWarning, stacklevel=2)
    return report
