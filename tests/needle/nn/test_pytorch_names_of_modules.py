"""PyTorch's names of Module's methods, of nn.utils and of functions mean what they mean there."""

import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest

import needle as ndl
import needle.nn.functional as F
from needle import nn

torch = pytest.importorskip("torch")
TF = torch.nn.functional


def model(fw):
    inner = fw.Sequential(fw.Conv2d(1, 2, 3), fw.BatchNorm2d(2), fw.ReLU())
    return fw.Sequential(inner, fw.Flatten(), fw.ModuleDict({"a": fw.Linear(3, 4)}), inner)


def kinds(modules):
    return [type(module).__name__ for module in modules]


def test_what_is_in_a_module():
    ours, theirs = model(nn), model(torch.nn)
    assert kinds(ours.modules()) == kinds(theirs.modules()) and ours.modules()[0] is ours
    assert kinds(ours.children()) == kinds(theirs.children())
    assert kinds(m for _, m in ours.named_modules()) == kinds(theirs.modules())
    assert kinds(ours[2].modules()) == kinds(theirs[2].modules())
    assert len(ours.modules) == 4 and ours.modules[1] is ours[1]  # the course's attribute
    for other in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert other.modules()[0] is other and len(other.modules()) == len(ours.modules())
    for name in ("parameters", "buffers", "modules", "children", "named_parameters"):
        found = getattr(ours, name)()
        assert next(found) is found[0] and next(found) is found[1]
        assert list(found) == [*found] and len(found) >= 2
    for prefix, recurse in (("", True), ("a.b", False)):
        for mine, other in ((ours[2], theirs[2]), (ours[0][0], theirs[0][0])):
            found = [name for name, _ in mine.named_parameters(prefix, recurse)]
            assert found == [name for name, _ in other.named_parameters(prefix, recurse)]
            assert len(mine.parameters(recurse=recurse)) == len(found)
    assert ours[2].get_parameter("a.weight") is ours[2]["a"].weight
    with pytest.raises(AttributeError, match="ModuleDict has no parameter 'none'"):
        ours[2].get_parameter("none")
    with pytest.raises(StopIteration):
        next(nn.ReLU().parameters())


def test_a_sequential_is_freed_at_once():
    layers = nn.Sequential(nn.Linear(2, 2))
    weight = weakref.ref(layers[0])
    assert layers.modules()[0] is layers
    gc.disable()
    try:
        del layers
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["half", "bfloat16", "float", "double", "cpu"])
def test_all_tensors_are_converted(name):
    ours, theirs = model(nn).double(), model(torch.nn).double()
    assert getattr(ours, name)() is ours
    getattr(theirs, name)()
    wanted = {str(p.dtype)[6:] for p in theirs.parameters()}
    assert {t.dtype for _, t in [*ours.named_tensors(), *ours.named_buffers()]} == wanted


def test_gradients_are_set_to_none_or_zeros():
    for to_none in (True, False):
        layer = nn.Linear(2, 2)
        layer(ndl.ones(1, 2) * float("inf")).sum().backward()
        layer.bias.grad = None
        layer.zero_grad(set_to_none=to_none)
        assert layer.bias.grad is None
        assert layer.weight.grad is None if to_none else not layer.weight.grad.any()
    assert layer.requires_grad_(False) is layer and not layer.weight.requires_grad


@pytest.mark.parametrize("layout", ["needle", "torch"])
def test_keys_that_do_not_match(layout):
    ours, theirs = nn.Linear(2, 3), torch.nn.Linear(2, 3)
    value = np.zeros(3 if layout == "torch" else (1, 3), "float32")
    given = {"bias": value, "other": value}
    keys = ours.load_state_dict(given, strict=False, layout=layout)
    wanted = theirs.load_state_dict({name: torch.zeros(3) for name in given}, strict=False)
    assert keys.missing_keys == wanted.missing_keys == ["weight"]
    assert keys.unexpected_keys == wanted.unexpected_keys == ["other"]
    with pytest.raises(ValueError, match="missing 'weight'; unexpected 'other'"):
        ours.load_state_dict(given, layout=layout)


# nn.utils


def learned():
    """Parameters with gradients, of needle's and PyTorch's."""
    draw = np.random.default_rng(0).normal
    ours, theirs = [], []
    for shape in ((3, 4), (), (2, 2, 2)):
        value, grad = draw(size=shape), 3 * draw(size=shape)
        ours.append(nn.Parameter(np.asarray(value)))
        theirs.append(torch.nn.Parameter(torch.tensor(value)))
        ours[-1].grad, theirs[-1].grad = ndl.tensor(grad), torch.tensor(grad)
    return [*ours, nn.Parameter(ndl.ones(2))], [*theirs, torch.nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize("norm", [1.0, 2.0, 2.5, float("inf")])
@pytest.mark.parametrize("most", [0.5, 1e3])
def test_gradients_are_clipped_as_pytorch_does(norm, most):
    ours, theirs = learned()
    expected = torch.nn.utils.clip_grad_norm_(theirs, most, norm)
    wanted = nn.utils.get_total_norm([p.grad for p in ours[:3]], norm)
    total = nn.utils.clip_grad_norm_(iter(ours), most, norm)
    assert total.item() == pytest.approx(expected.item()) and total.item() == wanted.item()
    nn.utils.clip_grad_value_(ours, 0.3)
    torch.nn.utils.clip_grad_value_(theirs, 0.3)
    for p, q in zip(ours[:3], theirs, strict=False):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-12)
    assert ours[3].grad is None


def test_what_clipping_refuses_and_keeps():
    p = nn.Parameter(ndl.ones(2, dtype="float16"))
    p.grad = ndl.tensor([3e4, 3e4], dtype="float16")
    assert nn.utils.clip_grad_norm_(p, 1.0).item() == pytest.approx(3e4 * 2**0.5, rel=1e-3)
    assert p.grad.dtype == "float16" and p.grad.tolist() == pytest.approx([0.707, 0.707], abs=1e-3)
    p.grad = ndl.tensor([np.inf, 1.0], dtype="float16")
    with pytest.raises(RuntimeError, match="clip_grad_norm_: the norm of the gradients is inf"):
        nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert p.grad.tolist() == [np.inf, 1.0]
    assert nn.utils.clip_grad_norm_([nn.Parameter(ndl.ones(1))], 1.0).item() == 0
    for norm in (2.0, float("inf")):
        for tensors in ([], [ndl.ones(0)]):
            total = nn.utils.get_total_norm(tensors, norm)
            assert total.item() == 0 and total.dtype == "float64"
        assert nn.utils.get_total_norm([ndl.ones(0), ndl.ones(1)], norm).item() == 1
    for call, message in (
        (lambda: nn.utils.clip_grad_norm_(p, -1), "clip_grad_norm_: max_norm -1"),
        (lambda: nn.utils.clip_grad_norm_(p, 1, 0), "clip_grad_norm_: norm_type 0"),
        (lambda: nn.utils.clip_grad_value_(p, -1), "clip_grad_value_: clip_value -1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_parameters_as_one_vector():
    ours, theirs = learned()
    vector = nn.utils.parameters_to_vector(ours)
    expected = torch.nn.utils.parameters_to_vector(theirs)
    np.testing.assert_array_equal(vector.numpy(), expected.detach().numpy())
    vector.sum().backward()
    assert ours[3].grad.tolist() == [1, 1]
    with pytest.raises(
        ValueError, match=r"vector_to_parameters: vec has shape \(3,\), not \(23,\)"
    ):
        nn.utils.vector_to_parameters(ndl.ones(3), ours)
    nn.utils.vector_to_parameters(vector * 2, ours)
    torch.nn.utils.vector_to_parameters(expected * 2, theirs)
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(p.numpy(), q.detach().numpy())
        assert p.is_leaf and p.requires_grad


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_sequences_are_filled_up(first, side):
    arrays = [np.arange(3 * n).reshape(n, 3) for n in (2, 4, 1)]
    options = {"batch_first": first, "padding_value": 7, "padding_side": side}
    rnn = torch.nn.utils.rnn
    ours = nn.utils.rnn.pad_sequence([ndl.tensor(x) for x in arrays], **options)
    theirs = rnn.pad_sequence([torch.tensor(x) for x in arrays], **options)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    if side == "right":
        parts = nn.utils.rnn.unpad_sequence(ours, ndl.tensor([2, 4, 1]), first)
        assert [part.tolist() for part in parts] == [x.tolist() for x in arrays]
    with pytest.raises(ValueError, match="unpad_sequence: 2 lengths for 3 sequences"):
        nn.utils.rnn.unpad_sequence(ours, [2, 4], first)
    with pytest.raises(ValueError, match="pad_sequence: shapes"):
        nn.utils.rnn.pad_sequence([ndl.ones(2, 3), ndl.ones(2)])


# Functions


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_padding_is_pytorchs(mode):
    """Drawn widths, also ones that cut, for every number of axes; PyTorch decides what fits."""
    draw, right = np.random.default_rng(1), 0
    for _ in range(120):
        axes = int(draw.integers(1, 4))
        array = draw.normal(size=draw.integers(2, 5, axes + int(draw.integers(1, 3))))
        widths = draw.integers(-1, 4, 2 * axes).tolist()
        try:
            expected = TF.pad(torch.tensor(array), widths, mode)
        except (RuntimeError, NotImplementedError):
            continue
        pairs = zip(array.shape[::-1], widths[::2], widths[1::2], strict=False)
        if mode == "circular" and any(n + min(a, 0) + min(b, 0) < max(a, b) for n, a, b in pairs):
            continue  # where PyTorch goes round further than what it leaves
        found = F.pad(ndl.tensor(array), widths, mode)
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), err_msg=f"{widths}")
        right += 1
    assert right > 15
    with pytest.raises(TypeError, match="pad: x is a list"):
        F.pad([1.0], (1, 1))
    with pytest.raises(ValueError, match="pad: mode 'mirror'"):
        F.pad(ndl.ones(2), (1, 1), "mirror")
    with pytest.raises(ValueError, match="pad: 3 widths"):
        F.pad(ndl.ones(2, 2), (1, 1, 1))
    with pytest.raises(ValueError, match="cut by 2 and 1"):
        F.pad(ndl.ones(2, 2), (-2, -1))


@pytest.mark.parametrize("value", [-np.inf, np.nan, 2])
def test_padding_by_any_number(value):
    ours, theirs = nn.ConstantPad1d(1, value), torch.nn.ConstantPad1d(1, value)
    expected = theirs(torch.ones(1, 1, 2)).numpy()
    np.testing.assert_array_equal(ours(ndl.ones(1, 1, 2)).numpy(), expected)
    with pytest.raises(TypeError, match="ConstantPad1d: value '0' is a str"):
        nn.ConstantPad1d(1, str(0))


@pytest.mark.parametrize("kind", ["Zero", "Constant", "Reflection", "Replication", "Circular"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_padding_layers_are_pytorchs(kind, axes):
    name = f"{kind}Pad{axes}d"
    more = (1.5,) if kind == "Constant" else ()
    array = np.random.default_rng(0).normal(size=(2, 3, 4, 5, 4)[: axes + 2])
    for width in (1, tuple(range(3, 3 - 2 * axes, -1))[::-1] if axes == 1 else (1, 2) * axes):
        ours, theirs = getattr(nn, name)(width, *more), getattr(torch.nn, name)(width, *more)
        for x in (array, array[0]):
            expected = theirs(torch.tensor(x)).numpy()
            np.testing.assert_array_equal(ours(ndl.tensor(x)).numpy(), expected)
    with pytest.raises(ValueError, match=rf"{name}: padding \(1,\)"):
        getattr(nn, name)((1,), *more)
    if kind in ("Reflection", "Circular"):
        with pytest.raises(ValueError, match=f"{name}: padding 9"):
            getattr(nn, name)(9)(ndl.tensor(array))


def test_dropout_of_whole_channels(monkeypatch):
    monkeypatch.setattr(ndl.rng, "_generator", np.random.default_rng(0))
    for layer, shape in (
        (nn.Dropout1d, (40, 50, 3)),
        (nn.Dropout2d, (40, 50, 2, 2)),
        (nn.Dropout3d, (40, 50, 2, 1, 2)),
        (nn.FeatureAlphaDropout, (40, 50, 3)),
    ):
        x = layer(0.3)(ndl.ones(shape)).numpy().reshape(2000, -1)
        assert (x == x[:, :1]).all()
        low, high = np.unique(x)
        assert 0.25 < (x[:, 0] == low).mean() < 0.35
        assert layer(0.3).eval()(ndl.ones(shape)).numpy().min() == 1
        if layer is not nn.FeatureAlphaDropout:
            assert (low, high) == (0, np.float32(1 / 0.7))
    assert nn.Dropout1d(0.5)(ndl.ones(4, 5)).shape == (4, 5)
    with pytest.raises(ValueError, match=r"dropout3d: x has shape \(2, 2\)"):
        nn.Dropout3d()(ndl.ones(2, 2))


def test_alpha_dropout_keeps_mean_and_variance(monkeypatch):
    monkeypatch.setattr(ndl.rng, "_generator", np.random.default_rng(0))
    x = ndl.randn(200_000, dtype="float64")
    y = nn.AlphaDropout(0.2)(x).numpy()
    assert abs(y.mean()) < 0.02 and abs(y.std() - 1) < 0.02
    with torch.random.fork_rng():
        theirs = TF.alpha_dropout(torch.zeros(1000, dtype=torch.double), 0.2, True).unique()
    ours = np.unique(nn.AlphaDropout(0.2)(ndl.zeros(1000, dtype="float64")).numpy())
    np.testing.assert_allclose(ours, theirs.numpy())


def test_samples_of_a_softmax(monkeypatch):
    monkeypatch.setattr(ndl.rng, "_generator", np.random.default_rng(0))
    chances = np.array([0.2, 0.5, 0.3])
    logits = ndl.tensor(np.tile(np.log(chances), (4000, 1)), requires_grad=True)
    hard = F.gumbel_softmax(logits, tau=0.7, hard=True)
    assert set(np.unique(hard.numpy().round(6))) == {0, 1}
    np.testing.assert_allclose(hard.numpy().mean(0), chances, atol=0.04)
    hard[:, 0].sum().backward()
    assert (logits.grad.numpy() != 0).any()
    soft = F.gumbel_softmax(logits, tau=0.7, dim=0)
    np.testing.assert_allclose(soft.numpy().sum(0), 1)
    with pytest.raises(ValueError, match="gumbel_softmax: tau 0"):
        F.gumbel_softmax(logits, 0)


def test_small_functions():
    index = np.array([[0, 2], [1, 1]])
    for count in (-1, 5):
        ours, theirs = F.one_hot(ndl.tensor(index), count), TF.one_hot(torch.tensor(index), count)
        assert ours.dtype == "int64" and ours.tolist() == theirs.tolist()
    x = ndl.randn(3, 4)
    for function, args in ((F.relu, ()), (F.leaky_relu, (0.2,)), (F.dropout, (0.5, False))):
        assert (function(x, *args, inplace=True) == function(x, *args)).all()
    assert F.softmax(x, dim=1, dtype=ndl.float64).dtype == "float64"
    slopes = F.rrelu(ndl.full((1000,), -1.0), 0.1, 0.4, training=True).numpy()
    assert -0.4 < slopes.min() < -0.35 and -0.15 < slopes.max() <= -0.1
    with pytest.raises(ValueError, match="glu: axis 2 is out of range"):
        F.glu(x, 2)
    with pytest.raises(TypeError, match="glu: x is a list"):
        F.glu([1.0, 2.0])
    for norm, message in ((0, "lp_pool1d: norm_type is 0"), (np.inf, "lp_pool1d: norm_type inf")):
        with pytest.raises(ValueError, match=message):
            F.lp_pool1d(ndl.ones(1, 1, 4), norm, 2)


@pytest.mark.parametrize("bias", [False, True])
def test_the_adaptive_softmax_is_pytorchs(bias):
    options = {"div_value": 2.0, "head_bias": bias}
    ours = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [3, 9], **options)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [3, 9], **options)
    ours.load_state_dict(theirs.state_dict(), layout="torch")
    for shape in ((30,), ()):
        x = np.random.default_rng(0).normal(size=(*shape, 8)).astype("float32")
        y = np.random.default_rng(1).integers(0, 20, shape)
        found = ours(ndl.tensor(x), ndl.tensor(y))
        expected = theirs(torch.tensor(x), torch.tensor(y))
        np.testing.assert_allclose(found.output.numpy(), expected.output.detach(), rtol=1e-5)
        found.loss.backward(), expected.loss.backward()
        assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
        if shape:
            expected = theirs.log_prob(torch.tensor(x)).detach()
            np.testing.assert_allclose(ours.log_prob(ndl.tensor(x)).numpy(), expected, rtol=1e-5)
            expected = theirs.predict(torch.tensor(x)).tolist()
            assert ours.predict(ndl.tensor(x)).tolist() == expected
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        grad = mine.grad.numpy().T.reshape(other.shape)
        np.testing.assert_allclose(grad, other.grad.numpy(), atol=1e-6)
    with pytest.raises(IndexError, match="AdaptiveLogSoftmaxWithLoss: y holds 20"):
        ours(ndl.ones(1, 8), ndl.tensor([20]))
    with pytest.raises(ValueError, match=r"AdaptiveLogSoftmaxWithLoss: cutoffs \[3, 3\]"):
        nn.AdaptiveLogSoftmaxWithLoss(8, 20, [3, 3])
    with pytest.raises(ValueError, match="AdaptiveLogSoftmaxWithLoss: div_value 0"):
        nn.AdaptiveLogSoftmaxWithLoss(8, 20, [3], div_value=0)


# Errors name the function

_SHAPES = list(itertools.product([(), (3,), (2, 3), (2, 4), (4, 2, 3)], repeat=2))
_LOSSES = [name for name in F.__all__ if name.endswith("_loss") or "entropy" in name] + ["kl_div"]
_LOSSES = [name for name in _LOSSES if name != "ctc_loss"]


@pytest.mark.parametrize("name", _LOSSES)
def test_errors_of_losses_begin_with_their_name(name):
    """Shapes and kinds of arguments that do not fit, and class numbers out of range."""
    loss, refused = getattr(F, name), 0
    three = ("cosine_embedding", "margin_ranking", "gaussian", "triplet", "linear")
    count = 3 if name.startswith(three) else 2
    kinds = [
        lambda shape: ndl.ones(shape),
        lambda shape: ndl.full(shape, 9),
        lambda shape: ndl.full(shape, True),
        lambda shape: 3.0,
        lambda shape: "x",
        lambda shape: [1, 2],
    ]
    options = [{}, {"reduction": "all"}, {"weigth": 1}]
    if "weight" in str(loss.__doc__):
        options.append({"weight": ndl.ones(7)})
    for (first, second), kind, more in itertools.product(_SHAPES, kinds, options):
        for other in kinds:
            arguments = [kind(first), *[other(second)] * (count - 1)]
            try:
                loss(*arguments, **more)
            except (TypeError, ValueError, IndexError) as error:
                assert str(error).startswith(f"{name}: "), (arguments, error)
                refused += 1
    assert refused > 100
    with pytest.raises(TypeError, match=f"{name}\\(\\) missing"):
        loss()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, y: F.cross_entropy(x, y),
            r"^cross_entropy: y holds 3, which is not in \[0, 2\]",
        ),
        (lambda x, y: F.nll_loss(x, y), "^nll_loss: y holds 3"),
        (lambda x, y: F.multi_margin_loss(x, y), "^multi_margin_loss: y holds 3"),
        (lambda x, y: nn.CrossEntropyLoss()(x, y), "^cross_entropy: y holds 3"),
        (lambda x, y: nn.SoftmaxLoss()(x, y), "^SoftmaxLoss: y holds 3"),
        (lambda x, y: F.cross_entropy(x, y - 4), "^cross_entropy: y holds -4"),
        (lambda x, y: F.multilabel_margin_loss(x[0], y[:1].expand(3)), "^multilabel_margin_loss"),
        (lambda x, y: F.one_hot(y, 3), "^one_hot: "),
        (lambda x, y: F.embedding(y, x), "^embedding: "),
    ],
)
def test_a_class_out_of_range_is_named_by_the_function(call, message):
    with pytest.raises(IndexError, match=message):
        call(ndl.zeros(2, 3), ndl.tensor([3, 0]))
    assert F.cross_entropy(ndl.zeros(2, 3), ndl.tensor([-100, 0])).item() > 1


def test_weights_are_given_once():
    with pytest.raises(TypeError, match="CrossEntropyLoss: weight is given twice"):
        nn.CrossEntropyLoss(ndl.ones(3), weight=ndl.ones(3))
