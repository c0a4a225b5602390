"""Functions that people write, compiled by `jit`: results as eager needle's and as PyTorch's or
NumPy's, and how often each is compiled."""

import functools

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn, ops
from tests.needle_tvm.conftest import make_mlp, tensor

torch = pytest.importorskip("torch", reason="the results are compared with PyTorch's")
F = torch.nn.functional

# Float32 results of reductions over at most a few hundred terms.
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


def leaves(value):
    """The arrays in nested results, in order."""
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in leaves(each)]
    return [value.detach().numpy() if isinstance(value, torch.Tensor) else value.numpy()]


def check(compiled, expected, *args, compilations, **kwargs):
    """The results are those of the function itself and of `expected`, which gets torch tensors and
    returns the same structure flat; the number of compilations so far is as stated."""
    found = leaves(compiled(*args, **kwargs))
    eager = leaves(compiled.__wrapped__(*args, **kwargs))
    for one, *others in zip(found, eager, leaves(expected), strict=True):
        for other in others:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            close(one, other)
    assert compiled.cache_info().compilations == compilations


def floats(rng, *shape):
    return rng.standard_normal(shape).astype("float32")


def test_cross_entropy_with_label_smoothing(rng):
    @needle_tvm.jit
    def loss(logits, labels, smoothing=0.0):
        classes = logits.shape[1]
        target = ops.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
        return -(target * ops.logsoftmax(logits)).sum(1).mean()

    for rows, smoothing, compilations in ((8, 0.0, 1), (8, 0.1, 2), (5, 0.1, 3), (8, 0.0, 3)):
        x, y = floats(rng, rows, 10), rng.integers(0, 10, rows)
        expected = F.cross_entropy(torch.tensor(x), torch.tensor(y), label_smoothing=smoothing)
        check(loss, expected, tensor(x), tensor(y), smoothing, compilations=compilations)


def test_focal_loss(rng):
    @needle_tvm.jit
    def focal(logits, target, *, gamma=2.0):
        p = ops.sigmoid(logits)
        right = p * target + (1 - p) * (1 - target)
        return -(((1 - right) ** gamma) * ops.log(right)).mean()

    x, y = floats(rng, 64), rng.integers(0, 2, 64).astype("float32")
    for gamma, compilations in ((2.0, 1), (0.0, 2), (2.0, 2)):
        entropy = F.binary_cross_entropy_with_logits(
            torch.tensor(x), torch.tensor(y), reduction="none"
        )
        expected = ((1 - torch.exp(-entropy)) ** gamma * entropy).mean()
        check(focal, expected, tensor(x), tensor(y), gamma=gamma, compilations=compilations)


def test_attention(rng):
    @needle_tvm.jit(static=("causal",))
    def attention(q, k, v, causal):
        scores = q @ ops.permute(k, (0, 1, 3, 2)) / q.shape[-1] ** 0.5
        if causal:
            later = np.triu(np.full(scores.shape[-2:], -1e30, "float32"), 1)
            scores = scores + ndl.Tensor(later, requires_grad=False)
        return ops.softmax(scores, -1) @ v

    for causal, compilations in ((False, 1), (True, 2), (False, 2)):
        q, k, v = (floats(rng, 2, 3, 7, 8) for _ in range(3))
        expected = F.scaled_dot_product_attention(*map(torch.tensor, (q, k, v)), is_causal=causal)
        check(attention, expected, *map(tensor, (q, k, v)), causal, compilations=compilations)


def test_a_norm_with_a_learned_scale(rng):
    class RMSNorm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(np.ones(width, "float32"))
            self.eps = 1e-5

        @needle_tvm.jit
        def forward(self, x):
            return x * ops.rsqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight

    norm, x = RMSNorm(24), floats(rng, 6, 24)
    forward = functools.partial(check, RMSNorm.forward)
    forward(F.rms_norm(torch.tensor(x), (24,), eps=1e-5), norm, tensor(x), compilations=1)
    weight = floats(rng, 24)
    norm.weight.data = ndl.Tensor(weight)
    expected = F.rms_norm(torch.tensor(x), (24,), torch.tensor(weight), eps=1e-5)
    forward(expected, norm, tensor(x), compilations=1)
    norm.eps = 0.5
    expected = F.rms_norm(torch.tensor(x), (24,), torch.tensor(weight), eps=0.5)
    forward(expected, norm, tensor(x), compilations=2)


def test_contrastive_loss_of_a_batch_in_a_dict(rng):
    @needle_tvm.jit
    def contrastive(batch, temperature):
        def unit(x):
            return x / ((x * x).sum(-1, keepdims=True) ** 0.5)

        logits = unit(batch["image"]) @ unit(batch["text"]).transpose() / temperature
        own = tensor(np.eye(len(logits), dtype="float32"))
        rows, columns = (
            -(own * ops.logsoftmax(x)).sum(1).mean() for x in (logits, logits.transpose())
        )
        return {"loss": (rows + columns) / 2, "logits": [logits]}

    for value in (0.07, 0.5):  # an array is an input: nothing is compiled for its value
        temperature = np.array(value, "float32")
        image, text = floats(rng, 6, 16), floats(rng, 6, 16)
        a, b = (F.normalize(torch.tensor(each)) for each in (image, text))
        logits = a @ b.T / float(temperature)
        ends = torch.arange(6)
        loss = (F.cross_entropy(logits, ends) + F.cross_entropy(logits.T, ends)) / 2
        batch = {"image": tensor(image), "text": tensor(text)}
        check(contrastive, [loss, logits], batch, tensor(temperature), compilations=1)


def test_a_metric(rng):
    @needle_tvm.jit
    def f1(scores, labels):
        """Precision, recall and F1 of each class."""
        classes = scores.shape[1]
        said = ops.one_hot(ops.argmax(scores, 1), classes)
        true = ops.one_hot(labels, classes)
        hits = (said * true).sum(0)
        precision, recall = hits / (said.sum(0) + 1e-9), hits / (true.sum(0) + 1e-9)
        return precision, recall, precision * recall * 2 / (precision + recall + 1e-9)

    for rows, compilations in ((40, 1), (40, 1), (17, 2)):
        scores, labels = floats(rng, rows, 3), rng.integers(0, 3, rows)
        said = scores.argmax(1)
        expected = []
        for c in range(3):
            hits = float(((said == c) & (labels == c)).sum())
            p, r = hits / ((said == c).sum() + 1e-9), hits / ((labels == c).sum() + 1e-9)
            expected.append((p, r, 2 * p * r / (p + r + 1e-9)))
        wanted = [torch.tensor(each) for each in np.array(expected, "float32").T]
        check(f1, wanted, tensor(scores), tensor(labels), compilations=compilations)


def test_gradients_of_a_training_step(rng):
    model = make_mlp(12, 20, 3)
    loss_fn = nn.SoftmaxLoss()

    @needle_tvm.jit
    def step(x, y):
        for p in model.parameters():
            p.grad = None
        loss = loss_fn(model(x), y)
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    theirs = torch.nn.Sequential(
        torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3), torch.nn.ReLU()
    )
    with torch.no_grad():
        for linear, layer in ((theirs[0], model.modules[0]), (theirs[2], model.modules[2])):
            linear.weight.copy_(torch.tensor(layer.weight.numpy().T))
            linear.bias.copy_(torch.tensor(layer.bias.numpy()[0]))
    ours, other = (
        ndl.optim.SGD(model.parameters(), lr=0.3),
        torch.optim.SGD(theirs.parameters(), 0.3),
    )
    for _ in range(5):
        x, y = floats(rng, 8, 12), rng.integers(0, 3, 8)
        other.zero_grad()
        expected = F.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        expected.backward()
        grads = [p.grad.T if p.ndim == 2 else p.grad[None] for p in theirs.parameters()]
        check(step, [expected, *grads], tensor(x), tensor(y), compilations=1)
        for p, grad in zip(model.parameters(), step(tensor(x), tensor(y))[1], strict=True):
            p.grad = grad
        ours.step()
        other.step()


def test_a_sampler_step(rng):
    class Sampler:
        """DDIM with a model of the noise, and a table of the noise levels."""

        def __init__(self, model, levels):
            self.model, self.levels = model, tensor(levels)

        @needle_tvm.jit
        def step(self, x, t):
            now, then = self.levels[t], self.levels[t - 1]
            noise = self.model(x)
            clean = (x - noise * ops.sqrt(1 - now)) / ops.sqrt(now)
            return clean * ops.sqrt(then) + noise * ops.sqrt(1 - then)

    model = make_mlp(6, 6)
    levels = np.linspace(0.99, 0.05, 10).astype("float32")
    sampler = Sampler(model, levels)
    layer = model.modules[0]
    weight, bias = torch.tensor(layer.weight.numpy()), torch.tensor(layer.bias.numpy())
    x = floats(rng, 4, 6)
    step = functools.partial(check, Sampler.step)
    for t in (9, 5, 1):  # a 0-d array, so all steps are one signature
        now, then = levels[t], levels[t - 1]
        noise = torch.relu(torch.tensor(x) @ weight + bias)
        clean = (torch.tensor(x) - noise * float(np.sqrt(1 - now))) / float(np.sqrt(now))
        expected = clean * float(np.sqrt(then)) + noise * float(np.sqrt(1 - then))
        step(expected, sampler, tensor(x), tensor(np.array(t)), compilations=1)
        x = sampler.step(x, np.array(t)).numpy()


def test_an_optimizer_step_without_state_of_its_own(rng):
    @needle_tvm.jit(static=("lr", "betas"))
    def adam(params, grads, state, step, lr=1e-2, betas=(0.9, 0.999)):
        new, moments = {}, {}
        for name, p in params.items():
            m, v = state[name]
            m = m * betas[0] + grads[name] * (1 - betas[0])
            v = v * betas[1] + grads[name] * grads[name] * (1 - betas[1])
            unbiased = m / (1 - ops.exp(step * np.log(betas[0]).item()))
            scale = v / (1 - ops.exp(step * np.log(betas[1]).item()))
            new[name] = p - unbiased / (ops.sqrt(scale) + 1e-8) * lr
            moments[name] = (m, v)
        return new, moments

    shapes = {"w": (4, 3), "b": (3,)}
    params = {name: tensor(floats(rng, *shape)) for name, shape in shapes.items()}
    state = {n: (tensor(np.zeros_like(p.numpy())),) * 2 for n, p in params.items()}
    theirs = {n: torch.nn.Parameter(torch.tensor(p.numpy())) for n, p in params.items()}
    other = torch.optim.Adam(theirs.values(), lr=1e-2)
    for number in range(1, 5):
        grads = {name: floats(rng, *shape) for name, shape in shapes.items()}
        for name, p in theirs.items():
            p.grad = torch.tensor(grads[name])
        other.step()
        params, state = adam(params, grads, state, np.array(number, "float32"))
        for name, p in params.items():
            their = other.state[theirs[name]]
            for found, key in zip(state[name], ("exp_avg", "exp_avg_sq"), strict=True):
                close(found.numpy(), their[key].numpy())
            # Rounding of 1 - 0.999 ** step in float32.
            np.testing.assert_allclose(p.numpy(), theirs[name].detach().numpy(), atol=2e-6)
    assert adam.cache_info().compilations == 1


def test_a_gradient_penalty(rng):
    weight = nn.Parameter(floats(rng, 5, 4))

    @needle_tvm.jit
    def penalty(x):
        """The squared norm of the critic's gradient, and its own gradient for the weight."""
        score = ops.tanh(x @ weight).sum()
        (slope,) = ndl.autograd.grad(score, [x], create_graph=True)
        loss = ((((slope * slope).sum(1) + 1e-12) ** 0.5 - 1) ** 2).mean()
        return loss, *ndl.autograd.grad(loss, [weight])

    for _ in range(2):
        x = floats(rng, 6, 5)
        their_x = torch.tensor(x, requires_grad=True)
        their_weight = torch.tensor(weight.numpy(), requires_grad=True)
        score = torch.tanh(their_x @ their_weight).sum()
        (slope,) = torch.autograd.grad(score, [their_x], create_graph=True)
        loss = ((((slope**2).sum(1) + 1e-12) ** 0.5 - 1) ** 2).mean()
        expected = [loss, *torch.autograd.grad(loss, [their_weight])]
        check(penalty, expected, ndl.Tensor(x), compilations=1)


def test_rotary_positions(rng):
    angles = floats(rng, 12, 4)
    table = {"cos": tensor(np.cos(angles)), "sin": tensor(np.sin(angles))}

    @needle_tvm.jit
    def rotated(x, offset):
        half = x.shape[-1] // 2
        cos, sin = (table[name][offset : offset + x.shape[-2]] for name in ("cos", "sin"))
        a, b = x[..., :half], x[..., half:]
        return ops.concat([a * cos - b * sin, b * cos + a * sin], -1)

    for offset, compilations in ((0, 1), (3, 2), (0, 2)):
        x = floats(rng, 2, 6, 8)
        turn = torch.tensor(np.exp(1j * angles[offset : offset + 6]).astype("complex64"))
        turned = torch.complex(*map(torch.tensor, (x[..., :4], x[..., 4:]))) * turn
        expected = torch.cat([turned.real, turned.imag], -1)
        check(rotated, expected, tensor(x), offset, compilations=compilations)


def test_a_module(rng):
    model = nn.Sequential(nn.Linear(9, 8), nn.BatchNorm1d(8), nn.Tanh())
    model(tensor(floats(rng, 30, 9) * 3 + 1))  # moves the statistics
    model.eval()
    fast = needle_tvm.jit(model)
    layer, norm = model.modules[0], model.modules[1]
    for rows, compilations in ((5, 1), (1, 2), (5, 2)):
        x = floats(rng, rows, 9)
        inner = torch.tensor(x) @ torch.tensor(layer.weight.numpy()) + torch.tensor(
            layer.bias.numpy()
        )
        values = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
        expected = F.batch_norm(inner, *(torch.tensor(v.numpy()).flatten() for v in values))
        check(fast, torch.tanh(expected), tensor(x), compilations=compilations)
