"""Code for every size: right at the bounds, at 1, at primes and beside multiples of tiles."""

import json
import subprocess
import sys

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle import nn, ops
from needle.errors import ShapeError, TraceError
from needle.op import REGISTRY
from needle.op.samples import Arg
from needle.sizes.dims import Dim
from needle.testing.examples import draw
from needle.trace import trace
from needle_runtime.artifact import Artifact
from needle_runtime.errors import InputError, UsageError
from needle_tvm.check import parity
from needle_tvm.compiler import first_check
from needle_tvm.errors import MismatchError
from needle_tvm.frontend import reference
from needle_tvm.frontend.resolved_dims import Sized
from needle_tvm.frontend.shapes import Shapes
from tests.needle.test_trace_dims import CASES, K, N, inputs_of, symbolic
from tests.needle_runtime.ways import both_ways, native_way
from tests.needle_tvm.conftest import make_mlp, tensor

STAGES = ("noopt", "fused")
IN_CI = (pytest.param("noopt", marks=pytest.mark.long), "fused")  # of many compilations
LARGE = Dim("n", max=257)
OWN = sorted(
    name
    for name, op in REGISTRY.items()
    if op.__module__.startswith("needle.") and not op.structural
)


def compiled(model, *inputs, dims, stage="noopt", **choices):
    return needle_tvm.compile(model, *inputs, dims=dims, stage=stage, **choices)


def agrees(found, wanted):
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        assert (have.shape, have.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(have, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_an_mlp_beside_pytorch(stage, rng):
    torch = pytest.importorskip("torch")
    model = make_mlp(8, 16, 4)
    exe = compiled(model, np.zeros((5, 8), "f"), dims={"x": {0: LARGE}}, stage=stage)
    first_layer, _, second, _ = model.modules
    weights = [
        torch.from_numpy(part.numpy())
        for layer in (first_layer, second)
        for part in (layer.weight, layer.bias)
    ]
    for rows in (1, 2, 3, 7, 8, 9, 31, 64, 65, 127, 256, 257):
        x = rng.standard_normal((rows, 8)).astype("float32")
        a, b, c, d = weights
        wanted = torch.relu(torch.relu(torch.from_numpy(x) @ a + b) @ c + d).numpy()
        agrees([exe(x).numpy()], [wanted])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stage", IN_CI)
def test_models_at_their_bounds_and_between(stage, case, rng):
    model, shapes = CASES[case]
    if isinstance(model, nn.Module):
        model.eval()
    graph = trace(
        model, *inputs_of(shapes, dict.fromkeys([*_dims(shapes)], 8)), dims=symbolic(shapes)
    )
    example = inputs_of(shapes, {d: min(max(8, d.min), d.max) for d in graph.dims})
    exe = compiled(model, *example, dims=symbolic(shapes), stage=stage, check=False)
    weights = {name: value.numpy() for name, value in graph.weights.values().items()}
    sized = Sized(graph)
    for number in range(5):
        ends = {0: min, 1: max}.get(number)
        sizes = {
            d: ends((d.min, d.max))
            if ends
            else d.multiple_of
            * int(rng.integers(d.min // d.multiple_of, d.max // d.multiple_of + 1))
            for d in graph.dims
        }
        inputs = inputs_of(shapes, sizes)
        wanted = reference.eager_outputs(sized.of(inputs), inputs, weights)
        agrees(exe.program.run(inputs), wanted)
        written = [np.empty_like(each) for each in wanted]
        exe.program(*inputs, out=exe.artifact.main.unflatten(written))
        agrees(written, wanted)


def _dims(shapes):
    return {n for axes in symbolic(shapes).values() for n in axes.values() for n in n.dims}


def _symbolic_sample(sample):
    """A sample's shapes with a dim for each extent above 1; None if it has none."""
    if not all(isinstance(arg, Arg) for arg in sample.inputs):
        return None
    extents = {n for arg in sample.inputs for n in arg.shape}
    if 0 in extents or not extents - {1}:
        return None
    dims = {n: Dim(f"d{n}", min=max(1, n - 2), max=n + 3) for n in extents if n > 1}
    return [tuple(dims.get(n, n) for n in arg.shape) for arg in sample.inputs], dims


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("stage", IN_CI)
def test_every_op_at_other_sizes_than_its_samples(stage, name, rng):
    """With all of a sample's extents unknown at once, an op is refused by name, or is right."""
    served = 0
    dtype = "int32" if name in ("bitwise", "bitwise_not") else "float32"
    for sample in REGISTRY[name].samples:
        found = _symbolic_sample(sample)
        if found is None or served == 2:
            continue
        shapes, dims = found
        op = REGISTRY[name](**sample.attributes)
        names = [f"x{i}" for i in range(len(shapes))]
        function = eval(f"lambda {', '.join(names)}: op({', '.join(names)})", {"op": op})
        example = [draw(arg, dtype, rng) for arg in sample.inputs]
        given = {
            x: {axis: n for axis, n in enumerate(shape) if isinstance(n, Dim)}
            for x, shape in zip(names, shapes, strict=True)
            if any(isinstance(n, Dim) for n in shape)
        }
        try:
            graph = trace(function, *example, dims=given)
        except (TraceError, ShapeError, IndexError):
            continue
        served += 1
        exe = compiled(function, *example, dims=given, stage=stage, check=False)
        for sizes in ({n: dims[n].min for n in dims}, {n: n + 3 for n in dims}):
            inputs = [
                draw(Arg(tuple(sizes.get(n, n) for n in arg.shape), arg.low, arg.high,
                         arg.dtype), dtype, rng)
                for arg in sample.inputs
            ]  # fmt: skip
            inputs = _valid(graph, inputs)
            wanted = reference.eager_outputs(Sized(graph).of(inputs), inputs, {})
            agrees(exe.program.run(inputs), wanted)


def _valid(graph, inputs):
    """Inputs with indices cut off to the range that their op allows at these sizes."""
    sized = Sized(graph)
    by_node = sized.by_node(inputs)
    ranges = {}
    for node in by_node.values():
        if node.op is not None:
            for i, ends in node.op.index_ranges(*[x.spec for x in node.input_nodes]).items():
                ranges[node.input_nodes[i]] = ends
    return [
        array.clip(*ranges[by_node[leaf.node]]).astype(array.dtype)
        if leaf.node in by_node and by_node[leaf.node] in ranges
        else array
        for leaf, array in zip(graph.inputs, inputs, strict=True)
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_parity(stage):
    model = nn.Sequential(nn.Conv(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()
    x = tensor(np.random.default_rng(0).standard_normal((7, 3, 4, 4)).astype("float32"))
    dims = {0: {0: N}}
    (result,) = parity.ladder(model, [x], {stage: compiled(model, x, dims=dims, stage=stage)}, dims)
    assert result.ok, result


X = np.zeros((5, 8), np.float32)


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        ({"y": {0: N}}, "'y' is not an input; they are x"),
        ({0: {3: N}}, "no axis 3"),
        ({0: {0: 2 * N + 1}}, "n must be the size of an axis"),
        ({0: {0: N * N}}, "n must be the size of an axis"),
        ({0: {0: K - 1}}, "k must be the size of an axis"),
        ({0: {0: Dim("n", min=6, max=9)}}, "the example does not fit: input 'x' has 5 .*from 6"),
        ({0: {0: K}}, "the example does not fit: .*a multiple of 8 from 8 to 64"),
    ],
)
def test_dims_that_do_not_fit(dims, match):
    with pytest.raises(UsageError, match=match):
        compiled(make_mlp(8, 4), X, dims=dims)


def test_what_takes_one_size():
    with pytest.raises(UsageError, match="code for GPUs is for one size"):
        needle_tvm.compile(make_mlp(8, 4), X, dims={0: {0: N}}, target="cuda:sm_80")


@pytest.fixture(scope="module")
def pair():
    """Code for x (n, 8), y (2 n, 8) and z (k, n), and its program."""
    exe = compiled(
        lambda x, y, z: (x + y[::2] + x.shape[0], z * 2),
        np.zeros((4, 8), "f"),
        np.zeros((8, 8), "f"),
        np.zeros((8, 4), "f"),
        dims={"x": {0: N}, "y": {0: 2 * N}, "z": {0: K, 1: N}},
    )
    return exe, exe.program


def zeros(*shapes):
    return [np.zeros(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        (((21, 8), (42, 8), (8, 21)), "input 'x' has 21 along axis 0, where n is from 1 to 20"),
        (((0, 8), (0, 8), (8, 0)), "input 'x' has 0 along axis 0"),
        (((3, 8), (6, 8), (12, 3)), "input 'z' has 12 along axis 0, where k is a multiple of 8"),
        (((3, 8), (7, 8), (8, 3)), r"'y' has 7 .* 2 \* n = 6 is expected \(n = 3 from input 'x'"),
        (((3, 8), (6, 8), (8, 4)), r"'z' has 4 along axis 1, where n is expected \(n = 3 from"),
        (((3, 9), (6, 8), (8, 3)), r"'x' is float32\(3, 9\), .* compiled for float32\(n, 8\)"),
        (((3,), (6, 8), (8, 3)), r"'x' is float32\(3\),"),
    ],
)
def test_sizes_that_a_call_may_not_have(pair, way, shapes, match):
    served, found = both_ways(pair[way], *zeros(*shapes))
    assert not served and found[0] is InputError
    with pytest.raises(InputError, match=match):
        pair[way](*zeros(*shapes))


@pytest.mark.parametrize("way", [0, 1])
def test_the_native_caller_serves_every_size(pair, way):
    with native_way(pair[way]) as caller:
        for n in (1, 20, 7, 1, 13):
            x, y, z = zeros((n, 8), (2 * n, 8), (16, n))
            found, _ = pair[way](x, y, z)
            assert found.shape == (n, 8) and (np.asarray(found) == n).all()
        assert caller.served == 5
    assert both_ways(pair[way], *zeros((3, 8), (6, 8), (8, 3)))[0]


def test_out_has_the_size_at_hand(pair):
    _, program = pair
    x, y, z = zeros((3, 8), (6, 8), (8, 3))
    out = zeros((3, 8), (8, 3))
    assert program(x, y, z, out=tuple(out))[0] is out[0] and (out[0] == 3).all()
    with pytest.raises(InputError, match=r"array 0 of out is float32\(4, 8\), the result is .*3"):
        program(x, y, z, out=tuple(zeros((4, 8), (8, 3))))


def test_indices_whose_range_depends_on_a_size():
    exe = compiled(
        lambda x, i: ops.take(x, i, 0), np.ones((4, 2), "f"), np.array([3]), dims={"x": {0: N}}
    )
    assert exe(np.ones((9, 2), "f"), np.array([8])).shape == (1, 2)
    with pytest.raises(InputError, match=r"'i' has the index 4, which is not within -4\.\.3"):
        exe(np.ones((4, 2), "f"), np.array([4]))


def test_nested_inputs_by_their_names():
    def model(batch, others):
        return {"sum": batch["image"] + others[0]}

    exe = compiled(model, {"image": X}, [X, X], dims={"batch_image": {0: N}, "others_0": {0: N}})
    assert [each["name"] for each in exe.program.inputs] == ["batch_image", "others_0", "others_1"]
    x = np.ones((9, 8), "f")
    assert (exe({"image": x}, [x, X])["sum"].numpy() == 2).all()
    with pytest.raises(InputError, match=r"'others_0' has 3 .*n = 9 from input 'batch_image'"):
        exe({"image": x}, [x[:3], X])


def test_the_cache_knows_bounds_and_not_the_example():
    model = make_mlp(8, 4)
    once = compiled(model, X, dims={0: {0: N}})
    again = compiled(model, X[:2], dims={"x": {0: Dim("n", max=20)}})
    other = compiled(model, X, dims={0: {0: Dim("n", max=21)}})
    assert not once.from_cache and again.from_cache and not other.from_cache
    assert once.artifact.path == again.artifact.path != other.artifact.path


def test_an_export_carries_three_sizes(tmp_path, rng):
    model = make_mlp(8, 4)
    exe = compiled(model, X, dims={0: {0: N}}, stage="fused")
    path = exe.export(tmp_path / "mlp")
    artifact = Artifact.open(path)
    golden = artifact.golden()
    rows = [example.inputs[0].shape[0] for example in (golden, *golden.others)]
    assert rows == [5, 1, 20]
    assert str(artifact.main.inputs[0].shape) == "(n, 8)"
    test = needle_runtime.self_test(needle_runtime.load(path))
    assert test.passed and len(test.differences) == 3
    loaded = needle_tvm.load(path)
    for count in (1, 3, 20):
        x = rng.standard_normal((count, 8)).astype("float32")
        agrees([loaded(x).numpy()], [model(tensor(x)).numpy()])
    again = needle_tvm.load(loaded.export(tmp_path / "again"))
    assert needle_runtime.self_test(again.program).passed
    loaded.set_params({name: 2 * value.numpy() for name, value in model.state_dict().items()})
    assert len(needle_tvm.load(loaded.export(tmp_path / "other")).artifact.golden().others) == 2


def test_the_commands(tmp_path):
    path = compiled(make_mlp(8, 4), X, dims={0: {0: N}}).export(tmp_path / "mlp")

    def command(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "needle_tvm", *arguments], capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    code, text = command("inspect", str(path))
    assert code == 0 and "x: float32(n, 8)" in text and "n is from 1 to 20" in text
    code, text = command("inspect", str(path), "--json")
    assert code == 0
    assert json.loads(text)["dims"] == [{"name": "n", "min": 1, "max": 20, "multiple_of": 1}]
    assert command("verify", str(path))[0] == 0
    code, text = command("run", str(path), "--random", "--size", "n=7")
    assert code == 0 and "float32(7, 4)" in text
    assert "float32(1, 4)" in command("run", str(path), "--random")[1]
    for size, words in (("n=21", "n is from 1 to 20"), ("q=1", "no such dim; they are n")):
        code, text = command("run", str(path), "--random", "--size", size)
        assert code == 2 and words in text
    np.save(tmp_path / "x.npy", np.zeros((13, 8), "f"))
    assert "float32(13, 4)" in command("run", str(path), str(tmp_path / "x.npy"))[1]


def test_the_first_check_looks_at_the_bounds(monkeypatch):
    """Code that is wrong at one size alone, the largest, is found, and the size is named."""
    real = needle_runtime.Program.run

    def wrong(self, values):
        results = real(self, values)
        return [each + 1 if len(each) == 20 else each for each in results]

    monkeypatch.setattr(first_check.Program, "run", wrong)
    with pytest.raises(MismatchError, match="at n = 20: output 0"):
        compiled(make_mlp(8, 3), X, dims={0: {0: N}})


def test_very_large_sizes_are_looked_at_one_by_one():
    """Inputs of all largest sizes together would take the check seconds."""
    shapes = Shapes([("x", (Dim("n", max=2000), Dim("m", max=3000)))], {})
    examples = shapes.examples([np.zeros((4, 5), "f")])
    assert [example[0].shape for example in examples] == [(4, 5), (1, 1), (4, 3000), (2000, 5)]


def test_weights_are_followed(rng):
    model = make_mlp(8, 4)
    exe = compiled(model, X, dims={0: {0: N}}, stage="fused")
    for rows in (3, 11):
        for parameter in model.parameters():
            parameter.data = ndl.Tensor(rng.standard_normal(parameter.shape).astype("float32"))
        x = rng.standard_normal((rows, 8)).astype("float32")
        agrees([exe(x).numpy()], [model(tensor(x)).numpy()])
