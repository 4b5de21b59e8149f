"""Studies of another distribution, for the tests of the runner: one that is well-behaved, one that is not."""

import ctypes
import os
import signal
import time

from assay.certificate import Certificate
from assay.lab import Claim, Contender, Measurement, Paper, Study

PAPER = Paper("A probe", "N. N.", venue="Tests 2026")


class Steady(Study):
    """Deterministic numbers that take a moment."""

    name = "probe/steady"
    title = "Steady probe"
    summary = "For tests."
    promise = "numbers are numbers"
    interface = "solver"
    method = "assay.lab.interleave"
    paper = PAPER
    contenders = (
        Contender("ours", "method"),
        Contender("theirs", "incumbent", library="numpy"),
        Contender("theirs [tuned]", "incumbent"),
    )
    claims = (
        Claim("C1", "ours is smaller", "norm", "ours", "<=", 1.0, "derived", versus="theirs"),
        Claim("C2", "all certificates hold", "certificates_failed", "ours", "<=", 0, "derived", reduce="max"),
    )
    sizes = {"quick": {"n": 5, "pause": 0.05}, "full": {"n": 50, "pause": 0.2}}
    seeds = {"quick": 4, "full": 2}

    def problem(self, size, rng):
        return rng.normal(size=self.sizes[size]["n"]), self.sizes[size]["pause"]

    def measure(self, contender, problem, rng):
        vector, pause = problem
        time.sleep(pause)
        factor = {"ours": 1.0, "theirs": 2.0, "theirs [tuned]": 1.5}[contender]
        measurement = Measurement()
        measurement.add("norm", factor * float((vector**2).sum()))
        measurement.add("draw", rng.random(), case="a [1]")
        measurement.add_curve("descent", [1, 2, 3], factor / (1 + abs(vector[:3])), y_log=True)
        measurement.certify(Certificate("norm is finite", measurement.scalars[0].value, float("inf")))
        return measurement

    def demonstrate(self):
        return [Certificate("one is at most two", 1, 2)]


class Hostile(Steady):
    """Contenders that break in every way a contender can."""

    name = "probe/hostile"
    contenders = (
        Contender("good", "method"),
        Contender("raises", "incumbent"),
        Contender("dies", "incumbent"),
        Contender("sleeps", "incumbent"),
        Contender("deaf", "incumbent"),
        Contender("returns nothing", "incumbent"),
    )
    claims = ()
    seeds = {"quick": 1, "full": 1}

    def measure(self, contender, problem, rng):
        if contender == "raises":
            raise RuntimeError("a contender that raises")
        if contender == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if contender == "sleeps":
            time.sleep(60)
        if contender == "deaf":  # compiled code that does not return to the interpreter
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            ctypes.CDLL(None).sleep(60)
        if contender == "returns nothing":
            return None
        measurement = Measurement()
        measurement.add("norm", 1.0)
        return measurement


def numbers(out, study=Steady, size="quick"):
    """Everything that was measured, timings aside, in an order that does not depend on the run."""
    from assay.lab import Store, Table  # heavy, and `assay list` imports this module

    rows = Table.load(Store(out), study, size).scalars
    rows = rows[rows["metric"] != "seconds_total"]
    return rows.sort_values(["contender", "seed", "case", "metric"]).reset_index(drop=True)
