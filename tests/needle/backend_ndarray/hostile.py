"""A program that calls every function of the native module with arguments nobody should pass.

    python hostile.py SEED CALLS

It exits with 0 if each call returned or raised an error that Python code may expect; a crash ends
it otherwise. test_nd_hostile.py runs it.
"""

import random
import sys
import warnings

import numpy as np

from needle import backend_ndarray as nd
from needle.backend_ndarray import _cpu

EXPECTED = (TypeError, ValueError, IndexError, OverflowError, MemoryError, BufferError)
HUGE = (2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**63, 2**200, -(2**200))
rng = random.Random(int(sys.argv[1]))


class Index:
    """An object whose __index__ returns, or raises, a given value."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Emptying:
    """An object whose __index__ empties the list that holds it."""

    def __init__(self, around):
        self.around = around

    def __index__(self):
        self.around.clear()
        return 1


class Grinning:
    """An object without a buffer that claims to support DLPack."""

    def __dlpack__(self, **_):
        return _cpu.to_dlpack(view(), True)

    def __dlpack_device__(self):
        return (1, 0)


def emptying():
    items = [1, 1, 1]
    items[0] = Emptying(items)
    return items


def nested():
    items = []
    items.append(items)
    return items


def view():
    dtype = rng.choice(nd.DTYPES)
    line = nd.zeros((7,), dtype, device=nd.cpu())
    shape = tuple(rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randrange(4)))
    return rng.choice([
        lambda: nd.zeros(shape, dtype, device=nd.cpu()),
        lambda: nd.zeros(shape, dtype, device=nd.cpu()).flip(),
        lambda: line.as_strided((3, 2), (1, 2), 0),  # elements that share memory
        lambda: line.as_strided((3, 4), (0, -1), 5),
        lambda: line.as_strided((0, 2), (2**62, -(2**63)), 7),
        lambda: line.as_strided((1, 2), (-(2**63), 1), 1),
        lambda: nd.array(np.arange(5) - 1, dtype=dtype, device=nd.cpu()),
    ])().view  # fmt: skip


def integer():
    return rng.choice([0, 1, 2, 3, -1, -2, 5, 16, 17, *HUGE, True, np.int64(2), np.int8(-1)])


def thing():
    return rng.choice([
        1.5, float("nan"), float("inf"), 1e308, None, "x", b"abc", "float32", "\ud800", object(),
        Index(1), Index(2**100), Index("x"), Index(ValueError("from __index__")), 1j, {}, set(),
        range(3), Index, type, print, np.float16(1), Grinning(), nd.cpu(), nd.zeros((2,)),
    ])  # fmt: skip


def sequence():
    return rng.choice([
        emptying, nested, lambda: "abc", lambda: iter([1, 2]), lambda: np.arange(3),
        lambda: (integer(),) * rng.randrange(20),
        lambda: tuple(rng.choice([0, 1, 2, 3, -1, integer(), Index(2)]) for _ in range(3)),
    ])()  # fmt: skip


def buffer():
    codes = ["f4", "f8", "i4", "i8", "?", "i1", "u8", "f2", "c8", "O", "U3", ">f4", "S2", "M8[s]"]
    x = np.zeros((3, 4), rng.choice(codes))
    return rng.choice([
        x, x[::2, ::-1], x.T, x[:0], bytearray(8), b"12345678", memoryview(b"1234"), np.array(3.0),
        np.zeros((1,) * 17), np.frombuffer(bytes(33), "u1")[1:].view("f4"),
        np.zeros(2, [("a", "f4")]),
    ])  # fmt: skip


def capsule():
    made = _cpu.to_dlpack(view(), rng.random() < 0.5)
    if rng.random() < 0.3:
        _cpu.from_dlpack(made)  # used up
    return made if rng.random() < 0.8 else np.zeros(2).__dlpack__()


def anything():
    kinds = [(view, 10), (thing, 2), (integer, 2), (sequence, 3), (buffer, 2), (capsule, 1)]
    makers, weights = zip(*kinds, strict=True)
    return rng.choices(makers, weights)[0]()


def floats(n):
    return [rng.choice([0.1, 1.0, float("nan"), 0]) for _ in range(n)]


def alike():
    return rng.choice([nd.zeros((3,), "float32"), nd.zeros((3,), "float64")[::-1]]).view


def floating(*shape):
    dtype = rng.choice(["float32", "float32", "float32", "float64", "float16"])
    made = nd.zeros(shape, dtype, device=nd.cpu())
    return rng.choice([made, made, made, made.flip()]).view


def taken():
    """Rows, positions of some of them, and weights."""
    places = nd.array(np.array([[0, 2, rng.choice([1, 1, -1, 3])]]), "int64", nd.cpu())
    x, weights = nd.zeros((3, 2)), nd.zeros(rng.choice([(1, 3), (1, 3), (3, 1)]))
    return [rng.choice([x, x, x[::-1]]).view, places.view, weights.view]


def key():
    """A key of basic indexing, with ends of any size."""
    ends = [None, 0, 1, -1, 5, -7, *HUGE]
    entries = [None, Ellipsis, 0, -1, 2, slice(*(rng.choice(ends) for _ in range(3)))]
    return tuple(rng.choice(entries) for _ in range(rng.randrange(5)))


def grid():
    """A gradient, an image and a grid, which mostly fit together."""
    axes, (n, c, rows, size) = rng.choice([2, 2, 3]), small(4)
    points = nd.array(
        rng.choice([-1.5, 0.3, float("nan"), float("inf"), 1e30])
        + np.zeros((n, *[rows] * axes, axes)),
        rng.choice(["float32", "float64"]),
        nd.cpu(),
    )
    shape = (n, c, *[size] * rng.choice([axes, axes, axes, 1]))
    x = nd.zeros(shape, points.dtype)
    return [nd.zeros((n, c, *[rows] * axes), points.dtype).view, x.view, points.view]


def sampling():
    modes, paddings = ["bilinear", "nearest", "bicubic", "x"], ["zeros", "border", "reflection"]
    return [rng.choice(modes), rng.choice(paddings), rng.random() < 0.5]


def small(n):
    return [rng.choice([1, 1, 2, 3, 0]) for _ in range(n)]


def window():
    """stride, padding, dilation"""
    wild = rng.random() < 0.2
    return [sequence() if wild else tuple(small(2)) for _ in range(3)]


def images():
    """x (N, H, W, C) and w (kh, kw, C, O), which mostly fit together."""
    n, h, w, c, o, kh, kw = small(7)
    return floating(n, h + 3, w + 3, c), floating(kh, kw, rng.choice([c, c, c, 2]), o)


def lstm(steps=None):
    """sums (B, 4 H), or such sums for each step, and a state (B, H)"""
    b, h = small(2)
    lead = () if steps is None else (steps,)
    return [
        floating(*lead, b, 4 * h),
        *(floating(b, rng.choice([h, h, h, 3])) for _ in range(2)),
        floating(h, 4 * h),
    ]


def rows(count):
    """x (2, C) and `count` arrays (C,)"""
    (c,) = small(1)
    return [floating(2, c), *(floating(c) for _ in range(count))]


def along():
    """x, an index along an axis, the axis, and what is put there"""
    m, axis = rng.randrange(4), rng.choice([0, 1, 1, -1, 2])
    shape = (m, 3) if axis == 0 else (2, m)
    count = shape[0] * shape[1]
    index = np.array(rng.choices([0, 1, -2, 9], (9, 9, 9, 1), k=count), "int64").reshape(shape)
    index = nd.array(index.astype(rng.choice(["int32", "int64"]))).view
    source = rng.choice([nd.zeros(shape, "float32"), nd.zeros((1,), "bool"), nd.zeros((5,))]).view
    return [nd.zeros((2, 3), rng.choice(nd.DTYPES)).view, index, axis, source]


# Arguments that get a call past the first check; all other functions get arbitrary ones.
LIKELY = {
    "matmul": lambda: [nd.zeros((rng.randrange(4), rng.randrange(4)), "float32").view
                       for _ in range(2)],
    "as_strided": lambda: [view(), (rng.randrange(3),), (rng.choice([0, 1, -1]),), small(1)[0]],
    "empty": lambda: [sequence(), rng.choice(nd.DTYPES)],
    "cast": lambda: [view(), rng.choice(nd.DTYPES)],
    "gather": lambda: [view(), view(), rng.choice([0, 1, -1, 2])],
    "scatter": lambda: [view(), view(), view(), rng.choice([0, 1, -1, 2])],
    "scatter_add": lambda: [view(), view(), view(), rng.choice([0, 1, -1, 2])],
    "take_along": lambda: along()[:3],
    "put_along": lambda: (lambda x, i, axis, source: [
        x, i, source, axis, rng.choice(["set", "add", "max", "min", "mean"]),
    ])(*along()),
    "sgd_step": lambda: [alike(), alike(), rng.choice([None, alike()]), *floats(4)],
    "adam_step": lambda: [*(alike() for _ in range(4)), *floats(7), True],
    "argmax": lambda: [view(), rng.choice([0, 1, -1]), True],
    "argmin": lambda: [view(), rng.choice([0, 1, -1]), False],
    **{name: lambda: [alike(), rng.choice([0, 0, 1, -1]), True]
       for name in ("cumsum", "cumprod", "logcumsumexp", "sort")},
    **{name: lambda: [alike(), rng.choice([0, 0, 1, -1])] for name in ("cummax", "cummin")},
    "linear_scan": lambda: [alike(), alike(), rng.choice([0, 0, 1]), False],
    "resample": lambda: [*taken(), rng.choice([0, 0, 1, -1])],
    "index": lambda: [view(), rng.choice([sequence(), integer(), key()])],
    "reshape": lambda: [view(), rng.choice([sequence(), integer(), (-1,), (3, -1)])],
    "permute": lambda: [view(), rng.choice([sequence(), (1, 0), (0,), ((1, 0),)])],
    "transpose": lambda: [view(), rng.choice([sequence(), None, (0, 1), (0, 0)])],
    "diagonal": lambda: [view(), integer(), rng.choice([0, 1, -1]), integer()],
    "roll": lambda: [view(), rng.choice([integer(), (1, 2)]), rng.choice([0, -1, (0, 1)])],
    "mean": lambda: [view(), rng.choice([None, (0,), sequence()]), True],
    "concat": lambda: [
        rng.choice([tuple(view() for _ in range(rng.randrange(3))), (alike(), alike()), [view()]]),
        integer(), rng.random() < 0.5,
    ],
    "kron": lambda: [view(), view()],
    "softmax": lambda: [view(), integer(), True],
    "grid_sample": lambda: [*grid()[1:], *sampling()],
    "grid_sample_grad": lambda: [*grid(), *sampling()],
    "topk": lambda: [alike(), rng.choice([0, 0, 1]), True, rng.choice([0, 1, 2, 9])],
    "searchsorted": lambda: [alike(), alike(), True],
    "conv2d": lambda: [*images(), *window()],
    "conv2d_input": lambda: [floating(1, 1, 1, 2), floating(1, 1, 3, 2), (1, 1), *window()],
    "conv2d_weight": lambda: [floating(1, 2, 2, 3), floating(1, 2, 2, 2), tuple(small(2)), (1, 1),
                              (0, 0), (1, 1)],
    "batch_norm": lambda: [*rows(2), 0.1],
    "batch_norm_grad": lambda: (lambda r: [r[0], *r, 0.1])(rows(3)),
    "philox": lambda: [nd.zeros((rng.choice([2, 2, 2, 3]),), "int64", device=nd.cpu()).view,
                       rng.choice([0, 5, 4099, -1, 2**62]), rng.random() < 0.5],
    "group_norm": lambda: [*rows(2), 1, rng.choice([1, 1, 2, 0, -1]), 0.1],
    "group_norm_grad": lambda: (lambda r: [r[0], *r, 1, rng.choice([1, 1, 2]), 0.1])(rows(1)),
    "lstm_gates": lambda: lstm()[:2],
    "lstm_gates_grad": lambda: (lambda s: [*s[:2], s[1], None, rng.choice([None, s[2]])])(lstm()),
    "lstm_sequence": lambda: lstm(rng.choice([0, 1, 2])),
    "lstm_sequence_grad": lambda: (lambda s, n: [
        s[1], s[2], s[3], floating(1, *n), floating(1, *n), s[0], None, None,
    ])(*(lambda s: (s, s[1].shape))(lstm(1))),
    **{name: lambda: [view(), rng.choice([(), (0,), (1, 0), (0, 0), (3,)]), True]
       for name in ("sum", "prod", "max", "min")},
}  # fmt: skip
ARITY = {"where": 3, "copy": 2, "fill": 2, "to_dlpack": 2, "sgd_step": 7, "adam_step": 12,
         **dict.fromkeys(_cpu.BINARY, 2), **dict.fromkeys(LIKELY, 3),
         "topk": 4, "resample": 4, "linear_scan": 4, "cummax": 2, "cummin": 2,
         "conv2d": 5, "conv2d_input": 6, "conv2d_weight": 6, "batch_norm": 4, "batch_norm_grad": 6,
         "group_norm": 6, "group_norm_grad": 6, "philox": 3,
         "lstm_gates": 2, "lstm_gates_grad": 5, "lstm_sequence": 4, "lstm_sequence_grad": 8,
         **dict.fromkeys(["synchronize", "get_num_threads", "isa", "blas", "empty_cache",
                          "memory_cached"], 0)}  # fmt: skip


def main():
    warnings.simplefilter("ignore")
    names = [n for n in dir(_cpu) if callable(getattr(_cpu, n)) and n[0] not in "_V"]
    names = [n for n in names if not n.endswith("_exchange")]  # test_exchange.py: once per process
    returned = dict.fromkeys(names, 0)
    for _ in range(int(sys.argv[2])):
        name = rng.choice(names)
        arity = max(0, ARITY.get(name, 1) + rng.choice([0] * 20 + [-1, 1]))
        arguments = [anything() for _ in range(arity)]
        if name in LIKELY and rng.random() < 0.7:
            arguments = LIKELY[name]()
        try:
            getattr(_cpu, name)(*arguments)
            returned[name] += 1
        except EXPECTED:
            continue
    never = [name for name, count in returned.items() if not count]
    if never:
        sys.exit(f"never called with success: {', '.join(never)}")


if __name__ == "__main__":
    main()
