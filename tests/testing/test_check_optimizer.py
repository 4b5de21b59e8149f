import copy

import pytest
import torch

from assay.games.goma_optimizer import GOMA
from assay.optim import SpectraAdamW, SpectraSignum
from assay.testing import OptimizerContractError, check_optimizer, optimizer_checks

SLOW = {"processes_agree", "memory_does_not_grow", "compiled_step"}


def adamw(params, **options):
    return torch.optim.AdamW(params, lr=1e-2, **options)


def sgd(params, **options):
    return torch.optim.SGD(params, lr=1e-2, momentum=0.9, **options)


def muon(params, **options):
    return torch.optim.Muon(params, lr=1e-2, **options)


def run(factory, *names, **options):
    """What some checks say: None when passed, the remark, or the failure."""
    said = {}
    for name, check in optimizer_checks(factory, **options):
        if name in names or not names:
            try:
                said[name] = check()
            except Exception as error:  # noqa: BLE001  whatever it is, the check fails
                said[name] = f"FAILED: {error}"
    return said if len(names) != 1 else said[names[0]]


def all_but_slow(factory, **options):
    return {name: said for name, said in run(factory, **options).items() if name not in SLOW}


def failed(said):
    return sorted(name for name, words in said.items() if (words or "").startswith("FAILED"))


@pytest.mark.processes
def test_sgd_keeps_all_of_it():
    report = check_optimizer(sgd)
    assert not report.failures
    assert "SGD: 23 of 23 passed" in str(report)


def test_what_adamw_does_not_keep():
    # The square of a small gradient, and eps = 1e-8, are zero in float16.
    names = [name for name, _ in optimizer_checks(adamw) if name not in SLOW]
    said = run(adamw, *names)
    assert failed(said) == ["half_precision"]
    assert "torch.float16 parameter is not finite" in said["half_precision"]
    assert said["sparse_gradients"].startswith("refused")


def test_what_muon_does_not_keep():
    names = [name for name, _ in optimizer_checks(muon) if name not in SLOW]
    said = run(muon, *names, matrices_only=True)
    assert failed(said) == []
    assert said["foreach_is_the_plain_loop"] == "skipped: the factory takes no foreach"
    assert "only supports 2D" in run(muon, "every_shape")


@pytest.mark.parametrize("make, fails", [(SpectraAdamW, ["half_precision"]), (SpectraSignum, [])])
def test_spectra_keeps_it(make, fails):
    names = [name for name, _ in optimizer_checks(make) if name not in SLOW]
    said = run(lambda params, **options: make(params, lr=1e-2, **options), *names)
    assert failed(said) == fails  # eps = 1e-8 is zero in float16, as in AdamW


def test_goma_keeps_it_but_for_its_anchor():
    names = [name for name, _ in optimizer_checks(GOMA) if name not in SLOW]
    said = run(lambda params, **options: GOMA(params, lr=0.1, **options), *names)
    # it moves towards its anchor whatever the rate
    assert failed(said) == ["schedulers_drive_it"]
    assert "with a rate of 1e-30" in said["schedulers_drive_it"]


# ------------------------------------------------------------------ optimizers with one fault each


class Plain(torch.optim.Optimizer):
    """Gradient descent with a running mean, right in everything; the faults derive from it."""

    def __init__(self, params, lr=0.05, maximize=False):
        super().__init__(params, {"lr": lr, "maximize": maximize})

    def mean(self, parameter):
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        return state["mean"]

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.move(parameter, group)
        return loss

    def move(self, parameter, group):
        if parameter.grad.is_sparse:
            raise RuntimeError("sparse gradients are not supported")
        mean = self.mean(parameter)
        sign = -1 if group["maximize"] else 1
        mean.mul_(0.9).add_(parameter.grad, alpha=0.1 * sign)
        parameter.sub_(mean, alpha=group["lr"])


class OneRate(Plain):
    def move(self, parameter, group):
        super().move(parameter, self.param_groups[0])


class NegatesNothing(Plain):
    def move(self, parameter, group):
        super().move(parameter, {**group, "maximize": False})


class MovesFrozen(Plain):
    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.mul_(0.99)
        return loss


class HiddenState(Plain):
    """Its state is not in ``state``, and lost in checkpoints."""

    def __init__(self, params, **options):
        self.means = {}
        super().__init__(params, **options)

    def mean(self, parameter):
        return self.means.setdefault(id(parameter), torch.zeros_like(parameter))


class WideState(Plain):
    """A mean in float32 beside bfloat16 parameters, which loading casts."""

    def mean(self, parameter):
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter, dtype=torch.float32)
        return state["mean"]

    def move(self, parameter, group):
        if parameter.grad.is_sparse:
            raise RuntimeError("sparse gradients are not supported")
        sign = -1 if group["maximize"] else 1
        mean = self.mean(parameter)
        mean.mul_(0.9).add_(parameter.grad.float(), alpha=0.1 * sign)
        parameter.sub_((group["lr"] * mean).to(parameter.dtype))


class BlindClosure(Plain):
    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            closure()
        return super().step()


class ForgetsLoss(Plain):
    def step(self, closure=None):
        super().step(closure)


class OwnRate(Plain):
    def move(self, parameter, group):
        super().move(parameter, {**group, "lr": group.setdefault("first_lr", group["lr"])})


class Grows(Plain):
    def move(self, parameter, group):
        self.state[parameter].setdefault("past", []).append(parameter.grad.clone())
        super().move(parameter, group)


class Leaks(Plain):
    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.kept = []

    def move(self, parameter, group):
        super().move(parameter, group)
        self.kept.append(parameter.grad)


class Replaces(Plain):
    def move(self, parameter, group):
        super().move(parameter, group)
        if parameter.ndim == 0:
            parameter.fill_(torch.nan)


class MovesThenRaises(Plain):
    def move(self, parameter, group):
        if parameter.grad.is_sparse:
            parameter.add_(1)
            raise RuntimeError("sparse gradients are not supported")
        super().move(parameter, group)


class SaysNothing(Plain):
    def move(self, parameter, group):
        if not parameter.grad.is_sparse:
            super().move(parameter, group)


class Unpicklable(Plain):
    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.callback = lambda: None

    def __getstate__(self):
        return {**super().__getstate__(), "callback": self.callback}


class Cleans(Plain):
    def move(self, parameter, group):
        parameter.grad = parameter.grad.nan_to_num() if not parameter.grad.is_sparse else parameter.grad
        super().move(parameter, group)


def test_the_plain_one_passes():
    assert failed(run(Plain, *[name for name, _ in optimizer_checks(Plain) if name not in SLOW])) == []


@pytest.mark.parametrize(
    "optimizer, check, words",
    [
        (OneRate, "groups_have_their_own_rate", "a hundredth of the rate"),
        (NegatesNothing, "maximize_mirrors", "differ by"),
        (MovesFrozen, "no_gradient_no_step", "without gradient moved"),
        (HiddenState, "a_checkpoint_goes_on", "ten steps after loading differ"),
        (HiddenState, "copies_go_on", "no attribute 'means'"),
        (WideState, "a_half_precision_checkpoint_goes_on", "was torch.float32 and is torch.bfloat16"),
        (BlindClosure, "closures_are_evaluated", "without gradients"),
        (ForgetsLoss, "closures_are_evaluated", "returned nothing"),
        (OwnRate, "schedulers_drive_it", "with a rate of 1e-30"),
        (Grows, "memory_does_not_grow", "the state grew"),
        (Leaks, "memory_does_not_grow", "tensors after 100 steps and"),
        (Replaces, "every_shape", "is not finite"),
        (MovesThenRaises, "sparse_gradients", "after it had moved"),
        (SaysNothing, "sparse_gradients", "nothing was said"),
        (Unpicklable, "copies_go_on", "cannot be pickled"),
        (Cleans, "nan_gradients", "it skips, and is documented as 'propagates'"),
    ],
)
def test_every_fault_is_found(optimizer, check, words):
    said = run(optimizer, check)
    assert (said or "").startswith("FAILED"), f"{check} said {said}"
    assert words in said


def test_failures_are_listed_together_and_can_be_expected():
    with pytest.raises(OptimizerContractError, match=r"OwnRate fails 1 of 23 checks") as caught:
        check_some(OwnRate)
    assert [result.name for result in caught.value.report.unexpected] == ["schedulers_drive_it"]
    report = check_some(OwnRate, expected_failures=["schedulers_drive_it"])
    assert [result.name for result in report.failures] == ["schedulers_drive_it"]
    with pytest.warns(UserWarning, match="OwnRate fails"):
        check_some(OwnRate, on_failure="warn")
    assert check_some(OwnRate, on_failure="ignore").unexpected


def check_some(factory, **options):
    """All checks, those that take long replaced by nothing."""
    import assay.testing.optimizer_contract as contract

    def quick(bench):
        return None

    checks = []
    for check in contract.CHECKS:
        if check.__name__ in SLOW:
            stand_in = copy.copy(quick)
            stand_in = type(quick)(quick.__code__, quick.__globals__, check.__name__)
            checks.append(stand_in)
        else:
            checks.append(check)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract, "CHECKS", tuple(checks))
        return check_optimizer(factory, **options)


def test_an_expected_failure_that_passes_is_reported():
    report = check_some(Plain, expected_failures=["hooks_are_called"], on_failure="ignore")
    (result,) = report.failures
    assert "expected to fail, and passes" in result.remark
    assert report.unexpected


def test_bad_input():
    with pytest.raises(ValueError, match="expected_failures must be names of checks"):
        check_optimizer(Plain, expected_failures=["flies"])
    with pytest.raises(ValueError, match="on_failure"):
        check_optimizer(Plain, on_failure="cry")
    with pytest.raises(ValueError, match="nan_gradients"):
        list(optimizer_checks(Plain, nan_gradients="explodes"))
    with pytest.raises(TypeError, match="factory must be callable"):
        list(optimizer_checks(3))


def test_the_random_state_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    run(sgd, "steps_move_the_parameters", "copies_go_on", "every_shape")
    assert torch.equal(before, torch.get_rng_state())
