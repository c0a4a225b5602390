"""Whole training steps under `jit`: what they write is what eager steps write."""

import copy
import math
import threading

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle import nn, optim
from needle.autograd import topological_order
from needle.errors import TraceError
from needle_runtime.errors import InputError, UsageError
from needle_tvm.frontend.divergence import first_divergence
from needle_tvm.frontend.float64_values import evaluate
from tests.needle_tvm.compiler.jitted import compilations

F = nn.functional


class Net(nn.Module):
    """Layers whose train mode draws and writes."""

    def __init__(self, dtype):
        super().__init__()
        where = {"dtype": dtype}
        self.layers = nn.Sequential(
            nn.Linear(5, 7, **where),
            nn.BatchNorm1d(7, **where),
            nn.Tanh(),
            nn.Dropout(0.25),
            nn.Linear(7, 3, **where),
        )

    def forward(self, x):
        return self.layers(x)


def batches(count, dtype="float64", rows=11):
    draw = np.random.default_rng(0)
    for _ in range(count):
        yield draw.standard_normal((rows, 5)).astype(dtype), draw.integers(0, 3, rows)


class Training:
    """A model, its optimizer, schedule and averages, and a step as people write it."""

    def __init__(self, make, dtype="float64", clip=1.0):
        ndl.manual_seed(3)
        self.model = Net(dtype)
        self.optimizer = make(self.model)
        self.schedule = optim.StepLR(self.optimizer, 2, 0.5)
        self.averages = optim.EMA(self.model, 0.9)
        self.clip = clip

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        norm = optim.clip_grad_norm(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.averages.update()
        return loss, norm

    def state(self):
        found = {f"model.{k}": v.numpy() for k, v in self.model.state_dict().items()}
        kept = self.optimizer.state_dict()
        for i, tensors in kept["state"].items():
            found |= {f"optimizer.{i}.{k}": v.numpy() for k, v in tensors.items()}
        found |= {f"average.{i}": a.numpy() for i, a in enumerate(self.averages.averages)}
        numbers = {"lr": self.optimizer.lr, "steps": self.schedule.steps}
        return found | {k: np.array(v) for k, v in numbers.items()}


def groups(model):
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.003}]


OPTIMIZERS = {
    "sgd": lambda m: optim.SGD(m.parameters(), lr=0.05),
    "momentum": lambda m: optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
    "dampened": lambda m: optim.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.5),
    "nesterov": lambda m: optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda m: optim.Adam(m.parameters(), lr=0.01, weight_decay=0.1),
    "amsgrad": lambda m: optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
    "adagrad": lambda m: optim.Adagrad(m.parameters(), lr=0.01),
    "rmsprop": lambda m: optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5),
    "lion": lambda m: optim.Lion(m.parameters(), lr=0.001, weight_decay=0.1),
    "groups": lambda m: optim.AdamW(groups(m), lr=0.01),
    "uphill": lambda m: optim.Adam(m.parameters(), lr=0.01, maximize=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_write_what_eager_steps_write(name):
    stage = "tuned" if name in ("adam", "groups") else "noopt"
    eager, compiled = Training(OPTIMIZERS[name]), Training(OPTIMIZERS[name])
    step = needle_tvm.jit(compiled.step, stage=stage)
    losses = {}
    for training, call in ((eager, eager.step), (compiled, step)):
        ndl.manual_seed(5)  # the same dropout
        losses[training] = [[float(x) for x in call(*map(np_tensor, b))] for b in batches(5)]
    assert compilations(step) == 1
    # Sums of at most 11 products in float64, five steps deep.
    np.testing.assert_allclose(losses[compiled], losses[eager], rtol=1e-11)
    found, wanted = compiled.state(), eager.state()
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if key == "model.layers.modules.0.bias" or ".1." in key or key.endswith("average.1"):
            continue  # batch norm takes it away again: its gradient is rounding alone
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-12, err_msg=key)
    assert all(p.grad is None for p in compiled.model.parameters())


def np_tensor(array):
    return ndl.Tensor(array, requires_grad=False)


def test_state_stays_where_it_is_and_is_written_there():
    training = Training(OPTIMIZERS["adam"], "float32")
    step = needle_tvm.jit(training.step)
    first, *others = batches(4, "float32")
    step(*first)

    def places():
        arrays = [p.cached_data for p in training.model.state_dict().values()]
        arrays += [a for kept in training.optimizer.state.values() for a in kept.values()]
        return [a.view.data_ptr for a in [*arrays, *training.averages.averages]]

    before, entry = places(), step._all()[0]
    assert len(entry._calls._executor.main.in_place) == len(entry._effects.kept)
    values = training.state()
    for batch in others:
        step(*batch)
    assert places() == before and compilations(step) == 1
    changed = [k for k, v in training.state().items() if not np.array_equal(v, values[k])]
    assert {k for k in values if k != "lr"} - set(changed) <= {"model.layers.modules.0.bias"}


def test_steps_see_what_other_code_writes():
    """Between calls: assignments, a state_dict, an eager step, other options, other rates."""
    pair = Training(OPTIMIZERS["adam"]), Training(OPTIMIZERS["adam"])
    step = needle_tvm.jit(pair[1].step, stage="noopt")
    first = next(batches(1))
    saved = copy.deepcopy(pair[0].model.state_dict())
    kept = []

    def scaled(training):
        weight = training.model.layers.modules[0].weight
        weight.data = weight.detach() * 0.5

    changes = [
        (scaled, 1),
        (lambda t: t.model.load_state_dict(saved), 1),
        (lambda t: setattr(t.optimizer, "lr", 0.5), 1),
        (lambda t: t.step(*map(np_tensor, first)), 1),
        (lambda t: kept.append(copy.deepcopy(t.optimizer.state_dict())), 1),
        (lambda t: t.optimizer.load_state_dict(kept[0]), 1),
        (lambda t: t.optimizer.param_groups[0].update(weight_decay=0.3), 2),
        (lambda t: setattr(t.optimizer, "eps", 1e-4), 3),
        (lambda t: t.optimizer.load_state_dict(kept[0]), 3),
        (lambda t: setattr(t.model.layers.modules[0].bias, "requires_grad", False), 4),
    ]
    for change, count in [(lambda t: None, 1), *changes]:
        results = []
        for training, call in zip(pair, (pair[0].step, step), strict=True):
            ndl.manual_seed(9)
            change(training)
            results.append([float(x) for x in call(*map(np_tensor, first))])
        np.testing.assert_allclose(*results, rtol=1e-9)
        assert compilations(step) == count
    found, wanted = (each.model.layers.modules[4].weight.numpy() for each in pair[::-1])
    np.testing.assert_allclose(found, wanted, rtol=1e-8)


def agree(make, count=4):
    """Compare calls of the step of a Training, eager and compiled, as `make` makes it."""
    results = []
    for compile in (lambda step: step, needle_tvm.jit(stage="noopt")):
        training = Training(OPTIMIZERS["adam"])
        step = make(training)
        call = compile(step)
        results.append([[float(x) for x in call(*map(np_tensor, b))] for b in batches(count)])
        results.append([v for k, v in training.state().items() if "running" in k])
    np.testing.assert_allclose(results[2], results[0], rtol=1e-9)
    np.testing.assert_allclose(results[3], results[1], rtol=1e-9)


def test_a_schedule_between_two_steps_of_a_call():
    def make(training):
        training.model.layers.modules[0].bias = None  # before batch norm, its gradient is rounding
        return lambda x, y: [training.step(x, y)[0] for _ in range(3)]

    agree(make)


def test_gradients_that_are_written():
    def train(compile):
        ndl.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double()
        optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            for p in model.parameters():
                p.grad.mul_(2.0).add_(p.detach() * 0.1)
                p.grad.data.clamp_(-0.02, 0.02)
                p.grad /= 1.5
            optimizer.step()
            return loss

        call = compile(step)
        return [float(call(*map(np_tensor, batch))) for batch in batches(4)]

    found = train(needle_tvm.jit(stage="noopt"))
    np.testing.assert_allclose(found, train(lambda step: step), rtol=1e-11)


def test_batch_norm_that_averages_over_all_batches():
    def make(training):
        linear, _, *others = training.model.layers.modules
        linear.bias = None
        norm = nn.BatchNorm1d(7, momentum=None, affine=False, dtype="float64")
        training.model.layers = nn.Sequential(linear, norm, *others)
        return training.step

    agree(make)


def test_parameters_that_an_optimizer_is_given_later():
    def train(compile):
        ndl.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double()
        optimizer = optim.AdamW(model[0].parameters(), 0.01)

        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            model.zero_grad()
            return loss

        call, losses = compile(step), []
        for i, batch in enumerate(batches(4)):
            if i == 2:
                optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.1})
            losses.append(float(call(*map(np_tensor, batch))))
        return losses

    found = train(needle_tvm.jit(stage="noopt"))
    np.testing.assert_allclose(found, train(lambda step: step), rtol=1e-11)


def test_two_models_that_train_against_each_other():
    def made():
        ndl.manual_seed(0)
        g, d = nn.Linear(3, 4, dtype="float64"), nn.Linear(4, 1, dtype="float64")
        for p in d.parameters():
            p.data = p.data * 0.5
        return g, d, optim.Adam(g.parameters(), 0.01), optim.SGD(d.parameters(), 0.1)

    def step_of(g, d, of_g, of_d):
        def step(z, real):
            of_d.zero_grad()
            of_g.zero_grad()
            fake = g(z)
            loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
            loss.backward()
            of_d.step()
            of_g.zero_grad()
            second = F.softplus(-d(fake)).mean()  # by the weights that d has now
            second.backward()
            of_g.step()
            return loss, second

        return step

    eager, traced = made(), made()
    one, two = step_of(*eager), needle_tvm.jit(step_of(*traced), stage="fused")
    draw = np.random.default_rng(0)
    for _ in range(4):
        batch = [np_tensor(draw.standard_normal((6, n))) for n in (3, 4)]
        np.testing.assert_allclose([float(x) for x in two(*batch)], [float(x) for x in one(*batch)])
    for model, twin in zip(traced[:2], eager[:2], strict=True):
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-9)


class Remembers(nn.Module):
    """A buffer that is replaced, one that is changed, and a weight that is written by hand."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(np.ones((2, 3)))
        self.last = ndl.zeros(2, 3, dtype="float64")
        self.total = ndl.zeros(3, dtype="float64")

    def forward(self, x):
        y = x * self.weight + self.last
        self.last = y.detach() * 0.5
        with ndl.no_grad():
            self.total += self.last.sum(0)
            self.weight *= 0.9
        return y + self.last


def test_buffers_that_are_replaced_and_weights_that_are_written():
    eager, traced = Remembers(), Remembers()
    step = needle_tvm.jit(traced, stage="fused")
    for n in range(3):
        x, before = np_tensor(np.full((2, 3), n + 1.0)), traced.last
        values = before.numpy()
        np.testing.assert_allclose(step(x).numpy(), eager(x).numpy())
        assert traced.last is not before and np.array_equal(before.numpy(), values)
    for (name, found), (_, wanted) in zip(
        traced.state_dict().items(), eager.state_dict().items(), strict=True
    ):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), err_msg=name)
    assert compilations(step) == 1


# Whatever the extents, and whatever a kernel reads of what it replaces.
CHANGES = {
    "scaled": lambda w, x: w * 0.5 + x,
    "reversed": lambda w, x: w.flip(0) + x,
    "normalized": lambda w, x: w / w.sum() + x,
    "transposed": lambda w, x: w.reshape(-1)[::-1].reshape(w.shape) - x,
    "replaced": lambda w, x: x * 2.0,
    "gathered": lambda w, x: w.sum(0, keepdims=True) + x,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_read_of_what_is_replaced(name):
    shapes = [(1, 1), (3, 5), (1, 17), (7, 33), (16, 16), (2, 1025)]
    weights = [nn.Parameter(np.random.default_rng(n).random(s)) for n, s in enumerate(shapes)]
    twins = [w.numpy() for w in weights]

    def change(*xs):
        with ndl.no_grad():
            sums = [(w * x).sum() for w, x in zip(weights, xs, strict=True)]
            for w, x in zip(weights, xs, strict=True):
                w.copy_(CHANGES[name](w, x))
            return sums

    step = needle_tvm.jit(change)
    for n in range(3):
        xs = [np.random.default_rng(10 + n).random(s) for s in shapes]
        found = step(*xs)
        for i, (w, x) in enumerate(zip(twins, xs, strict=True)):
            np.testing.assert_allclose(float(found[i]), (w * x).sum(), rtol=1e-12)
            twins[i] = CHANGES[name](ndl.Tensor(w), ndl.Tensor(x)).numpy()
        for w, twin in zip(weights, twins, strict=True):
            np.testing.assert_allclose(w.numpy(), twin, rtol=1e-12)
    main = step._all()[0]._calls._executor.main
    expected = {"scaled": len(shapes), "replaced": len(shapes)}.get(name)
    assert expected is None or len(main.in_place) == expected


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_an_argument_in_memory_that_is_written_is_refused(dtype):
    memory = ndl.ones(12, dtype=dtype)
    weight = nn.Parameter(ndl.ones(4, dtype=dtype))
    weight.data = memory[4:8]
    beside = [memory[:4], memory[8:], ndl.ones(4, dtype=dtype), memory[8:].flip(0)]
    if dtype == "float64":
        beside += [memory.numpy()[8:], memory.numpy()[:8:2]]
    inside = [weight.detach(), weight.detach().flip(0), memory[::3], memory[5:9]]

    @needle_tvm.jit(stage="fused")
    def step(x):
        with ndl.no_grad():
            weight.mul_(2.0)
        return (weight * x).sum()

    for number, x in enumerate(beside):
        assert float(step(x)) == 4 * 2.0 ** (number + 1)
    for x in inside:
        with pytest.raises(InputError, match="shares memory with weight"):
            step(x)
    assert weight.tolist() == [2.0 ** len(beside)] * 4
    assert compilations(step) == 1


@pytest.mark.parametrize("dtype", ["int64", "float32", "bfloat16", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 0)])
def test_values_that_are_written_back(dtype, shape):
    model = nn.Module()
    model.kept = ndl.ones(*shape, dtype=dtype)

    @needle_tvm.jit
    def step(x):
        # What the compiler simplifies to a store of what was there.
        model.kept.data = ndl.where(model.kept == model.kept, model.kept, x)
        return x.clone()

    x = ndl.zeros(*shape, dtype=dtype)
    for _ in range(2):
        np.testing.assert_array_equal(step(x).numpy(), x.numpy())
        np.testing.assert_array_equal(model.kept.numpy(), np.ones(shape))


def test_weights_that_share_memory_are_refused():
    one, two = (nn.Parameter(np.ones(3)) for _ in range(2))

    def step(x):
        with ndl.no_grad():
            one.mul_(2.0)
        return (one * two * x).sum()

    two.data = one.data
    compiled, x = needle_tvm.jit(step, stage="fused"), np_tensor(np.ones(3))
    with pytest.raises(UsageError, match="'two' and 'one' share memory"):
        compiled(x)
    assert one.numpy().tolist() == [1.0] * 3
    two.data = one.data.clone()
    assert float(compiled(x)) == 6


def test_a_call_that_fails_changes_nothing():
    table = nn.Parameter(np.ones((4, 2)))
    optimizer = optim.SGD([table], 0.5)
    schedule = optim.StepLR(optimizer, 1, 0.5)

    @needle_tvm.jit(stage="fused")
    def step(index):
        optimizer.zero_grad()
        F.embedding(index, table).sum().backward()
        optimizer.step()
        schedule.step()

    step(np.array([0, 1]))
    before = table.numpy()
    with pytest.raises(InputError, match="4"):
        step(np.array([0, 4]))
    assert schedule.steps == 1 and optimizer.state[0]["step"].item() == 1
    np.testing.assert_array_equal(table.numpy(), before)


def test_gradients_from_outside():
    weight = nn.Parameter(np.ones(2))
    optimizer = optim.SGD([weight], 0.5)

    def adds(x):
        (weight * x).sum().backward()
        optimizer.step()
        return x

    x = np_tensor(np.ones(2))
    with pytest.raises(TraceError, match=r"adds to the gradient .*weight\.grad.*zero_grad\(\)"):
        needle_tvm.jit(adds)(x)
    assert weight.grad is None and weight.numpy().tolist() == [1, 1] and not optimizer.state

    @needle_tvm.jit(stage="fused")
    def ends_clean(x):
        (weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert ends_clean(x) is None and weight.numpy().tolist() == [0.5, 0.5]
    (weight * x).sum().backward()
    with pytest.raises(TraceError, match=r"weight\.grad is not None when the call begins"):
        ends_clean(x)
    assert weight.numpy().tolist() == [0.5, 0.5]
    optimizer.zero_grad()
    ends_clean(x)
    assert weight.numpy().tolist() == [0, 0]


def by_data(p):
    p.data.mul_(0.9).add_(p.grad, alpha=-0.1)  # the second writes to what the first returned
    p.data.clamp_(-0.5, 0.5)


def by_detach(p):
    p.detach().sub_(p.grad, alpha=0.1)


def by_copy(p):
    with ndl.no_grad():
        p.copy_(p - 0.1 * p.grad)


def by_assignment(p):
    p.data -= 0.1 * p.grad


@pytest.mark.parametrize("update", [by_data, by_detach, by_copy, by_assignment])
def test_updates_written_by_hand(update):
    def steps(model):
        def step(x):
            model.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            for p in model.parameters():
                update(p)
            return loss

        return step

    models = [nn.Linear(3, 2, dtype="float64") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    eager, traced = steps(models[0]), needle_tvm.jit(steps(models[1]))
    x = np_tensor(np.random.default_rng(0).normal(size=(4, 3)))
    losses = [(float(eager(x)), float(traced(x))) for _ in range(3)]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-12)
    assert losses[2][0] != losses[0][0]
    for mine, other in zip(*(m.parameters() for m in models), strict=True):
        np.testing.assert_allclose(other.numpy(), mine.numpy(), rtol=1e-12, atol=1e-15)


def test_gradients_that_are_returned_begin_with_none():
    """Also where the function writes something else."""
    norm = nn.BatchNorm1d(3, dtype="float64")

    def gradients(x):
        (norm(x) * x).sum().backward()
        return norm.weight.grad, norm.bias.grad

    compiled = needle_tvm.jit(gradients, stage="fused")
    x = np_tensor(np.random.default_rng(0).standard_normal((5, 3)))
    first, second = ([each.numpy() for each in compiled(x)] for _ in range(2))
    np.testing.assert_allclose(second, first, rtol=1e-12)
    np.testing.assert_allclose(first, [each.numpy() for each in gradients(x)], rtol=1e-12)


def test_what_a_step_cannot_do():
    model = nn.Linear(2, 2)
    x = np_tensor(np.ones((1, 2), "float32"))

    def assigns(x):
        model.seen = model(x)
        return model.seen

    def writes_an_argument(x):
        x.data = x * 2.0
        return x

    def writes_to_data_of_an_argument(x):
        x.data.mul_(2.0)
        return x

    def writes_to_old_data(x):
        data = model.weight.data
        model.weight.data.mul_(2.0)
        data.add_(1.0)
        return x

    def of_python(optimizer):
        def step(x):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        return step

    def seeds(x):
        ndl.manual_seed(1)
        return ndl.rand(2) + x

    cycle = optim.OneCycleLR(optim.Adam(model.parameters()), 0.1, total_steps=5)
    lbfgs = optim.LBFGS(model.parameters())
    plateau = optim.ReduceLROnPlateau(optim.SGD(model.parameters(), 0.1))
    before = {k: v.numpy() for k, v in model.state_dict().items()}
    for function, match in [
        (assigns, "assigns to 'model.seen'"),
        (writes_an_argument, "writes to the float32"),
        (writes_to_data_of_an_argument, "writes to the float32"),
        (writes_to_old_data, "made before a write to model.weight"),
        (of_python(optim.Adafactor(model.parameters())), "Adafactor is computed by Python"),
        (lambda x: lbfgs.step(lambda: model(x).sum()), "LBFGS is computed by Python"),
        (lambda x: plateau.step(model(x).sum()), "reads the value"),
        (lambda x: (cycle.step(), x * 2.0), "OneCycleLR that changes the optimizer's beta1"),
        (seeds, "seeds the generator"),
    ]:
        with pytest.raises(TraceError, match=match):
            needle_tvm.jit(function)(x)
    dims = {"x": {0: ndl.Dim("n", max=4)}}
    with pytest.raises(TraceError, match=r"random numbers of the shape \(n, 2\)"):
        needle_tvm.jit(lambda x: F.dropout(x), dims=dims)(x)
    assert not hasattr(model, "seen")
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])


def test_the_first_wrong_op_of_a_step_is_named():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = optim.Adam(model.parameters())

    @needle_tvm.jit(stage="noopt")
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step(np_tensor(np.ones((2, 4))))
    (entry,) = step._all()
    graph = entry.traced.graph
    arrays = [np.ones(leaf.spec.shape, leaf.spec.dtype) for leaf in graph.inputs]
    expected = evaluate(graph, arrays)
    assert first_divergence(graph, arrays, expected, "noopt", entry._program) is None
    wrong = next(node for node in graph.nodes if node.op is not None and node.op.name == "tanh")
    expected[wrong] = expected[wrong] + 1.0
    found = first_divergence(graph, arrays, expected, "noopt", entry._program)
    assert found.startswith("tanh")


def test_activations_are_dropped_as_the_backward_pass_goes():
    def most_alive(nodes):
        last = {source: n for n, node in enumerate(nodes) for source in node.input_nodes}
        alive, most = 0, 0
        for n, node in enumerate(nodes):
            if node.op is not None:
                alive += math.prod(node.spec.shape)
            most = max(most, alive)
            done = {s for s in node.input_nodes if last[s] == n and s.op is not None}
            alive -= sum(math.prod(source.spec.shape) for source in done)
        return most

    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(12)])
    optimizer = optim.SGD(model.parameters(), 0.1)

    @needle_tvm.jit(stage="noopt")
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()

    step(np_tensor(np.ones((256, 8))))
    graph = step._all()[0].traced.graph
    assert sorted(map(id, topological_order(graph.outputs))) == sorted(map(id, graph.nodes))
    assert most_alive(graph.nodes) < 0.7 * most_alive(topological_order(graph.outputs))


VIEWS = {
    "flip": lambda s: s.flip(0),
    "reshape": lambda s: s.reshape((4, 1)),
    "slice": lambda s: s[1:],
    "element": lambda s: s[2],
    "permute": lambda s: s.reshape((2, 2)).permute((1, 0)),
    "broadcast": lambda s: s.broadcast_to((2, 4)),
    "part": lambda s: ndl.split(s.reshape((2, 2)), 0)[1],
    "data": lambda s: s.data,
    "of a view": lambda s: s.detach().unsqueeze(0).squeeze(0),
}
WRITES = {
    "copy_": lambda s, x: s.copy_(x),
    "mul_": lambda s, x: s.mul_(x),
    "through data": lambda s, x: s.data.add_(x),
    "replaced": lambda s, x: setattr(s, "data", x * 2.0),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_local", [False, True])
def test_a_view_of_what_is_written_is_as_in_eager_code_or_refused(view, write, is_local):
    def make():
        model = nn.Module()
        model.s = ndl.Tensor(np.arange(4.0), requires_grad=False)

        def step(x):
            with ndl.no_grad():
                s = model.s + 1.0 if is_local else model.s
                seen = VIEWS[view](s)
                copied = seen.clone()
                WRITES[write](s, x)
                return seen + 0.0, copied

        return step

    x = np_tensor(np.full(4, 7.0))
    expected = make()(x)
    try:
        found = needle_tvm.jit(make(), stage="noopt")(x)
    except TraceError as error:
        assert write != "replaced" or is_local
        assert "memory it may share" in str(error) or "writes to the" in str(error)
        return
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_view_after_the_write_and_a_copy_before_it():
    weight = ndl.Tensor(np.arange(4.0), requires_grad=False)

    @needle_tvm.jit(stage="noopt")
    def step(x):
        before = weight[1:].clone()
        with ndl.no_grad():
            weight.mul_(x)
        return before, weight[1:] + 0.0

    before, after = step(np_tensor(np.full(4, 2.0)))
    assert before.tolist() == [1, 2, 3] and after.tolist() == [2, 4, 6]


def test_a_function_that_steps_a_schedule_alone():
    optimizer = optim.SGD([nn.Parameter(np.zeros(2))], 1.0)
    schedule = optim.StepLR(optimizer, 1, 0.5)

    @needle_tvm.jit
    def doubled(x):
        schedule.step()
        return x * 2.0

    for _ in range(3):
        assert doubled(np_tensor(np.ones(2))).tolist() == [2.0, 2.0]
    assert schedule.steps == 3 and optimizer.lr == 0.125
    assert compilations(doubled) == 1


@pytest.mark.parametrize("stage", ["noopt", "tuned"])
def test_averages_are_those_of_each_call(stage, tmp_path):
    model = Net("float32").eval()
    averages = optim.EMA(model, 0.5)

    def evaluated(x):
        with ndl.no_grad(), averages.applied():
            return model(x)

    compiled = needle_tvm.jit(evaluated, stage=stage)
    for x, _ in batches(3, "float32"):
        before = [p.realize_cached_data() for p in model.parameters()]
        found = compiled(np_tensor(x)).numpy()
        assert all(
            p.realize_cached_data() is b for p, b in zip(model.parameters(), before, strict=True)
        )
        wanted = evaluated(np_tensor(x)).numpy()
        # Two products of at most 7 float32 terms.
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        for param in model.parameters():
            param.data = param.data * 1.5
        averages.update()
    assert compilations(compiled) == 1
    program = needle_runtime.load(compiled.export(tmp_path / "averages"))
    wanted = evaluated(np_tensor(x)).numpy()
    np.testing.assert_allclose(program(x), wanted, rtol=1e-5, atol=1e-6)


def test_parameters_become_their_averages():
    weight = nn.Parameter(np.zeros(2, "float16"))
    averages = optim.EMA([weight], 0.5)

    @needle_tvm.jit
    def restore():
        averages.copy_to()

    for wanted in (0.5, 0.75):
        weight.data = ndl.ones(2, dtype="float16")
        averages.update()
        restore()
        assert weight.tolist() == [wanted] * 2
    weight.data.add_(1.0)
    assert averages.averages[0].numpy().tolist() == [0.75] * 2  # of its own memory
    assert compilations(restore) == 1


def test_draws_are_the_same_numbers_and_each_call_has_its_own():
    def draw(x):
        kept = F.dropout(x, 0.5)
        drawn = ndl.randn(3, 4), ndl.rand(5, low=2.0, high=3.0), ndl.randn_like(x)
        return kept, *drawn, ndl.normal(x, x * 0.1)

    x = ndl.ones(40)
    compiled = needle_tvm.jit(draw)
    ndl.manual_seed(11)
    eager = [[y.numpy() for y in draw(x)] for _ in range(3)]
    ndl.manual_seed(11)
    for wanted in eager:
        found = [y.numpy() for y in compiled(x)]
        np.testing.assert_array_equal(found[0], wanted[0])
        for have, want in zip(found[1:], wanted[1:], strict=True):
            # Of float32's logarithm, root and cosine, a few roundings each.
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
    assert compilations(compiled) == 1
    assert not np.array_equal(eager[0][1], eager[1][1])
    state = ndl.rng.get_state()
    after = [y.numpy() for y in draw(x)]
    ndl.rng.set_state(state)
    np.testing.assert_array_equal(compiled(x)[0].numpy(), after[0])


@pytest.mark.parametrize("name", ["ones_", "uniform_", "trunc_normal_", "kaiming_normal_", "eye_"])
def test_a_step_initialises_weights(name):
    layer = nn.Linear(3, 4, dtype="float64")
    initialise = getattr(nn.init, name)
    compiled = needle_tvm.jit(lambda x: x * initialise(layer.weight).detach().sum())
    for call in (1, 2):
        ndl.manual_seed(call)
        total = compiled(ndl.ones(1)).item()
        found = layer.weight.numpy()
        ndl.manual_seed(call)
        np.testing.assert_allclose(found, initialise(layer.weight).numpy(), rtol=1e-12, atol=1e-12)
        assert total == pytest.approx(found.sum())
    assert compilations(compiled) == 1


def test_threads_take_turns():
    count = nn.Parameter(np.zeros(3))

    @needle_tvm.jit(stage="fused")
    def step(x):
        with ndl.no_grad():
            count.add_(x)

    one = np_tensor(np.ones(3))
    step(one)
    threads = [threading.Thread(target=lambda: [step(one) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.numpy().tolist() == [201.0] * 3
