"""What is claimed of first-order methods on the hard bilevel instances."""

from __future__ import annotations

from assay.lab import Claim

__all__ = ["CLAIMS", "METHODS"]

METHODS = {
    "F2SA": "penalty_f2sa",
    "F2SA, accelerated": "nesterov_inner_penalty",
    "F2SA, single loop": "f2sa_single_loop",
    "value function": "value_function_gd",
    "finite differences": "finite_difference_hvp",
}


def _method_claims() -> tuple[Claim, ...]:
    """The claims about methods, each for every one; the best at the steps of theory is the accelerated one."""
    claims = []
    for letter, name in zip("abcde", METHODS, strict=True):
        # the value function is too slow for the few calls of the quick size
        sizes = ("full",) if name == "value function" else ("quick", "full")
        claims.append(
            Claim(
                f"C2{letter}",
                f"{name} does not beat the lower bound at any step size: largest lower bound over calls",
                "bound_over_calls",
                name,
                "<=",
                1.0,
                "paper, Theorem 1",
                reduce="max",
            )
        )
        claims.append(
            Claim(
                f"C2{letter}'",
                "and moves no coordinate that it had not been shown",
                "violations",
                name,
                "<=",
                0.0,
                "by construction",
                reduce="max",
            )
        )
        claims.append(
            Claim(
                f"C4{letter}",
                f"calls of {name}, with the best of five steps from 1 to 100 times theory, grow faster than kappa^1.5",
                "slope_in_kappa",
                name,
                ">=",
                1.5,
                "paper: upper bounds grow like kappa^4, or kappa^3.5 with acceleration",
                sizes=sizes,
            )
        )
        claims.append(
            Claim(
                f"C4{letter}'",
                "and their ratio to the lower bound grows: at the largest kappa where it arrives over the smallest",
                "ratio_growth",
                name,
                ">=",
                1.0,
                "derived: the upper bounds grow faster than the lower one",
                sizes=sizes,
            )
        )
    claims.append(
        Claim(
            "C2f",
            "the walker, too, moves no coordinate that it had not been shown",
            "violations",
            "chain walker",
            "<=",
            0.0,
            "by construction",
            reduce="max",
        )
    )
    claims.append(
        Claim(
            "C4f",
            "with steps of up to 1e12 times that of theory, too, the ratio of the best method to the lower bound grows",
            "ratio_growth_any_step",
            "F2SA, single loop",
            ">=",
            1.0,
            "ours: what the upper bounds would let one expect",
        )
    )
    return tuple(claims)


CLAIMS = (
    Claim(
        "C1",
        "the walker moves the last variable after exactly T n + 2 calls: largest deviation",
        "walker_deviation",
        "chain walker",
        "<=",
        0.0,
        "derived: two more than the lower bound",
        reduce="max",
    ),
    Claim(
        "C3a",
        "the lower bound grows like kappa^1.5 (eps = .05, kappa 100 to 6400): slope at least",
        "lower_slope_kappa",
        "chain walker",
        ">=",
        1.45,
        "paper, Theorem 1, with the effect of rounding",
    ),
    Claim(
        "C3b",
        "and at most",
        "lower_slope_kappa",
        "chain walker",
        "<=",
        1.75,
        "paper, Theorem 1, with the effect of rounding",
    ),
    Claim(
        "C3c",
        "and like eps^-2: slope at least",
        "lower_slope_eps",
        "chain walker",
        ">=",
        -2.1,
        "paper, Theorem 1",
    ),
    Claim("C3d", "and at most", "lower_slope_eps", "chain walker", "<=", -1.9, "paper, Theorem 1"),
    *_method_claims(),
    Claim(
        "C5a",
        "with noise, the median calls of the walker over 50 runs are at least the bound: ratio",
        "median_over_bound",
        "chain walker",
        ">=",
        1.0,
        "paper, Theorem 2",
        reduce="min",
    ),
    Claim(
        "C5b",
        "the bound with noise grows like kappa^2.5 (eps = .05, sigma = 1000): slope at least",
        "noisy_slope_kappa",
        "chain walker",
        ">=",
        2.5,
        "paper, Theorem 2, with the effect of rounding",
    ),
    Claim(
        "C5c",
        "and at most",
        "noisy_slope_kappa",
        "chain walker",
        "<=",
        2.9,
        "paper, Theorem 2, with the effect of rounding",
    ),
    Claim(
        "C5d",
        "and like eps^-4: slope at least",
        "noisy_slope_eps",
        "chain walker",
        ">=",
        -4.1,
        "paper, Theorem 2",
    ),
    Claim("C5e", "and at most", "noisy_slope_eps", "chain walker", "<=", -3.9, "paper, Theorem 2"),
    Claim(
        "C6",
        "where some variable is below its scale the hypergradient is at least eps: smallest over eps, 20000 points",
        "lemma_over_eps",
        "chain walker",
        ">=",
        1.0,
        "paper, lemma of Theorem 1",
        reduce="min",
    ),
    Claim(
        "P1",
        "a call is at least 20 times faster than with dense matrices, at n = 50 and T = 80 (200 at the full size)",
        "dense_over_banded",
        "chain walker",
        ">=",
        20.0,
        "target",
        timed=True,
    ),
    Claim(
        "P2",
        "thousands of calls per second with a thousand lower variables, on the processor's clock",
        "kilocalls_per_second",
        "chain walker",
        ">=",
        50.0,
        "target",
        timed=True,
    ),
    Claim(
        "P3",
        "the time of a call grows at most like (n T)^1.1",
        "time_slope",
        "chain walker",
        "<=",
        1.1,
        "target",
        timed=True,
    ),
)
