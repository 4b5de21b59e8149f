"""What the layer and the dual ascent cost: time against a loop, growth with the pieces, and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

from assay.lab import Measurement, interleave

__all__ = ["measure_forward", "measure_growth", "measure_memory"]


def measure_forward(measurement: Measurement, samples: int, pieces: int, repeats: int) -> None:
    """Values of the layer against a loop over its pieces, in single precision."""
    layer, x = _layer(samples, pieces)
    timings = interleave(
        {"loop": lambda: _loop(layer, x), "layer": lambda: _forward(layer, x)}, repeats=repeats, clock="cpu"
    )
    ratio = timings.ratio("loop", "layer")
    case = f"S={samples} J={pieces} d=8"
    measurement.add("forward_speedup", ratio.median, case=case)
    measurement.add("forward_speedup_lower", ratio.lower, case=case)
    measurement.add("forward_speedup_upper", ratio.upper, case=case)
    measurement.add("forward_seconds", timings.median("layer"), case=case)
    difference = (timings.answers["loop"] - timings.answers["layer"]).abs().max()
    measurement.add("forward_difference", float(difference), case=case)


def measure_growth(measurement: Measurement, samples: int, several: tuple[int, ...]) -> None:
    """How the time of a pass grows with the number of pieces: exponent."""
    layers = {str(pieces): _layer(samples, pieces) for pieces in several}
    timings = interleave(
        {name: lambda layer=layer, x=x: _forward(layer, x) for name, (layer, x) in layers.items()},
        repeats=9,
        clock="cpu",
    )
    seconds = [timings.median(str(pieces)) for pieces in several]
    slope = float(np.polyfit(np.log(several), np.log(seconds), 1)[0])
    measurement.add("growth", slope)
    measurement.add("growth_deviation", abs(slope - 1.0))
    measurement.add_curve(
        "time of a pass",
        several,
        seconds,
        case=f"S={samples} d=8",
        x_label="pieces",
        y_label="CPU seconds",
        x_log=True,
        y_log=True,
    )


def measure_memory(measurement: Measurement, samples: int, pieces: int) -> None:
    """Peak memory of a pass and of a dual ascent by minibatches, in processes of their own."""
    seen = _in_a_process(_FORWARD, samples, 4096)
    measurement.add("forward_peak", seen["bytes"] / (4.0 * 4096 * 4096), case="chunk=4096 J=4096")
    seen = _in_a_process(_ASCENT, samples, pieces)
    measurement.add("ascent_megabytes", seen["bytes"] / 1e6, case=f"n={samples} J={pieces}")
    measurement.add("ascent_gap", seen["gap"], case=f"n={samples} J={pieces}")


def _layer(samples: int, pieces: int) -> tuple[Any, Any]:
    import torch

    from assay.transport import GCFLayer

    generator = torch.Generator().manual_seed(0)
    y, x = torch.randn(pieces, 8, generator=generator), torch.randn(samples, 8, generator=generator)
    return GCFLayer("dot", y, intercept=torch.rand(pieces, generator=generator)), x


def _forward(layer: Any, x: Any) -> Any:
    import torch

    with torch.no_grad():
        return layer(x)


def _loop(layer: Any, x: Any) -> Any:
    """The same, a piece at a time."""
    import torch

    with torch.no_grad():
        best = torch.full((len(x),), -torch.inf)
        for y, b in zip(layer.y, layer.intercept, strict=True):
            best = torch.maximum(best, (x * y).sum(-1) - b)
        return best


def _in_a_process(code: str, *arguments: int) -> dict[str, float]:
    command = [sys.executable, "-c", _PEAK + code, *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout.strip().splitlines()[-1])


_PEAK = """
import json, pathlib, resource, sys, warnings

import numpy as np
import torch

torch.set_num_threads(1)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def resident():
    statm = pathlib.Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else peak()

first, second = map(int, sys.argv[1:])
"""

_FORWARD = """
from assay.transport import GCFLayer

layer, x = GCFLayer("dot", torch.randn(second, 8)), torch.randn(first, 8)
with torch.no_grad():
    layer(x[:10])
    before = resident()
    layer(x)
print(json.dumps({"bytes": peak() - before}))
"""

_ASCENT = """
from assay.transport import transport_map

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(first, 2)), rng.normal(size=(second, 2)) * [2.0, 0.5]
warnings.simplefilter("ignore")
transport_map(X[:50], Y[:20], max_iter=2)
before = resident()
result = transport_map(X, Y, max_iter=500, rng=0)
print(json.dumps({"bytes": peak() - before, "gap": result.gap / result.primal}))
"""
