"""What an optimizer owes the training loops that people have: one function per promise.

Each takes a :class:`~assay.testing.optimizer_bench.Bench`, returns nothing or a remark when the promise is kept, and
raises ``AssertionError`` when it is not. All run on the processor, in seconds together.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from assay.testing.optimizer_bench import Bench, SkipCheckError, bit_equal, save_and_load, state_tensors

__all__ = ["CHECKS"]

Check = Callable[[Bench], str | None]

_HALF = (torch.bfloat16, torch.float16)


def steps_move_the_parameters(bench: Bench) -> None:
    """Steps change every parameter, keep it finite and of its dtype, and bring the loss down."""
    net = bench.net()
    before = [p.detach().clone() for p in net.parameters()]
    losses = bench.train(net, bench.make(net.parameters()), bench.batches(1) * 30)
    for old, new in zip(before, net.parameters(), strict=True):
        assert torch.isfinite(new).all(), "a parameter is not finite after thirty steps"
        assert not torch.equal(old, new), "a parameter did not move in thirty steps"
    assert min(losses[1:]) < losses[0], f"the loss never fell below where it started ({losses[0]:.4g})"


def groups_have_their_own_rate(bench: Bench) -> None:
    """Two groups that differ in nothing but ``lr`` move by different lengths, the larger rate further."""
    net, twin = bench.net(), bench.net()
    rate = bench.make(bench.net().parameters()).param_groups[0].get("lr")
    if rate is None:
        raise SkipCheckError("its groups have no lr")
    groups = [{"params": list(net.parameters())}, {"params": list(twin.parameters()), "lr": float(rate) / 100}]
    optimizer = bench.make(groups)
    both = torch.nn.ModuleList([net, twin])
    start = [p.detach().clone() for p in net.parameters()]
    for batch in bench.batches(3):

        def closure(batch: Any = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = sum(torch.nn.functional.mse_loss(one(batch[0]), batch[1]) for one in both)
            loss.backward()
            return loss

        if bench.needs_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    far = sum(float((p.detach() - s).norm()) for p, s in zip(net.parameters(), start, strict=True))
    near = sum(float((p.detach() - s).norm()) for p, s in zip(twin.parameters(), start, strict=True))
    assert near < far, f"a hundredth of the rate moved by {near:.3g}, the whole rate by {far:.3g}"


def a_group_can_be_added(bench: Bench) -> None:
    """``add_param_group`` in mid-training: the new parameters move, and the state of the old ones stays."""
    net = bench.net()
    parameters = list(net.parameters())
    optimizer = bench.make(parameters[:1])
    data = bench.batches(6)
    bench.train(net, optimizer, data[:3])
    old_state = [tensor.clone() for _, tensor in state_tensors(optimizer)]
    kept = [tensor for _, tensor in state_tensors(optimizer)]
    optimizer.add_param_group({"params": parameters[1:]})
    assert all(torch.equal(a, b) for a, b in zip(old_state, kept, strict=True)), "adding a group changed the state"
    before = [p.detach().clone() for p in parameters]
    bench.train(net, optimizer, data[3:])
    assert all(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True)), "the new group did not move"


def no_gradient_no_step(bench: Bench) -> None:
    """Parameters without a gradient stay as they are, frozen ones too, and a step with no gradient at all is none."""
    net, spare, frozen = bench.net(), bench.net(seed=5), bench.net(seed=6).requires_grad_(False)
    everything = [*net.parameters(), *spare.parameters(), *frozen.parameters()]
    optimizer = bench.make(everything)
    before = [p.detach().clone() for p in (*spare.parameters(), *frozen.parameters())]
    bench.train(net, optimizer, bench.batches(3))
    after = (*spare.parameters(), *frozen.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "a parameter without gradient moved"
    if not bench.needs_closure:
        other = bench.net()
        idle = bench.make(other.parameters())
        start = copy.deepcopy(other)
        idle.step()
        assert bit_equal(start, other), "a step without any gradient moved a parameter"


def a_checkpoint_goes_on(bench: Bench) -> None:
    """``state_dict`` through a file opened with ``weights_only``: the next ten steps agree bit for bit."""
    _checkpoint(bench, torch.float32)


def a_half_precision_checkpoint_goes_on(bench: Bench) -> None:
    """The same for bfloat16 and float16 parameters, whose state keeps its own dtype through loading."""
    for dtype in _HALF:
        _checkpoint(bench, dtype)


def _checkpoint(bench: Bench, dtype: torch.dtype) -> None:
    net, data = bench.net(dtype), bench.batches(15, dtype)
    optimizer = bench.make(net.parameters())
    bench.train(net, optimizer, data[:5])
    saved = save_and_load({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    other = bench.net(dtype, seed=3)
    other.load_state_dict(saved["net"])
    resumed = bench.make(other.parameters())
    resumed.load_state_dict(saved["optimizer"])
    had = {name: tensor.dtype for name, tensor in state_tensors(optimizer)}
    has = {name: tensor.dtype for name, tensor in state_tensors(resumed)}
    assert had == has, f"loading changed the state: {_first_difference(had, has)}"
    bench.train(net, optimizer, data[5:])
    bench.train(other, resumed, data[5:])
    assert bit_equal(net, other), f"ten steps after loading differ, with {dtype} parameters"


def _first_difference(had: dict[str, Any], has: dict[str, Any]) -> str:
    for name in {**had, **has}:
        if had.get(name) != has.get(name):
            return f"{name} was {had.get(name)} and is {has.get(name)}"
    return "nothing"


def a_checkpoint_brings_its_settings(bench: Bench) -> None:
    """The settings of the groups come with the checkpoint, and one of other groups is refused with ``ValueError``."""
    net = bench.net()
    optimizer = bench.make(net.parameters())
    if "lr" in optimizer.param_groups[0]:
        optimizer.param_groups[0]["lr"] = float(optimizer.param_groups[0]["lr"]) / 3
    bench.train(net, optimizer, bench.batches(2))
    saved = save_and_load(optimizer.state_dict())
    resumed = bench.make(bench.net().parameters())
    resumed.load_state_dict(saved)
    for old, new in zip(optimizer.param_groups, resumed.param_groups, strict=True):
        assert old.keys() <= new.keys(), f"lost settings of a group: {sorted(old.keys() - new.keys())}"
        for key in old.keys() - {"params"}:
            assert _same(old[key], new[key]), f"{key} was {old[key]} and is {new[key]}"
    parameters = list(bench.net().parameters())
    two = bench.make([{"params": parameters[:1]}, {"params": parameters[1:]}])
    try:
        two.load_state_dict(saved)
    except ValueError:
        return
    raise AssertionError("a checkpoint of one group was loaded into an optimizer with two")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return bool(torch.as_tensor(a).eq(torch.as_tensor(b)).all())
    return a == b


def copies_go_on(bench: Bench) -> None:
    """``deepcopy`` and ``pickle`` of model and optimizer together continue bit for bit."""
    net, data = bench.net(), bench.batches(9)
    optimizer = bench.make(net.parameters())
    bench.train(net, optimizer, data[:4])
    copies = {"deepcopy": copy.deepcopy((net, optimizer))}
    try:
        copies["pickle"] = pickle.loads(pickle.dumps((net, optimizer)))  # noqa: S301  our own bytes
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(f"it cannot be pickled: {error}") from None
    bench.train(net, optimizer, data[4:])
    for how, (other, resumed) in copies.items():
        bench.train(other, resumed, data[4:])
        assert bit_equal(net, other), f"five steps after {how} differ"


def closures_are_evaluated(bench: Bench) -> None:
    """``step(closure)`` evaluates it with gradients enabled, also under ``no_grad``, and returns its loss."""
    net = bench.net()
    optimizer = bench.make(net.parameters())
    inputs, targets = bench.batches(1)[0]
    calls: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        assert torch.is_grad_enabled(), "the closure is evaluated without gradients"
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        calls.append(float(loss.detach()))
        return loss

    with torch.no_grad():
        returned = optimizer.step(closure)
    assert calls, "the closure was not evaluated"
    assert returned is not None, "step(closure) returned nothing"
    loss = float(torch.as_tensor(returned).detach())
    assert abs(loss - calls[0]) <= 1e-6 * abs(calls[0]), "step(closure) returned another loss"
    if not bench.needs_closure:
        plain = bench.net()
        bench.step(plain, bench.make(plain.parameters()), (inputs, targets))
        same = zip(net.parameters(), plain.parameters(), strict=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in same), "with a closure the step is another"


def _schedulers() -> dict[str, Callable[[torch.optim.Optimizer], Any]]:
    s = torch.optim.lr_scheduler
    return {
        "LambdaLR": lambda o: s.LambdaLR(o, lambda k: 0.9**k),
        "MultiplicativeLR": lambda o: s.MultiplicativeLR(o, lambda k: 0.9),
        "StepLR": lambda o: s.StepLR(o, 2),
        "MultiStepLR": lambda o: s.MultiStepLR(o, [2, 4]),
        "ConstantLR": lambda o: s.ConstantLR(o),
        "LinearLR": lambda o: s.LinearLR(o),
        "ExponentialLR": lambda o: s.ExponentialLR(o, 0.9),
        "PolynomialLR": lambda o: s.PolynomialLR(o),
        "CosineAnnealingLR": lambda o: s.CosineAnnealingLR(o, 5),
        "CosineAnnealingWarmRestarts": lambda o: s.CosineAnnealingWarmRestarts(o, 3),
        "CyclicLR": lambda o: s.CyclicLR(o, 1e-4, 1e-2, step_size_up=2, cycle_momentum=False),
        "OneCycleLR": lambda o: s.OneCycleLR(o, 1e-2, total_steps=8, cycle_momentum=False),
        "ReduceLROnPlateau": lambda o: s.ReduceLROnPlateau(o, patience=0),
        "SequentialLR": lambda o: s.SequentialLR(o, [s.ConstantLR(o), s.ExponentialLR(o, 0.9)], [2]),
        "ChainedScheduler": lambda o: s.ChainedScheduler([s.ConstantLR(o), s.ExponentialLR(o, 0.9)]),
    }


def schedulers_drive_it(bench: Bench) -> None:
    """Every scheduler of ``torch.optim.lr_scheduler`` takes it, and a rate of nearly zero stops it."""
    data = bench.batches(6)
    for name, make in _schedulers().items():
        net = bench.net()
        optimizer = bench.make(net.parameters())
        if "lr" not in optimizer.param_groups[0]:
            raise SkipCheckError("its groups have no lr")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the order of calls, and of epochs given to schedulers
            try:
                scheduler = make(optimizer)
                rates = []
                for batch in data:
                    bench.step(net, optimizer, batch)
                    scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
                    rates.append(float(optimizer.param_groups[0]["lr"]))
            except Exception as error:  # noqa: BLE001  whatever it is, it is this scheduler that fails
                raise AssertionError(f"{name}: {type(error).__name__}: {error}") from None
        assert len(set(rates)) > 1, f"{name} did not change the rate"
    net = bench.net()
    optimizer = bench.make(net.parameters())
    bench.train(net, optimizer, data)
    start = [p.detach().clone() for p in net.parameters()]
    for group in optimizer.param_groups:
        group["lr"] = 1e-30
    bench.train(net, optimizer, data[:1])
    moved = max(float((p.detach() - s).abs().max()) for p, s in zip(net.parameters(), start, strict=True))
    assert moved <= 1e-6, f"with a rate of 1e-30 a parameter moved by {moved:.3g}"


def gradient_scaler_and_autocast(bench: Bench) -> None:
    """Under ``autocast`` with ``GradScaler`` it trains, and a step with infinite gradients is left out."""
    if bench.needs_closure:
        raise SkipCheckError("GradScaler takes no closures")
    net = bench.net()
    optimizer = bench.make(net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for k, (inputs, targets) in enumerate(bench.batches(4)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(net(inputs).float(), targets)
        scaler.scale(loss).backward()
        before = [p.detach().clone() for p in net.parameters()]
        if k == 2:
            next(net.parameters()).grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
        assert same == (k == 2), "a step with infinite gradients was taken" if k == 2 else "a scaled step was left out"


def foreach_is_the_plain_loop(bench: Bench) -> None:
    """``foreach=True`` and ``foreach=False`` agree to rounding."""
    nets = [bench.net(torch.float64), bench.net(torch.float64)]
    for net, fast in zip(nets, (True, False), strict=True):
        bench.train(net, bench.make(net.parameters(), foreach=fast), bench.batches(10, torch.float64))
    for a, b in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12), f"they differ by {float((a - b).abs().max()):.3g}"


def maximize_mirrors(bench: Bench) -> None:
    """``maximize=True`` on the negated loss takes the same steps."""
    down, up = bench.net(), bench.net()
    bench.train(down, bench.make(down.parameters()), bench.batches(5))
    bench.train(up, bench.make(up.parameters(), maximize=True), bench.batches(5), sign=-1.0)
    for a, b in zip(down.parameters(), up.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7), f"they differ by {float((a - b).abs().max()):.3g}"


def every_shape(bench: Bench) -> None:
    """Numbers, vectors, matrices, convolution kernels and embeddings are trained together."""
    if bench.matrices_only:
        raise SkipCheckError("declared for matrices only")
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (1,), (4,), (3, 4), (4, 3), (1, 7), (2, 3, 3, 3), (2, 3, 2, 2, 2)]
    tensors = [torch.nn.Parameter(1 + torch.rand(shape, generator=generator)) for shape in shapes]
    optimizer = bench.make(tensors)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum(((p - 0.1) ** 2).sum() for p in tensors)
        loss.backward()
        return loss

    before = [p.detach().clone() for p in tensors]
    for _ in range(3):
        if bench.needs_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    for shape, old, new in zip(shapes, before, tensors, strict=True):
        assert torch.isfinite(new).all(), f"a parameter of shape {shape} is not finite"
        assert not torch.equal(old, new), f"a parameter of shape {shape} did not move"


def half_precision(bench: Bench) -> None:
    """Parameters in bfloat16, float16 and float64 stay in their dtype and finite."""
    for dtype in (*_HALF, torch.float64):
        net = bench.net(dtype)
        bench.train(net, bench.make(net.parameters()), bench.batches(5, dtype))
        for p in net.parameters():
            assert p.dtype == dtype, f"a parameter became {p.dtype} from {dtype}"
            assert torch.isfinite(p).all(), f"a {dtype} parameter is not finite after five steps"


def _works_or_says(bench: Bench, parameter: torch.nn.Parameter, gradient: torch.Tensor, word: str) -> str:
    before = parameter.detach().clone()
    try:
        optimizer = bench.make([parameter])
        parameter.grad = gradient

        def closure() -> torch.Tensor:
            parameter.grad = gradient
            return torch.zeros(())

        optimizer.step(closure) if bench.needs_closure else optimizer.step()
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        if word not in str(error).lower():
            raise AssertionError(f"the error does not say {word!r}: {error}") from None
        if not torch.equal(before, parameter.detach()):
            raise AssertionError("it raised after it had moved the parameter") from None
        return f"refused: {' '.join(str(error).split())[:80]}"
    dense = parameter.detach()
    assert torch.isfinite(torch.view_as_real(dense) if dense.is_complex() else dense).all(), "not finite"
    assert not torch.equal(before, dense), "nothing moved and nothing was said"
    return "works"


def complex_gradients(bench: Bench) -> str:
    """Complex parameters are trained, or refused with an error that says so."""
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(4, 3, generator=generator, dtype=torch.complex64)
    return _works_or_says(bench, torch.nn.Parameter(value.clone()), value.conj().clone() + 1, "complex")


def sparse_gradients(bench: Bench) -> str:
    """Sparse gradients are taken, or refused with an error that says so."""
    parameter = torch.nn.Parameter(torch.ones(6, 3))
    gradient = torch.sparse_coo_tensor(
        torch.tensor([[1, 4]]), torch.ones(2, 3), (6, 3), check_invariants=True
    ).coalesce()
    return _works_or_says(bench, parameter, gradient, "sparse")


def compiled_step(bench: Bench) -> str | None:
    """``torch.compile`` of the step gives the same steps, or is refused with a reason."""
    if bench.needs_closure:
        raise SkipCheckError("a step that evaluates the model is not compiled alone")
    plain, other = bench.net(), bench.net()
    data = bench.batches(4)
    first, second = bench.make(plain.parameters()), bench.make(other.parameters())
    step = torch.compile(second.step, backend="eager")
    for batch in data:
        bench.step(plain, first, batch)
        second.zero_grad()
        torch.nn.functional.mse_loss(other(batch[0]), batch[1]).backward()
        try:
            step()
        except Exception as error:  # noqa: BLE001  dynamo raises many kinds
            torch._dynamo.reset()
            words = " ".join(str(error).split())
            assert "compile" in words.lower(), f"compiling fails without a reason that says so: {words[:120]}"
            return f"refused: {words[:80]}"
    torch._dynamo.reset()
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), f"they differ by {float((a - b).abs().max()):.3g}"
    return None


def accumulated_gradients(bench: Bench) -> None:
    """Two halves of a batch accumulated before the step are one batch."""
    if bench.needs_closure:
        raise SkipCheckError("the closure decides what a gradient is")
    whole, halves = bench.net(torch.float64), bench.net(torch.float64)
    data = bench.batches(5, torch.float64)
    bench.train(whole, bench.make(whole.parameters()), data)
    optimizer = bench.make(halves.parameters())
    for inputs, targets in data:
        optimizer.zero_grad()
        for part in (slice(0, 8), slice(8, 16)):
            (torch.nn.functional.mse_loss(halves(inputs[part]), targets[part]) / 2).backward()
        optimizer.step()
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-8), f"they differ by {float((a - b).abs().max()):.3g}"


def nan_gradients(bench: Bench) -> str:
    """A nan in one gradient does what the documentation says, and reaches no other parameter's dtype or shape."""
    net = bench.net()
    optimizer = bench.make(net.parameters())
    (inputs, targets), *rest = bench.batches(3)
    bench.train(net, optimizer, rest)
    before = copy.deepcopy(net)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        net.first.grad[0, 0] = torch.nan
        return loss

    try:
        if bench.needs_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    except (ValueError, RuntimeError, FloatingPointError, ArithmeticError) as error:
        seen = "raises"
        if "nan" not in str(error).lower() and "finite" not in str(error).lower():
            raise AssertionError(f"the error does not say why: {error}") from None
    else:
        poisoned = any(torch.isnan(p).any() for p in net.parameters())
        seen = "propagates" if poisoned else "skips"
    if seen in ("raises", "skips"):
        assert bit_equal(before, net) or seen == "skips", "it raised after it had moved a parameter"
    wanted = bench.nan_gradients
    assert seen == wanted, f"it {seen}, and is documented as {wanted!r}"
    return seen


def memory_does_not_grow(bench: Bench) -> None:
    """Over a thousand steps neither the state nor the number of tensors grows."""
    net = bench.net()
    optimizer = bench.make(net.parameters())
    data = bench.batches(4)

    def size() -> tuple[int, int]:
        gc.collect()
        state = sum(tensor.numel() * tensor.element_size() for _, tensor in state_tensors(optimizer))
        return state, sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor)

    bench.train(net, optimizer, data * 25)
    early = size()
    bench.train(net, optimizer, data * 225)
    late = size()
    assert late[0] <= early[0], f"the state grew from {early[0]} to {late[0]} bytes between steps 100 and 1000"
    assert late[1] <= early[1] + 8, f"there were {early[1]} tensors after 100 steps and {late[1]} after 1000"


def hooks_are_called(bench: Bench) -> None:
    """Hooks before and after the step are called once per step."""
    net = bench.net()
    optimizer = bench.make(net.parameters())
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    bench.train(net, optimizer, bench.batches(2))
    assert called == ["before", "after"] * 2, f"hooks were called like this in two steps: {called}"


def processes_agree(bench: Bench) -> None:
    """Two processes with DistributedDataParallel over gloo agree bit for bit, and with one process on all data."""
    from joblib import Parallel, delayed

    with tempfile.TemporaryDirectory() as folder:
        found = Parallel(n_jobs=2, backend="loky", pre_dispatch="all", batch_size=1)(
            delayed(_rank)(rank, bench, Path(folder, "store").as_uri()) for rank in range(2)
        )
    first, second = (torch.load(io.BytesIO(part), weights_only=True) for part in found)
    assert all(torch.equal(first[key], second[key]) for key in first), "the two processes differ"
    net = bench.net(torch.float64)
    bench.train(net, bench.make(net.parameters()), bench.batches(4, torch.float64))
    for key, value in net.state_dict().items():
        wide = float((value - first[key]).abs().max())
        assert torch.allclose(value, first[key], rtol=1e-6, atol=1e-8), f"one process differs by {wide:.3g}"


def _rank(rank: int, bench: Bench, store: str) -> bytes:
    import datetime

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60)
    )
    try:
        net = bench.net(torch.float64)
        model = torch.nn.parallel.DistributedDataParallel(net)
        optimizer = bench.make(model.parameters())
        half = slice(8 * rank, 8 * rank + 8)
        bench.train(model, optimizer, [(x[half], y[half]) for x, y in bench.batches(4, torch.float64)])
        file = io.BytesIO()
        torch.save(net.state_dict(), file)
        return file.getvalue()
    finally:
        torch.distributed.destroy_process_group()


CHECKS: tuple[Check, ...] = (
    steps_move_the_parameters,
    groups_have_their_own_rate,
    a_group_can_be_added,
    no_gradient_no_step,
    a_checkpoint_goes_on,
    a_half_precision_checkpoint_goes_on,
    a_checkpoint_brings_its_settings,
    copies_go_on,
    closures_are_evaluated,
    schedulers_drive_it,
    gradient_scaler_and_autocast,
    foreach_is_the_plain_loop,
    maximize_mirrors,
    every_shape,
    half_precision,
    complex_gradients,
    sparse_gradients,
    compiled_step,
    accumulated_gradients,
    nan_gradients,
    memory_does_not_grow,
    hooks_are_called,
    processes_agree,
)
"""All checks, in the order in which they run."""
