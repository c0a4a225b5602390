"""`inspect --graph`: the pictures of an artifact's kernels and of an ONNX file's operators."""

import html
import itertools
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import needle_tvm
from needle import nn
from needle_runtime.artifact import Artifact, layout
from needle_runtime.artifact.files import sha256
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from needle_runtime.cli.drawing import script
from needle_runtime.cli.drawing.boxes import MANY, Box, Drawn, Weight, collapsed, kind_of, steps_of
from needle_runtime.cli.drawing.layout import place
from needle_runtime.cli.drawing.svg import amount, page, svg
from needle_runtime.errors import ArtifactError
from needle_tvm.__main__ import main
from tests.needle_tvm.conftest import tensor

SVG = "{http://www.w3.org/2000/svg}"


class Skip(nn.Module):
    """Two layers, the second's result added to the first's; a weight is read as it is stored."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 24), nn.Linear(24, 24)
        self.scale = nn.Parameter(np.ones(24, np.float32))

    def forward(self, x):
        y = self.first(x)
        return self.second(y.relu()) + y * self.scale


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn") / "skip"
    x = tensor(np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32))
    needle_tvm.compile(Skip().eval(), x).export(folder)
    return folder


def texts(picture):
    """The pieces of text in an SVG picture; it must be well-formed."""
    return [node.text for node in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_an_artifact_is_drawn_with_kernels_and_weights(artifact, tmp_path, capsys):
    out = tmp_path / "new" / "graph.svg"
    assert main(["inspect", str(artifact), "--graph", str(out)]) == 0
    assert re.search(rf"^wrote +{out}$", capsys.readouterr().out, re.M)
    found = texts(out.read_text())
    for line in ("x", "float32(4, 16)", "output.0", "first.weight", "  float32(16, 24), 1.5 kB"):
        assert line in found, found
    assert any(line.startswith("dense") for line in found)


def test_boxes_follow_the_kernels(artifact):
    """Every weight is drawn with its own name and shape, and each box reads what came before."""
    drawn = script.of_artifact(Artifact.open(artifact))
    weights = {w.name: w.size for box in drawn.boxes for w in box.weights}
    stored = Skip().state_dict()
    assert weights == {name: 4 * array.size for name, array in stored.items()}
    roles = [box.role for box in drawn.boxes]
    assert roles[0] == "input" and roles[-1] == "output" and roles.count("kernel") >= 2
    products = [box for box in drawn.boxes if box.kind == "product"]
    assert len(products) == 2
    assert "float32(4, 24)" in products[0].result
    for i, box in enumerate(drawn.boxes):
        assert all(0 <= source < i for source in box.reads)
        assert box.reads or box.role == "input"


def test_the_module_s_text_is_checked_before_it_is_read(artifact, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in artifact.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    script_file = broken / layout.SCRIPT
    script_file.write_text(script_file.read_text() + "# one more line\n")
    with pytest.raises(ArtifactError, match=layout.SCRIPT):
        script.of_artifact(Artifact.from_manifest(broken))
    for wrong in ("class Module:\n  x = (", "x = 1\n", "class Module:\n    pass\n"):
        files = read_manifest(broken)["files"]
        script_file.write_text(wrong)
        digest = sha256(script_file)
        files[layout.SCRIPT] = {"size": len(wrong), "sha256": digest}
        write_manifest(broken, {**read_manifest(broken), "files": files})
        with pytest.raises(ArtifactError, match="the graph cannot be read from it"):
            script.of_artifact(Artifact.from_manifest(broken))


def test_other_endings_and_folders_are_refused(artifact, tmp_path, capsys):
    assert main(["inspect", str(artifact), "--graph", str(tmp_path / "graph.png")]) == 2
    assert "must end in .svg or .html" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["inspect", str(artifact), "--graph", str(tmp_path / "file" / "g.svg")]) != 0
    assert capsys.readouterr().err.count("\n") == 1


# ONNX files


@pytest.fixture
def onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    constant = onnx.numpy_helper.from_array(rng.standard_normal((8, 5)).astype(np.float32))
    make = onnx.helper.make_node
    nodes = [
        make("Conv", ["x", "kernel"], ["a"], name="stem"),
        make("Relu", ["a"], ["b"]),
        make("GlobalAveragePool", ["b"], ["c"]),
        make("Flatten", ["c"], ["d"]),
        make("Constant", [], ["table"], value=constant),
        make("Neg", ["table"], ["negated"]),
        make("MatMul", ["d", "negated"], ["e"]),
        make("Max", ["e", "e"], ["y<script>"]),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [info("x", 1, ["n", 3, 16, 16])],
        [info("y<script>", 1, ["n", 5])],
        [onnx.numpy_helper.from_array(kernel, "kernel")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def test_an_onnx_file_is_inspected_and_drawn(onnx_file, capsys):
    out = onnx_file.with_suffix(".html")
    assert main(["inspect", str(onnx_file), "--graph", str(out)]) == 0
    text = capsys.readouterr().out
    for line in ("input +x: float32.n, 3, 16, 16.", "opset +ai.onnx 17", "weights +256 numbers",
                 "operators +Constant x 1, Conv x 1", "needle +has all operators"):  # fmt: skip
        assert re.search(f"^{line}", text, re.M), text
    picture = out.read_text()
    assert "<script>" not in picture  # names are text
    found = texts(picture[picture.index("<svg") : picture.index("</main>")])
    for line in ("float32(n, 8, 14, 14)", "  float32(8, 3, 3, 3), 864 B", "table", "y<script>"):
        assert line in found, found
    assert "Neg" not in found  # a weight's own operator
    assert "convolution (1)" in found and "product (1)" in found and "other (3)" in found


def test_an_onnx_file_as_json_and_its_faults(onnx_file, tmp_path, capsys):
    assert main(["inspect", str(onnx_file), "--json"]) == 0
    assert '"Flatten": 1' in capsys.readouterr().out
    (tmp_path / "no.onnx").write_bytes(b"\xff\x00 nothing")
    assert main(["inspect", str(tmp_path / "no.onnx")]) == 2
    assert "ONNX" in capsys.readouterr().err
    key = tmp_path / "key.pem"
    assert main(["inspect", str(onnx_file), "--require-signature", str(key)]) == 2
    assert "is an ONNX file" in capsys.readouterr().err


def test_damaged_onnx_files_are_refused_or_drawn(tmp_path, capsys):
    pytest.importorskip("onnx")
    from tests.needle.onnx.mutation import damaged

    path, codes = tmp_path / "m.onnx", set()
    for seed in range(40):
        path.write_bytes(damaged(seed))
        codes.add(main(["inspect", str(path), "--graph", str(tmp_path / "m.svg")]))
        assert capsys.readouterr().err.count("\n") <= 1
    assert codes == {0, 2}


# Parts


@pytest.mark.parametrize(
    ("name", "steps", "kind"),
    [
        ("fused_conv2d1_add3_add4_relu", ("conv2d", "add x 2", "relu"), "convolution"),
        ("fused_dense_add_tanh", ("dense", "add", "tanh"), "product"),
        ("summation1", ("summation",), "reduction"),
        ("fused_maximum1_exp", ("maximum", "exp"), "other"),
        ("lstm", ("lstm",), "recurrent"),
        ("_", ("_",), "other"),
    ],
)
def test_names_of_kernels(name, steps, kind):
    assert kind_of(name) == kind
    # conv2d keeps its digits inside; only a number at the end is TVM's.
    assert steps_of(name) == steps


def test_amounts():
    assert [amount(n) for n in (0, 999, 1000, 3_138_164, 4_500_000_000_000)] == [
        "0 B",
        "999 B",
        "1 kB",
        "3.1 MB",
        "4500 GB",
    ]


def random_graph(count, seed):
    """Boxes of drawn sizes, each of which reads up to three of the ten before it."""
    rng = np.random.default_rng(seed)
    reads = [
        tuple({int(i - 1 - back) for back in rng.integers(0, 10, rng.integers(0, 4)) if back < i})
        for i in range(count)
    ]
    sizes = [(float(w), float(h)) for w, h in rng.uniform(20, 200, (count, 2))]
    return reads, sizes


@pytest.mark.parametrize("seed", range(4))
def test_boxes_stand_apart_and_below_what_they_read(seed):
    reads, sizes = random_graph(60, seed)
    placed = place(reads, sizes)
    spans = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(placed.corners, sizes, strict=True)]
    for a, b in itertools.combinations(spans, 2):
        apart = a[2] <= b[0] + 1e-6 or b[2] <= a[0] + 1e-6 or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (a, b)
    for i, sources in enumerate(reads):
        assert all(spans[source][3] < spans[i][1] for source in sources)
    assert min(s[0] for s in spans) >= -1e-6 and max(s[2] for s in spans) <= placed.width + 1e-6
    assert max(s[3] for s in spans) <= placed.height + 1e-6
    # Edges end at their boxes and never go up or through a box.
    assert len(placed.edges) == sum(map(len, reads))
    for points in placed.edges:
        assert all(v >= y for (_, y), (_, v) in itertools.pairwise(points))
        for (x, y), (u, v) in list(itertools.pairwise(points))[1::2]:  # straight, past a layer
            assert x == u and not any(a < x < c and b < (y + v) / 2 < d for a, b, c, d in spans)


def chain(count):
    drawn = Drawn("chain", [Box("input", ("x",), "input")])
    for i in range(count):
        held = (Weight(f"w{i}", "float32(2)", 8),)
        drawn.add(Box("kernel", (f"step{i}",), "product", (i,), "float32(2)", held))
    drawn.add(Box("output", ("y",), "output", (count,)))
    return drawn


def test_chains_of_a_big_graph_are_one_box():
    small, big = chain(20), chain(MANY)
    assert collapsed(small) is small
    drawn = collapsed(big)
    assert [box.role for box in drawn.boxes] == ["input", "kernel", "output"]
    middle = drawn.boxes[1]
    assert middle.reads == (0,) and drawn.boxes[2].reads == (1,)
    assert middle.lines[0] == f"{MANY} in a row: step0" and middle.weight == drawn.weight
    assert drawn.weight == big.weight == 8 * MANY
    assert f"w{MANY - 1}: float32(2), 8 bytes" in html.unescape(svg(drawn))


@pytest.mark.parametrize("seed", range(3))
def test_collapsing_keeps_who_reads_whom(seed):
    """Inputs reach the same outputs, and no kernel or weight is lost."""
    reads, _ = random_graph(120, seed)
    drawn = Drawn("drawn")
    for i, sources in enumerate(reads):
        role = "kernel" if sources else "input"
        drawn.add(Box(role, (f"k{i}",), "other", sources, weights=(Weight(f"w{i}", "", 1),)))
    made = collapsed(drawn, most=0)
    assert len(made.boxes) < len(drawn.boxes)
    assert made.weight == drawn.weight
    ends = [len({j for b in g.boxes for j in b.reads}) - len(g.boxes) for g in (drawn, made)]
    assert ends[0] == ends[1]  # as many that nobody reads
    assert all(source < i for i, box in enumerate(made.boxes) for source in box.reads)


def test_a_deep_graph_is_drawn():
    drawn = chain(3 * sys.getrecursionlimit())
    assert page(collapsed(drawn)).startswith("<!DOCTYPE html>")
    boxes = [Box("input", ("x",), "input")]
    for i in range(MANY + 50):  # every box is read twice, so that nothing collapses
        boxes.append(Box("kernel", (f"k{i}",), "other", tuple({max(0, i - 1), i})))
    assert len(texts(svg(collapsed(Drawn("ladder", boxes))))) > MANY
