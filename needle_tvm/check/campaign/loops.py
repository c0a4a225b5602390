"""Draw loops for random programs. Their bodies are random expressions of states and slices."""

from __future__ import annotations

from needle.op import Op
from needle_tvm.check.campaign.drawer import Drawer, Made

# Expressions that keep values of shape (rows, n) in range. {a} and {b} are such values, {w} is a
# matrix (n, n), {v} a vector (n,).
_LINES = (
    "ops.tanh({a} + {b})", "{a} * 0.5 + {b} * 0.25", "ops.sigmoid({a}) * {b}", "{a} @ {w}",
    "ops.tanh({a} @ {w} + {b})", "ops.where({v} > 0, {a}, {b})", "({a} - {b}) * {v}",
    "ops.softmax({a} + {b}, -1)", "{a} - ops.mean({a}, -1, True)", "ops.flip({a}, -1)",
    "ops.concat([{a}[:, 1:], {b}[:, :1]], 1)", "ops.relu({a}) - 0.1",
    "ops.transpose(ops.transpose({a}))",
    "ops.logsumexp({a}, -1, True) * {b}", "{a}[::-1] + {b}", "ops.layer_norm({a}, {v}, {v})",
    "ops.detach({a}) + {b}", "ops.broadcast_to({v}, {a}.shape) + {a}", "{a}",
    "ops.cumsum({a}, -1) * 0.3", "ops.sort({a})[0]",
    "ndl.scan(lambda q, z: (ops.tanh(q + z * {v}), q), {a}, ops.stack([{a}, {b}]))[0]",
)  # fmt: skip
_RESULTS = (*_LINES, "{a}.sum()", "{a}.sum(-1)", "{a}[0]", "ops.amax({a}, 0)", "{v}", "{a}[:, :1]")


def scan(d: Drawer, cls: type[Op]) -> bool:
    """Draw a scan with one to three states; its body reads states, slices and earlier results."""
    rng = d.rng
    steps, rows, n = d.extent([1, 2, 3, 5, 9]), d.extent([1, 2, 3, 5]), rng.choice([2, 3, 7, 16])
    dtype = d.float_dtype()
    first = [d.leaf([rows, n], dtype, -1, 1) for _ in range(rng.randint(1, 3))]
    slices = [_sequence(d, [steps, rows, n], dtype) for _ in range(rng.randint(1, 2))]
    scale = 1 / n**0.5
    around = [d.leaf([n, n], dtype, -scale, scale), d.leaf([n], dtype, -1, 1)]
    numbers = iter(range(9))
    s, x, w, v = (
        [f"{{{next(numbers)}}}" for _ in part] for part in (first, slices, around[:1], around[1:])
    )
    known = [f"s[{i}]" for i in range(len(s))] + [f"x[{i}]" for i in range(len(x))]
    lines = []

    def line(choices: tuple[str, ...]) -> str:
        a, b = (rng.choice(known) for _ in "ab")
        return rng.choice(choices).format(a=a, b=b, w=w[0], v=v[0])

    for number in range(rng.randint(1, 4)):
        lines.append(f"(t{number} := {line(_LINES)})")
        known.append(f"t{number}")
    after = [f"({line(_LINES)}).astype({dtype!r})" for _ in s]
    if len(s) > 1 and rng.random() < 0.3:
        after = [*(f"s[{i}]" for i in range(1, len(s))), after[0]]
    ys = [line(_RESULTS) for _ in range(rng.randint(0, 3))]
    text = (
        f"(lambda r: (*r[0], *r[1]))(ndl.scan(lambda s, x: ([{', '.join(lines)}], "
        f"([{', '.join(after)}], [{', '.join(ys)}]))[1], [{', '.join(s)}], [{', '.join(x)}], "
        f"reverse={rng.random() < 0.3}))"
    )
    results = len(s) + len(ys)
    if results == 1:
        text = f"{text}[0]"
    return d.add(text, *first, *slices, *around, results=results) is not None


def _sequence(d: Drawer, shape: list[int], dtype: str) -> Made:
    found = d.pick(lambda value: value.shape == tuple(shape) and value.dtype == dtype)
    return found or d.leaf(shape, dtype, -1, 1)


def cond(d: Drawer, cls: type[Op]) -> bool:
    """Draw a bool that chooses between two random expressions."""
    predicate, leaves = d.leaf([], "bool"), _square(d)
    one, other = (_line(d) for _ in "ab")
    text = f"ndl.cond({{4}}, lambda: ({one}), lambda: ({other}))"
    return d.add(text, *leaves, predicate) is not None


def while_loop(d: Drawer, cls: type[Op]) -> bool:
    """Draw an expression that is repeated as often as an input says. The loop has no gradient."""
    times, leaves = d.leaf([], "int32", 0, 5), _square(d)
    line = _line(d, "s[1]")
    step = f"lambda s: (s[0] + 1, {line})"
    loop = f"ndl.while_loop(lambda s: s[0] < {{4}}, {step}, ({{4}} * 0, {{0}}))[1]"
    names = [*"abwvn"]
    given = ", ".join(f"ops.detach({{{number}}})" for number in range(len(names)))
    text = f"(lambda {', '.join(names)}: {loop.format(*names)})({given})"
    return d.add(text, *leaves, times) is not None


def _square(d: Drawer) -> list[Made]:
    """Return two values (rows, n), a matrix (n, n) and a vector (n,)."""
    rows, n, dtype = d.extent([1, 2, 3, 5]), d.rng.choice([2, 3, 7, 16]), d.float_dtype()
    shapes = ([rows, n], [rows, n], [n, n], [n])
    return [d.leaf(shape, dtype, -(n**-0.5), n**-0.5) for shape in shapes]


def _line(d: Drawer, a: str = "{0}") -> str:
    return d.rng.choice(_LINES).format(a=a, b="{1}", w="{2}", v="{3}")
