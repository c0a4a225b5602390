"""Python values that a `jit` function reads around it: a change of any is seen at the next call.

Each case is (function, changes): the eager function says after each change what is right.
"""

import argparse
import collections
import dataclasses
import functools
import sys
import types
from typing import ClassVar

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim
from needle.errors import TraceError
from needle_tvm import jit
from needle_tvm.errors import EagerWarning
from tests.needle_tvm.compiler.jitted import compilations, ones, plain


class Settings:
    scale = 2.0
    table: ClassVar = {"a": [1.0, 2.0]}

    def __init__(self, shift=1.0):
        self.shift = shift
        self.seen = []

    @property
    def twice(self):
        return 2 * self.shift

    @classmethod
    def scaled(cls, x):
        return x * cls.scale

    def moved(self, x):
        return self.scaled(x) + self.twice


class Sub(Settings):
    pass


class Slots:
    __slots__ = ("inner", "scale")


@dataclasses.dataclass
class Config:
    width: float = 1.0
    inner: object = None


class Model(nn.Module):
    factor = 2.0

    def __init__(self):
        super().__init__()
        self.table = np.ones(3, "float32")
        self.options = {"gain": 2.0, "steps": [1.0]}
        self.config = Config(inner=Settings())

    def forward(self, x):
        y = x * ndl.Tensor(self.table) * self.factor + self.options["gain"]
        return y + self.options["steps"][0] + self.config.inner.shift * self.config.width


MODULE = types.ModuleType("captured_settings")


def array():
    a = np.array([1.0, 2.0, 3.0], "float32")
    return lambda x: x * ndl.Tensor(a), [lambda: a.__setitem__(1, 5.0)]


def array_read_as_numbers():
    a = np.arange(3)
    return lambda x: x * float(a[0]), [lambda: a.__iadd__(1)]


def view_of_an_array():
    a = np.zeros((2, 3), "float32")
    b = a[1]
    return lambda x: x + ndl.Tensor(b), [lambda: a.fill(4.0)]


def array_of_objects():
    a = np.array([1.0, "x"], object)
    return lambda x: x * a[0], [lambda: a.__setitem__(0, 3.0)]


def array_of_needle():
    a = ndl.backend_ndarray.array(np.ones(3, "float32"))
    return lambda x: x * float(a.numpy()[0]), [lambda: a.fill(3.0)]


def bytes_of_numbers():
    a = bytearray([1, 2])
    return lambda x: x * a[0], [lambda: a.__setitem__(0, 3)]


def items():
    d = {"scale": 2.0, "deep": {"list": [1.0, {"x": 3.0}]}}

    def f(x):
        return x * d["scale"] + d["deep"]["list"][1]["x"]

    return f, [
        lambda: d.update(scale=3.0),
        lambda: d["deep"]["list"][1].update(x=4.0),
        lambda: d.update(deep={"list": [0.0, {"x": 9.0}]}),
    ]


def keys():
    d = {"a": 1.0}
    return lambda x: sum((x * v for v in d.values()), x), [
        lambda: d.update(b=2.0),
        lambda: d.pop("a"),
    ]


def several_kinds():
    s, q, n = {1.0}, collections.deque([1.0]), collections.defaultdict(float)
    t = (0.0, [1.0])

    def f(x):
        return x * sum(s) + q[-1] + n["a"] + t[1][0]

    return f, [
        lambda: s.add(4.0),
        lambda: q.append(5.0),
        lambda: n.update(a=6.0),
        lambda: t[1].__setitem__(0, 7.0),
    ]


def class_attributes():
    class Own(Settings):
        pass

    one = Own()

    def f(x):
        return x * Own.scale + Own.table["a"][1] + one.scale

    return f, [
        lambda: setattr(Own, "scale", 3.0),
        lambda: setattr(one, "scale", 4.0),
        lambda: Own.table["a"].__setitem__(1, float(np.random.default_rng(0).random())),
        lambda: setattr(Own, "table", {"a": [0.0, 1.0]}),
    ]


def attributes_of_attributes():
    c = Config(inner=Config(inner=Settings()))

    def f(x):
        return x * c.inner.inner.shift + c.inner.width

    return f, [
        lambda: setattr(c.inner.inner, "shift", 3.0),
        lambda: setattr(c.inner, "width", 4.0),
        lambda: setattr(c, "inner", Config(5.0, Settings(6.0))),
    ]


def methods_and_properties():
    class Own(Settings):
        pass

    one = Own()
    return one.moved, [
        lambda: setattr(one, "shift", 5.0),
        lambda: setattr(Own, "scale", 7.0),
        lambda: setattr(Own, "twice", 8.0),
    ]


def named_attributes():
    one, name = Config(), "width"
    return lambda x: x * getattr(one, "".join(name)), [lambda: setattr(one, "width", 2.0)]


def absent_attributes():
    one = Config()
    return lambda x: x * getattr(one, "gain", 1.0), [lambda: setattr(one, "gain", 2.0)]


def slots():
    one, two = Slots(), Slots()
    one.scale, one.inner, two.scale = 1.0, two, 2.0
    return lambda x: x * one.scale + one.inner.scale, [
        lambda: setattr(one, "scale", 3.0),
        lambda: setattr(two, "scale", 4.0),
    ]


def namespaces():
    a, b = types.SimpleNamespace(x=1.0), argparse.Namespace(y=types.SimpleNamespace(z=2.0))
    return lambda x: x * a.x + b.y.z, [
        lambda: setattr(a, "x", 3.0),
        lambda: setattr(b.y, "z", 4.0),
    ]


def modules_of_python():
    MODULE.scale, MODULE.table = 1.0, np.ones(3, "float32")
    exec("gain = 1.0\ndef scaled(x): return x * gain", vars(MODULE))
    sys.modules[MODULE.__name__] = MODULE

    def f(x):
        from captured_settings import table

        return MODULE.scaled(x) * MODULE.scale + ndl.Tensor(table)

    return f, [
        lambda: setattr(MODULE, "scale", 2.0),
        lambda: setattr(MODULE, "gain", 3.0),
        lambda: MODULE.table.fill(4.0),
    ]


def functions():
    def helper(x, by=[2.0], *, plus={"a": 1.0}):  # noqa: B006
        return x * by[0] + plus["a"] + helper.shift

    helper.shift = 1.0
    other = functools.partial(helper, by=[5.0])
    return lambda x: helper(x) + other(x), [
        lambda: helper.__defaults__[0].__setitem__(0, 3.0),
        lambda: helper.__kwdefaults__["plus"].update(a=4.0),
        lambda: setattr(helper, "shift", 5.0),
        lambda: other.keywords["by"].__setitem__(0, 6.0),
    ]


def attributes_of_layers():
    class Own(Model):
        pass

    model = Own()
    return (lambda x: model(x)), [
        lambda: model.table.fill(3.0),
        lambda: model.options.update(gain=4.0),
        lambda: model.options["steps"].__setitem__(0, 5.0),
        lambda: setattr(model.config.inner, "shift", 6.0),
        lambda: setattr(model.config, "width", 7.0),
        lambda: setattr(Own, "factor", 8.0),
    ]


def a_layer_itself():
    class Own(Model):
        pass

    model = Own()
    return model, [
        lambda: model.options.update(gain=4.0),
        lambda: setattr(Own, "factor", 8.0),
    ]


def globals_by_name():
    names = {}
    exec("scale = 2.0\ndef f(x): return x * globals()['scale']", names)
    return names["f"], [lambda: names.update(scale=3.0)]


def dict_of_a_class_of_its_own():
    class Own(dict):
        gain = 1.0

        def __getattr__(self, name):
            return self[name]

    d = Own(scale=2.0)
    return lambda x: x * d.scale + d.gain, [
        lambda: d.update(scale=3.0),
        lambda: setattr(Own, "gain", 4.0),
    ]


def hooks():
    layer, gains = nn.Identity(), [2.0]
    layer.register_forward_hook(lambda module, args, y: y * gains[0])
    return lambda x: layer(x), [lambda: gains.__setitem__(0, 3.0)]


def one_list_under_two_names():
    a = [1.0]
    d = {"x": a, "y": a}
    return lambda x: x * d["x"][0] + d["y"][0], [lambda: d.update(y=[5.0])]


def learning_rates():
    weight = nn.Parameter(ndl.ones(3))
    optimizer = optim.SGD([weight], lr=0.5)
    schedule = optim.StepLR(optimizer, 1)

    def f(x):
        return x * optimizer.param_groups[0]["lr"] + optimizer.lr

    return f, [lambda: setattr(optimizer, "lr", 0.25), lambda: schedule.step()]


CASES = [
    array, array_read_as_numbers, view_of_an_array, array_of_objects, array_of_needle,
    bytes_of_numbers, items, keys, several_kinds, class_attributes, attributes_of_attributes,
    methods_and_properties, named_attributes, absent_attributes, slots, namespaces,
    modules_of_python, functions, attributes_of_layers, a_layer_itself, globals_by_name,
    dict_of_a_class_of_its_own, hooks, one_list_under_two_names, learning_rates,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_seen(case):
    function, changes = case()
    f, x = plain(function), ones(3) * 3

    def check():
        for _ in range(2):
            np.testing.assert_allclose(f(x).numpy(), function(x).numpy(), rtol=1e-6)

    check()
    assert compilations(f) == 1
    for number, change in enumerate(changes):
        before = function(x).numpy()
        change()
        assert (function(x).numpy() != before).any(), f"change {number} has no effect"
        check()


def test_static_arguments_are_watched():
    gains, config = [2.0], Settings()
    f = jit(lambda x, how, config: how(x) * config.shift, static=("how", "config"), stage="noopt")

    def how(x):
        return x * gains[0]

    for gains[0], config.shift in ((2.0, 1.0), (3.0, 1.0), (3.0, 4.0)):
        assert f(ones(2), how, config).tolist() == [gains[0] * config.shift] * 2


def test_what_the_function_does_not_read_may_change():
    one, a, traced = Settings(), np.ones(3, "float32"), []

    def f(x):
        traced.append(None)
        return x * one.shift * ndl.Tensor(a)

    jitted = plain(f)
    for step in range(4):
        one.seen.append(float(step))  # no name in f
        one.steps = step
        a = a.copy()  # of the same values
        jitted(ones(3))
    assert compilations(jitted) == len(traced) == 1


def test_the_reason_names_the_value():
    settings, lines = {"deep": [Config(1.0)]}, []
    f = plain(lambda x: x * settings["deep"][0].width)
    f._log = lines.append
    f(ones(2))
    settings["deep"][0].width = 2.5
    f(ones(2))
    assert "settings.deep.0.width is 2.5 instead of 1.0" in lines[1]


def test_arrays_of_other_libraries_are_refused_by_name():
    torch = pytest.importorskip("torch")
    weights = {"w": torch.ones(2)}
    with pytest.raises(TraceError, match=r"weights\.w is a torch\.Tensor"):
        plain(lambda x: x * ndl.from_dlpack(weights["w"]))(ones(2))
    eager = plain(lambda x: x * ndl.from_dlpack(weights["w"]))
    eager._falls_back = True
    with pytest.warns(EagerWarning, match="torch.Tensor"):
        assert eager(ones(2)).tolist() == [1, 1]
    weights["w"] *= 2
    assert eager(ones(2)).tolist() == [2, 2]
    shared = ndl.from_dlpack(weights["w"])
    assert plain(lambda x: x * shared)(ones(2)).tolist() == [2, 2]
