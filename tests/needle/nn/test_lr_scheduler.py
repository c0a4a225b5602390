"""Every schedule of PyTorch beside PyTorch's, alone, together and resumed."""

import inspect
import itertools

import numpy as np
import pytest

import needle as ndl
from needle import optim
from needle.optim import lr_scheduler

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")]

STEPS = 24
SIMPLE = {
    "LambdaLR": {"lr_lambda": lambda n: 1 / (n + 1)},
    "LambdaLR each": {"lr_lambda": [lambda n: 0.9**n, lambda n: 1 + n]},
    "MultiplicativeLR": {"lr_lambda": lambda n: 0.9 + n / 100},
    "MultiplicativeLR each": {"lr_lambda": [lambda n: 0.9, lambda n: 1.1]},
    "StepLR": {"step_size": 5, "gamma": 0.3},
    "MultiStepLR": {"milestones": [3, 9, 9, 20], "gamma": 0.4},
    "ConstantLR": {"factor": 0.3, "total_iters": 7},
    "LinearLR": {"start_factor": 0.2, "end_factor": 0.8, "total_iters": 9},
    "ExponentialLR": {"gamma": 0.85},
    "PolynomialLR": {"total_iters": 40, "power": 1.7},
    "CosineAnnealingLR": {"T_max": 7, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts": {"T_0": 3, "T_mult": 2, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts equal": {"T_0": 5},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 5},
    "CyclicLR halved": {
        "base_lr": [0.01, 0.02],
        "max_lr": [0.2, 0.1],
        "step_size_up": 4,
        "step_size_down": 3,
        "mode": "triangular2",
        "base_momentum": [0.5, 0.6],
        "max_momentum": 0.7,
    },
    "CyclicLR exponential": {
        "base_lr": 0.01,
        "max_lr": 0.2,
        "step_size_up": 4,
        "mode": "exp_range",
        "gamma": 0.9,
        "cycle_momentum": False,
    },
    "CyclicLR scaled": {
        "base_lr": 0.01,
        "max_lr": 0.2,
        "step_size_up": 4,
        "scale_fn": lambda n: 1 / (1 + n),
        "scale_mode": "iterations",
    },
    "OneCycleLR": {"max_lr": 0.9, "total_steps": STEPS + 1},
    "OneCycleLR each": {"max_lr": [0.9, 0.3], "total_steps": STEPS + 1, "three_phase": True},
}
CHAINABLE = ["StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR"]
CHAINABLE += ["CosineAnnealingLR", "MultiplicativeLR", "LambdaLR"]


def pair():
    """An optimizer of two groups of ours, and one of PyTorch's."""
    ours = [{"params": [ndl.Tensor([1.0])]}, {"params": [ndl.Tensor([1.0])], "lr": 0.5}]
    theirs = [{"params": [torch.ones(1)]}, {"params": [torch.ones(1)], "lr": 0.5}]
    options = {"lr": 0.1, "momentum": 0.9}
    return optim.SGD(ours, **options), torch.optim.SGD(theirs, **options)


def made(module, name, optimizer):
    return getattr(module, name.partition(" ")[0])(optimizer, **SIMPLE[name])


def both(name, optimizers):
    modules = (lr_scheduler, torch.optim.lr_scheduler)
    return [made(module, name, each) for module, each in zip(modules, optimizers, strict=True)]


def same(mine, other):
    for name in ("lr", "momentum"):
        ours, theirs = ([group[name] for group in each.param_groups] for each in (mine, other))
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)


def test_every_schedule_is_there_with_pytorchs_arguments():
    theirs = torch.optim.lr_scheduler
    assert set(theirs.__all__) <= set(lr_scheduler.__all__)
    for name in theirs.__all__:
        ours, others = (
            inspect.signature(getattr(module, name).__init__).parameters.values()
            for module in (lr_scheduler, theirs)
        )
        kept = [(p.name, p.default) for p in ours if p.kind is not p.KEYWORD_ONLY]
        assert kept == [(p.name, p.default) for p in others], name
        assert getattr(optim, name, optim.Schedule) is getattr(lr_scheduler, name)


@pytest.mark.parametrize("name", SIMPLE)
def test_a_schedule_is_pytorchs(name):
    """Also from a state in the middle, and from PyTorch's own last_epoch."""
    mine, other = pair()
    ours, theirs = both(name, (mine, other))
    for step in range(STEPS):
        assert ours.last_epoch == theirs.last_epoch == step
        np.testing.assert_allclose(ours.get_last_lr(), theirs.get_last_lr(), rtol=1e-12)
        same(mine, other)
        ours.step(), theirs.step()
        if step == 10:
            state, rates = (mine.state_dict(), ours.state_dict()), ours.get_last_lr()
    mine, _ = pair()
    again = made(lr_scheduler, name, mine)
    again.load_state_dict(state[1])
    assert again.get_last_lr() == rates and again.steps == 11
    mine, _ = pair()
    with pytest.raises(KeyError, match="initial_lr"):
        lr_scheduler.ExponentialLR(mine, 0.5, last_epoch=10)
    if "each" not in name and "halved" not in name:  # whose groups have more options
        mine.load_state_dict(state[0])
        resumed = made_at(name, mine, 10)
        assert resumed.steps == 11
        np.testing.assert_allclose(resumed.get_last_lr(), rates, rtol=1e-12)
        for _ in range(STEPS - 11):
            resumed.step()
        same(mine, other)


def made_at(name, optimizer, last_epoch):
    kind = getattr(lr_scheduler, name.partition(" ")[0])
    return kind(optimizer, **SIMPLE[name], last_epoch=last_epoch)


@pytest.mark.parametrize("seed", range(12))
def test_schedules_that_share_an_optimizer_chain_as_pytorchs(seed):
    """Two or three of them, stepped one by one or by ChainedScheduler, and a rate that the program
    sets itself in between."""
    rng = np.random.default_rng(seed)
    names = rng.choice(CHAINABLE, rng.integers(2, 4), replace=False)
    mine, other = pair()
    schedules = [both(name, (mine, other)) for name in names]
    chained = [
        lr_scheduler.ChainedScheduler([ours for ours, _ in schedules]),
        torch.optim.lr_scheduler.ChainedScheduler([theirs for _, theirs in schedules]),
    ]
    for step in range(STEPS):
        same(mine, other)
        if step == 6:
            mine.param_groups[1]["lr"] = other.param_groups[1]["lr"] = 0.07
        for each in chained if seed % 2 else itertools.chain(*schedules):
            each.step()
        if step == 12:  # a saved state goes on in the same way, also after other steps
            state = chained[0].state_dict()
            for _ in range(3):
                chained[0].step()
            chained[0].load_state_dict(state)


@pytest.mark.parametrize("seed", range(6))
def test_one_schedule_after_the_other_is_pytorchs(seed):
    rng = np.random.default_rng(seed)
    names = list(rng.choice([n for n in CHAINABLE if n != "MultiplicativeLR"], 3, replace=False))
    milestones = sorted(int(n) for n in rng.choice(np.arange(1, STEPS - 2), 2, replace=False))
    mine, other = pair()
    ours, theirs = zip(*[both(name, (mine, other)) for name in names], strict=True)
    first = lr_scheduler.SequentialLR(mine, ours, milestones)
    second = torch.optim.lr_scheduler.SequentialLR(other, list(theirs), milestones)
    for _ in range(STEPS):
        same(mine, other)
        first.step(), second.step()


@pytest.mark.parametrize("name", ["CyclicLR", "CyclicLR halved", "OneCycleLR each"])
def test_cycles_move_beta1_of_optimizers_that_have_it(name):
    ours = [{"params": [ndl.Tensor([1.0])]}, {"params": [ndl.Tensor([1.0])], "betas": (0.5, 0.6)}]
    theirs = [{"params": [torch.ones(1)]}, {"params": [torch.ones(1)], "betas": (0.5, 0.6)}]
    mine, other = optim.Adam(ours), torch.optim.Adam(theirs)
    first, second = both(name, (mine, other))
    for _ in range(STEPS):
        groups = zip(mine.param_groups, other.param_groups, strict=True)
        for one, two in groups:
            np.testing.assert_allclose(one["betas"], two["betas"], rtol=1e-12)
        first.step(), second.step()


def test_warm_restarts_go_to_places_between_epochs():
    mine, other = pair()
    ours, theirs = both("CosineAnnealingWarmRestarts", (mine, other))
    for place in [i / 7 for i in range(60)] + [26, None, None, 3.5, None]:
        ours.step(place), theirs.step(place)
        same(mine, other)
    with pytest.raises(ValueError, match="CosineAnnealingWarmRestarts: epoch -1"):
        ours.step(-1)


def test_a_plateau_has_a_least_rate_for_each_group():
    mine, other = pair()
    options = {"patience": 1, "factor": 0.5, "min_lr": [0.03, 0.2]}
    ours = lr_scheduler.ReduceLROnPlateau(mine, **options)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(other, **options)
    for _ in range(12):
        ours.step(metrics=1.0), theirs.step(metrics=1.0)
        same(mine, other)
    assert ours.get_last_lr() == [0.03, 0.2]


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.5**n),
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.5),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
        lambda o: lr_scheduler.OneCycleLR(o, 0.7, 20),
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.7),
    ],
)
def test_one_value_is_also_that_of_a_group_added_later(make):
    rates = []
    for is_later in (False, True):
        mine = optim.SGD([ndl.Tensor([1.0])], lr=0.1, momentum=0.9)
        group = {"params": [ndl.Tensor([1.0])], "lr": 0.5}
        if not is_later:
            mine.add_param_group(group)
        schedule = make(mine)
        if is_later:
            mine.add_param_group(group)
        is_plateau = isinstance(schedule, lr_scheduler.ReduceLROnPlateau)
        for _ in range(3):
            schedule.step(*[1.0] * is_plateau)
        rates.append([*schedule.get_last_lr(), *(g["momentum"] for g in mine.param_groups)])
    assert rates[0] == rates[1]


@pytest.mark.parametrize("base", [lr_scheduler.LRScheduler, torch.optim.lr_scheduler.LRScheduler])
def test_a_class_of_pytorchs_may_be_written_on_needles_base(base):
    class Noam(base):
        def __init__(self, optimizer, warm, last_epoch=-1):
            self.warm = warm
            super().__init__(optimizer, last_epoch)

        def get_lr(self):
            n = self.last_epoch + 1
            return [lr * min(n**-0.5, n * self.warm**-1.5) for lr in self.base_lrs]

    schedule = Noam(pair()[base is not lr_scheduler.LRScheduler], 4)
    for n in range(1, 12):
        expected = [lr * min(n**-0.5, n * 4**-1.5) for lr in (0.1, 0.5)]
        np.testing.assert_allclose(schedule.get_last_lr(), expected)
        schedule.step()
    if base is lr_scheduler.LRScheduler:
        other = Noam(pair()[0], 4)
        other.load_state_dict(schedule.state_dict())
        assert other.get_last_lr() == schedule.get_last_lr() and other.last_epoch == 11


def test_needles_names_of_arguments_stay():
    mine, _ = pair()
    schedule = optim.LinearLR(mine, start=0.5, end=1.0, total=4)
    assert schedule.start_factor == 0.5 and schedule.total_iters == 4
    assert optim.LambdaLR(mine, fn=lambda n: 2.0).get_last_lr() == [0.2, 1.0]


def test_bad_arguments_are_named():
    mine, _ = pair()
    other, _ = pair()
    step = lr_scheduler.StepLR(mine, 3)
    for make, error, text in (
        (lambda: lr_scheduler.LambdaLR(mine, [abs]), ValueError, "lr_lambda has 1 values for 2"),
        (lambda: lr_scheduler.LambdaLR(mine, [abs, 3]), TypeError, "LambdaLR: lr_lambda is a int"),
        (lambda: lr_scheduler.ConstantLR(mine, 1.5), ValueError, r"ConstantLR: factor 1.5"),
        (lambda: lr_scheduler.PolynomialLR(mine, 0), ValueError, "PolynomialLR: total_iters 0"),
        (lambda: lr_scheduler.CyclicLR(mine, 0.1, 1, mode="x"), ValueError, "CyclicLR: mode 'x'"),
        (lambda: lr_scheduler.CyclicLR(mine, 0.1, [1, 2, 3]), ValueError, "max_lr has 3 values"),
        (lambda: lr_scheduler.ChainedScheduler([]), ValueError, "ChainedScheduler"),
        (lambda: lr_scheduler.ChainedScheduler([step], other), ValueError, "another optimizer"),
        (lambda: lr_scheduler.ChainedScheduler([3]), TypeError, r"schedulers\[0\] is a int"),
        (lambda: lr_scheduler.StepLR(mine, 3, last_epoch=-2), ValueError, "last_epoch -2"),
        (lambda: step.load_state_dict({"steps": 1}), ValueError, "StepLR: not a"),
    ):
        with pytest.raises(error, match=text):
            make()
