"""Random programs on Tensors: values and gradients of the native device against the NumPy device,
and shape inference against both. Hypothesis shrinks a failure to the shortest program."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import needle as ndl
from needle import ops
from needle.testing import assert_close
from needle.trace import trace

# Mostly bounded functions, so that long programs stay finite. They are smooth, because at a kink
# the gradient depends on the last bit of a value, in which devices may differ.
UNARY = [ops.tanh, ops.sigmoid, ops.negate, ops.gelu, ops.silu, ops.erf,
         lambda a: ops.sqrt(a * a + 1), lambda a: ops.log(a**2 + 1), lambda a: ops.rsqrt(a * a + 1),
         lambda a: a * 0.5, lambda a: 1 - a, lambda a: ops.exp(ops.tanh(a))]  # fmt: skip
BINARY = [ops.add, ops.subtract, lambda a, b: ops.tanh(a * b), lambda a, b: a / (b * b + 1),
          lambda a, b: ops.where(ops.detach(a) > 100, a, b)]  # fmt: skip


def step(draw, shapes):
    """An operation on earlier results, as a function of their list."""
    i = draw(st.integers(0, len(shapes) - 1))
    shape, n = shapes[i], len(shapes[i])
    kind = draw(st.sampled_from([
        "unary", "binary", "row", "reduce", "permute", "slice", "index", "reshape", "broadcast",
        "matmul", "softmax", "stack", "flip", "pad",
    ]))  # fmt: skip
    axis = draw(st.integers(-n, n - 1)) if n else None
    if kind == "binary" or (kind == "stack" and n < 4):
        fitting = [j for j, other in enumerate(shapes) if other == shape]
        j = draw(st.sampled_from(fitting))
        if kind == "binary":
            f = draw(st.sampled_from(BINARY))
            return lambda v: f(v[i], v[j])
        at = draw(st.integers(0, n))
        return lambda v: ops.stack([v[i], v[j], v[i]], at)
    if kind == "row" and n and shape[0]:
        f, at = draw(st.sampled_from(BINARY)), draw(st.integers(-shape[0], shape[0] - 1))
        return lambda v: f(v[i], v[i][at])
    if kind == "reduce" and n:
        keep, f = (
            draw(st.booleans()),
            draw(st.sampled_from([ops.summation, ops.mean, ops.logsumexp])),
        )
        if shape[axis]:
            return lambda v: ops.tanh(f(v[i], axis, keepdims=keep))
    if kind == "permute" and n:
        order = tuple(draw(st.permutations(range(n))))
        return lambda v: ops.permute(v[i], order)
    if kind == "slice" and n:
        key = tuple(draw(st.slices(extent)) for extent in shape)
        return lambda v: v[i][key]
    if kind == "index" and n and shape[axis]:
        picks = draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), max_size=4))
        key = (*[slice(None)] * (axis % n), np.array(picks, int))
        return lambda v: v[i][key]
    if kind == "reshape":
        new = (*draw(st.permutations(shape)), 1)
        return lambda v: ops.reshape(v[i], new)
    if kind == "broadcast" and n < 4:
        new = (draw(st.integers(0, 3)), *shape)
        return lambda v: ops.broadcast_to(v[i], new)
    if kind == "matmul" and n >= 2:
        return lambda v: ops.tanh(v[i] @ ops.transpose(v[i]))
    if kind == "softmax" and n and shape[axis]:
        return lambda v: ops.softmax(v[i], axis)
    if kind == "flip" and n:
        return lambda v: ops.flip(v[i], (axis,))
    if kind == "pad" and n:
        widths = tuple(draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shape)
        return lambda v: ops.pad(v[i], widths)
    f = draw(st.sampled_from(UNARY))
    return lambda v: f(v[i])


@given(st.data())
def test_devices_and_inference_agree(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    starts = [rng.standard_normal(shape) for _ in range(2)]
    devices = (ndl.cpu(), ndl.cpu_numpy())
    leaves = [[ndl.Tensor(x, device=d) for x in starts] for d in devices]
    values, program = [list(part) for part in leaves], []
    for _ in range(data.draw(st.integers(1, 8))):
        if values[0][-1].size > 2000:
            break
        program.append(step(data.draw, [v.shape for v in values[0]]))
        for results in values:
            results.append(program[-1](results))
        assert_close(values[0][-1].numpy(), values[1][-1].numpy(), rtol=1e-9, scale=1e-3)

    def run(*inputs):
        results = list(inputs)
        for one in program:
            results.append(one(results))
        return tuple(results[2:])

    specs = [node.spec for node in trace(run, *leaves[0]).outputs]
    assert [(s.shape, s.dtype) for s in specs] == [(v.shape, v.dtype) for v in values[0][2:]]
    for results in values:
        sum((v.sum() for v in results[3:]), results[2].sum()).backward()
    for one, other in zip(*leaves, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert_close(one.grad.numpy(), other.grad.numpy(), rtol=1e-9, scale=1e-3)
