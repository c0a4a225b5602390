"""Tracing: the parts of a graph, and errors."""

import contextlib
import inspect
import threading

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops
from needle.autograd.tensor import handle
from needle.errors import ShapeError, TraceError
from needle.trace import trace


def tensor(*shape, dtype="float32"):
    return ndl.Tensor(np.ones(shape, dtype), device=ndl.cpu_numpy())


def linear(*sizes):
    return nn.Linear(*sizes, device=ndl.cpu_numpy())


def mlp():
    return nn.Sequential(linear(4, 8), nn.ReLU(), nn.Residual(linear(8, 8)), linear(8, 2)).eval()


def evaluate(graph, *args, **kwargs):
    """Run a graph op by op on NDArrays."""
    values = {leaf.node: leaf.value for leaf in (*graph.params, *graph.constants)}
    for leaf, value in zip(graph.inputs, graph.flatten_inputs(args, kwargs), strict=True):
        values[leaf.node] = value.cached_data
    for node in graph.nodes:
        if node.op is not None:
            values[node] = node.op.compute(*[values[source] for source in node.input_nodes])
    return graph.unflatten_outputs([values[node] for node in graph.outputs])


def test_a_model_becomes_ops_between_named_leaves():
    model, x = mlp(), tensor(3, 4)
    graph = trace(model, x)
    assert [leaf.name for leaf in graph.inputs] == ["x"]
    assert [leaf.name for leaf in graph.params] == list(model.state_dict())
    assert graph.constants == []
    assert graph.input_tree == {"args": ["*"], "kwargs": {}} and graph.output_tree == "*"
    made = [(node.op.name, node.scope) for node in graph.nodes if node.op is not None]
    assert made == [
        ("matmul", "modules.0"),
        ("add", "modules.0"),
        ("relu", "modules.1"),
        ("matmul", "modules.2.fn"),
        ("add", "modules.2.fn"),
        ("add", "modules.2"),
        ("matmul", "modules.3"),
        ("add", "modules.3"),
    ]
    assert graph.outputs[0].specs[0].shape == (3, 2)
    np.testing.assert_array_equal(evaluate(graph, x).numpy(), model(x).numpy())


def test_nodes_stand_after_their_inputs():
    graph = trace(mlp(), tensor(3, 4))
    seen = set()
    for node in graph.nodes:
        assert all(id(source) in seen for source in node.input_nodes)
        assert [t.node for t in handle(node, None).inputs] == list(node.input_nodes)
        seen.add(id(node))


@pytest.mark.parametrize("recorded", [False, True])
def test_results_require_gradients_as_outside_of_a_trace(recorded):
    """A function may ask for it."""
    found = []

    def fn(x, weight):
        results = x + x, x * weight, ops.argmax(weight)
        found.append([result.requires_grad for result in results])
        return results

    x, weight = (ndl.Tensor(np.ones(3, "f"), requires_grad=grad) for grad in (False, True))
    with contextlib.nullcontext() if recorded else ndl.no_grad():
        fn(x, weight)
        trace(fn, x, weight)
    assert found == [[False, recorded, False]] * 2


def test_nested_arguments_and_outputs():
    def fn(a, pair, table, *more, scale, flag=True, **named):
        assert flag and scale == 2
        y = a * scale + pair[0] + pair[1][0] * table["k"]
        return {"y": y, "rest": [more[0], (named["z"] + more[1], None)]}

    a, b, c, d, e, f, g = (ndl.Tensor(np.full(2, i), requires_grad=False) for i in range(7))
    args, kwargs = (a, (b, [c]), {"k": d}, e, f), {"scale": 2, "z": g}
    graph = trace(fn, *args, **kwargs)
    names = ["a", "pair_0", "pair_1_0", "table_k", "more_0", "more_1", "z"]
    assert [leaf.name for leaf in graph.inputs] == names
    flat = graph.flatten_inputs(args, kwargs)
    assert all(got is given for got, given in zip(flat, (a, b, c, d, e, f, g), strict=True))
    result, expected = evaluate(graph, *args, **kwargs), fn(*args, **kwargs)
    assert result["rest"][1][1] is None and isinstance(result["rest"][1], tuple)
    np.testing.assert_array_equal(result["y"].numpy(), expected["y"].numpy())
    np.testing.assert_array_equal(result["rest"][1][0].numpy(), expected["rest"][1][0].numpy())
    assert len(graph.flatten_outputs(expected)) == 3


def test_arguments_may_be_given_by_name_or_position():
    graph = trace(lambda x, y: x - y, tensor(2), tensor(2))
    x, y = tensor(2), tensor(2)
    for args, kwargs in (((x, y), {}), ((x,), {"y": y}), ((), {"y": y, "x": x})):
        found = graph.flatten_inputs(args, kwargs)
        assert found[0] is x and found[1] is y
    graph = trace(lambda x, y: x - y, tensor(2), y=tensor(2))
    found = graph.flatten_inputs((x, y), {})
    assert found[0] is x and found[1] is y


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((1, 2, 3), "is 1, expected a tensor"),
        ((tensor(2), (tensor(2),), 3), "1 items, expected 2"),
        ((tensor(2), [tensor(2), tensor(2)], 3), "is a list, expected a tuple"),
        ((tensor(2), (tensor(2), tensor(2)), 4), "4, traced with 3"),
        ((tensor(2),), "missing"),
    ],
)
def test_arguments_unlike_the_traced_ones_are_refused(args, complaint):
    def fn(x, pair, n):
        return x + pair[0] * n

    graph = trace(fn, tensor(2), (tensor(2), tensor(2)), 3)
    with pytest.raises(TypeError, match=complaint):
        graph.flatten_inputs(args, {})


def test_arrays_of_all_kinds_are_inputs():
    x = np.ones((2, 3), "float32")
    for example in (x, ndl.backend_ndarray.array(x), ndl.Tensor(x)):
        graph = trace(ops.exp, example)
        assert graph.inputs[0].spec.shape == (2, 3)
        np.testing.assert_array_equal(graph.inputs[0].value.numpy(), x)


def test_unusual_outputs():
    model = mlp()
    x = tensor(3, 4)

    def fn(x, unused):
        y = ops.exp(x)
        return x, y, y, model.modules[0].weight, ops.split(y, 0)

    graph = trace(fn, x, tensor(1))
    assert graph.outputs[0] is graph.inputs[0].node
    assert graph.outputs[1] is graph.outputs[2]
    assert graph.outputs[3] is graph.params[0].node
    assert len(graph.inputs) == 2 and len(graph.outputs) == 7
    result = evaluate(graph, x, tensor(1))
    assert isinstance(result[4], tuple) and len(result[4]) == 3
    with pytest.raises(TypeError, match="the output holds a float"):
        trace(lambda x: (x, 1.0), x)


def test_shared_tensors_and_one_input_twice():
    x = tensor(2)
    graph = trace(lambda a, b: a * b, x, x)
    assert [leaf.name for leaf in graph.inputs] == ["a", "b"]
    assert graph.inputs[0].node is not graph.inputs[1].node
    graph = trace(lambda a: a * a, x)
    assert len([n for n in graph.nodes if n.op]) == 1
    model = nn.Sequential(layer := linear(4, 4), layer).eval()
    graph = trace(model, tensor(1, 4))
    assert [leaf.name for leaf in graph.params] == ["modules.0.weight", "modules.0.bias"]


def test_constants_are_kept_with_their_values():
    table = np.arange(2.0, dtype="float32")

    def fn(x):
        mask = ndl.Tensor(table, requires_grad=False)
        assert mask.numpy()[1] == 1  # constants may be read while tracing
        return x * mask + ndl.init.ones(2) + (x > 0)

    graph = trace(fn, ndl.Tensor(np.ones(2, "float32")))
    assert [leaf.name for leaf in graph.constants] == ["const_0", "const_1", "const_2"]
    np.testing.assert_array_equal(graph.constants[0].value.numpy(), table)


def test_functions_of_modules():
    model = mlp()
    x = tensor(3, 4)
    names = list(model.state_dict())
    graph = trace(lambda m, x: m(x) * 2, model, x)
    assert [leaf.name for leaf in graph.params] == [f"m.{name}" for name in names]
    assert [leaf.name for leaf in graph.inputs] == ["x"]
    assert graph.nodes[-1].scope == "" and graph.nodes[-2].scope == "m.modules.3"
    assert [leaf.name for leaf in trace(model.forward, x).params] == names
    closed_over = trace(lambda x: model(x), x)
    assert [leaf.name for leaf in closed_over.params] == [f"model.{name}" for name in names]
    model.train()
    with pytest.raises(ValueError, match=r"the model \(Sequential\) is in train mode"):
        trace(lambda m, x: m(x), model, x)


def test_only_what_is_used_is_a_parameter():
    model = mlp()
    model.spare = linear(2, 2)
    model.eval()
    assert "spare.weight" in model.state_dict()
    names = [leaf.name for leaf in trace(model, tensor(3, 4)).params]
    assert "spare.weight" not in names and len(names) == 6


def test_names_of_inputs_and_parameters_do_not_collide():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(tensor(2))

        def forward(self, weight):
            return weight * self.weight

    graph = trace(Scale().eval(), tensor(2))
    assert [leaf.name for leaf in graph.params] == ["weight"]
    assert [leaf.name for leaf in graph.inputs] == ["weight_2"]


# Errors


def test_train_mode_is_refused_unless_asked_for():
    model = mlp()
    model.modules[2].train()
    with pytest.raises(ValueError, match=r"'modules\.2' .*model\.eval\(\).*training=True"):
        trace(model, tensor(3, 4))
    assert trace(model, tensor(3, 4), training=True).outputs


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.numpy(),
        lambda t: t.item(),
        lambda t: bool(t),
        lambda t: float(t),
        lambda t: int(t),
        lambda t: t.cached_data,
        lambda t: t.realize_cached_data(),
        lambda t: np.asarray(t),
        lambda t: np.from_dlpack(t),
        lambda t: t.__dlpack_device__(),
        lambda t: ndl.Tensor(t),
        lambda t: t.to(ndl.cpu()),
        lambda t: [1, 2, 3][:t] if t > 0 else t,
    ],
)
def test_reading_a_value_is_refused_by_name(read):
    class Reader(nn.Module):
        def __init__(self, which):
            super().__init__()
            self.inner = linear(4, 4)
            self.which = which

        def forward(self, x):
            y = ops.tanh(self.inner(x))
            read({"op": y, "param": self.inner.weight, "input": x}[self.which])
            return y

    for which, named in (
        ("op", r"module 'modules\.0' reads .* made by op '(tanh|compare)' in module 'modules\.0'"),
        ("param", r"parameter or buffer 'modules\.0\.inner\.weight'|'compare'"),
        ("input", r"float32\[3, 4\] input|'compare'"),
    ):
        model = nn.Sequential(Reader(which)).eval()
        with pytest.raises(TraceError, match=named):
            trace(model, tensor(3, 4))


def test_shapes_and_lengths_may_be_read():
    def fn(x):
        assert (x.shape, len(x), x.ndim, x.size, x.dtype) == ((3, 4), 3, 2, 12, "float32")
        assert "float32" in repr(x) and x.device is ndl.cpu_numpy()
        return x.reshape(len(x) * x.shape[1])

    assert trace(fn, tensor(3, 4)).outputs[0].specs[0].shape == (12,)


@pytest.mark.parametrize(
    "draw",
    [lambda: ndl.init.rand(2), lambda: ndl.init.randn(2), lambda: ndl.init.randb(2)],
)
def test_random_numbers_are_refused(draw):
    with pytest.raises(TraceError, match="random"):
        trace(lambda x: x + draw(), tensor(2))


def test_dropout_is_traced_in_eval_mode_only():
    model = nn.Sequential(nn.Dropout(0.5))
    assert len(trace(model.eval(), tensor(2)).nodes) == 1
    with pytest.raises(TraceError, match=r"module 'modules\.0' draws random"):
        trace(model.train(), tensor(2), training=True)


def test_writes_to_the_model_are_refused_and_leave_it_unchanged():
    norm = nn.BatchNorm1d(4, device=ndl.cpu_numpy())
    before = {name: value.numpy() for name, value in norm.state_dict().items()}
    with pytest.raises(TraceError, match=r"writes to 'running_mean'"):
        trace(norm, tensor(3, 4), training=True)
    for name, value in norm.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    assert norm.running_mean.node.op is None

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.note = "seen"
            if x.ndim > 1:
                self.last = x
            return x * self.calls

    model = Keeps().eval()
    trace(model, tensor(2))
    assert model.calls == 0 and not hasattr(model, "note")
    with pytest.raises(TraceError, match=r"assigns to 'last' \(of Keeps\)"):
        trace(model, tensor(2, 2))
    assert model.calls == 0


def test_tracing_leaves_nothing_behind_after_an_error():
    model = mlp()
    leaked = []

    def fn(x):
        leaked.append(ops.exp(x))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace(fn, tensor(2))
    x = tensor(3, 4)
    assert model(x).numpy().shape == (3, 2)
    with pytest.raises(TraceError, match="was made while tracing and has no value"):
        leaked[0] + 1.0
    with pytest.raises(TraceError, match="has no value"):
        leaked[0].numpy()
    with pytest.raises(TraceError, match="another trace"):
        trace(lambda x: x + leaked[0], tensor(2))


def test_nested_traces_and_bad_calls_are_refused():
    with pytest.raises(TraceError, match="already tracing"):
        trace(lambda x: trace(ops.exp, x), tensor(2))
    with pytest.raises(TypeError, match=r"trace: Sequential: missing .*'x'"):
        trace(mlp())
    with pytest.raises(ShapeError, match="matmul"):
        trace(mlp(), tensor(3, 5))
    with pytest.raises(TypeError, match="add: input 1 is a str"):
        trace(lambda x: ops.add(x, "1"), tensor(2))
    with pytest.raises(TypeError, match="takes 1 input"):
        trace(lambda x: ops.Exp()(x, x), tensor(2))


def test_other_threads_are_not_traced():
    seen = []

    def fn(x):
        def work():
            seen.append((tensor(2) * 2).numpy().tolist())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return x * 2

    trace(fn, tensor(2))
    assert seen == [[2, 2]]


def test_a_chain_of_5000_ops():
    def fn(x):
        for _ in range(5000):
            x = x + 1.0
        return x

    graph = trace(fn, tensor(2))
    assert len(graph.nodes) == 5001 and len(graph.fingerprint()) == 64


def test_a_training_step_is_a_graph():
    model = mlp()
    x, y = tensor(3, 4), ndl.Tensor(np.array([0, 1, 0]), device=ndl.cpu_numpy())
    loss_fn = nn.SoftmaxLoss()

    def step(model, x, y):
        loss = loss_fn(model(x), y)
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    graph = trace(step, model, x, y, training=True)
    assert all(p.grad is None for p in model.parameters())
    loss, grads = step(model, x, y)
    traced = evaluate(graph, model, x, y)
    np.testing.assert_allclose(traced[0].numpy(), loss.numpy(), rtol=1e-6)
    for got, expected in zip(traced[1], grads, strict=True):
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-7)


def test_detach_cuts_gradients_while_tracing():
    def fn(x):
        (x.detach() * x).sum().backward()
        return x.grad

    graph = trace(fn, tensor(2))
    x = ndl.Tensor(np.array([3.0, 4.0], "float32"), device=ndl.cpu_numpy())
    assert evaluate(graph, x).numpy().tolist() == [3, 4]


def test_errors_name_the_line_of_the_users_code():
    def reads(x):
        return x * float(ops.exp(x).sum())

    line = inspect.getsourcelines(reads)[1] + 1
    with pytest.raises(TraceError, match=rf"test_trace\.py:{line} \(return x \* float"):
        trace(reads, tensor(2))


def test_a_detached_tensor_requires_no_gradient():
    seen = []

    def fn(x):
        seen.append((x.requires_grad, x.detach().requires_grad))
        return x.detach()

    trace(fn, tensor(2))
    assert seen == [(True, False)]
