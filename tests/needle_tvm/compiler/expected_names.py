"""The names that users of PyTorch, MLX, tinygrad and NumPy type, each with an example of its use.

A section maps names to expressions. A name that stands alone in a section's string is called on the
section's usual operands. `test_expected_names.py` says what the letters are.
"""

from __future__ import annotations

from collections.abc import Mapping


def _calls(names: str, template: str) -> dict[str, str]:
    """The template for each of the names, which stand for the {} in it."""
    return {name: template.format(name) for name in names.split()}


_ELEMENTWISE: Mapping[str, str] = {
    **_calls(
        "abs negate sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos "
        "tan asin acos atan sinh cosh tanh asinh atanh sigmoid erf erfinv floor ceil round trunc "
        "frac isnan isinf isfinite nan_to_num relu leaky_relu elu selu celu gelu silu softplus "
        "softsign mish hardswish hardsigmoid hardtanh relu6 logsigmoid tanhshrink",
        "ndl.{}(x)",
    ),
    **_calls(
        "add subtract multiply divide power maximum minimum remainder fmod floor_divide atan2 "
        "equal not_equal less less_equal greater greater_equal",
        "ndl.{}(x, y)",
    ),
    **_calls("logical_and logical_or logical_xor", "ndl.{}(m, x)"),
    **_calls("bitwise_and bitwise_or bitwise_xor left_shift right_shift", "ndl.{}(i, 1)"),
    "acosh": "ndl.acosh(x + 1)",
    "logical_not": "ndl.logical_not(m)",
    "bitwise_not": "ndl.bitwise_not(i)",
    **_calls("clip clamp", "ndl.{}(x, 0.2, 0.8)"),
    **_calls("logaddexp isclose", "ndl.{}(x, y)"),
    **_calls("addcmul addcdiv", "ndl.{}(x, y, x, value=0.5)"),
    "logit": "ndl.logit(x, 0.1)",
    "compare": "ndl.compare('less', x, y)",
    "lerp": "ndl.lerp(x, y, 0.3)",
    "threshold": "ndl.threshold(x, 0.5, 0.0)",
    "where": "ndl.where(m, x, -1e9)",
}

_REDUCTIONS: Mapping[str, str] = {
    **_calls(
        "sum mean var std prod max min amax amin any all logsumexp norm count_nonzero median",
        "ndl.{}(x, axis=1)",
    ),
    **_calls("argmax argmin cumsum cumprod cummax cummin logcumsumexp", "ndl.{}(x, 1)"),
    "quantile": "ndl.quantile(x, 0.25, axis=1)",
    "bincount": "ndl.bincount(i[0], length=4)",
    "histogram": "ndl.histogram(x, 4, (0.0, 1.0))",
}

_INDEXING: Mapping[str, str] = {
    **_calls("sort argsort flip", "ndl.{}(x, 1)"),
    **_calls("topk kthvalue", "ndl.{}(x, 2)"),
    **_calls("scatter scatter_add scatter_max", "ndl.{}(x, 1, i, y)"),
    **_calls("nonzero unique", "ndl.{}(i)"),
    "take": "ndl.take(x, i[0], 1)",
    "index_add": "ndl.index_add(x, 1, i[0], y)",
    "index_fill": "ndl.index_fill(x, 1, i[0, :2], 0.5)",
    "index_select": "ndl.index_select(x, 1, i[0])",
    "take_along_axis": "ndl.take_along_axis(x, i, 1)",
    "gather": "ndl.gather(x, 1, i)",
    "masked_fill": "ndl.masked_fill(x, m, 0.0)",
    "masked_select": "ndl.masked_select(x, m)",
    "searchsorted": "ndl.searchsorted(ndl.sort(x[0])[0], y)",
    "bucketize": "ndl.bucketize(y, ndl.sort(x[0])[0])",
    "roll": "ndl.roll(x, 1, 1)",
    "one_hot": "ndl.one_hot(i, 4)",
    "embedding": "ndl.embedding(i, y.T)",
    "at.set": "x.at[0].set(y[1])",
    "at.add": "x.at[i[0, :2] % 3].add(1.0)",
    "at.max": "x.at[:, 1].max(0.5)",
}

_SHAPES: Mapping[str, str] = {
    "reshape": "ndl.reshape(x, (4, 3))",
    "flatten": "ndl.flatten(x)",
    "unflatten": "ndl.unflatten(x, 1, (2, 2))",
    "squeeze": "ndl.squeeze(x[:1], 0)",
    "unsqueeze": "ndl.unsqueeze(x, 0)",
    "transpose": "ndl.transpose(x)",
    "permute": "ndl.permute(x, (1, 0))",
    "moveaxis": "ndl.moveaxis(x, 0, 1)",
    "swapaxes": "ndl.swapaxes(x, 0, 1)",
    "broadcast_to": "ndl.broadcast_to(x[:1], (3, 4))",
    "expand": "ndl.expand(x[:1], 3, -1)",
    "repeat": "ndl.repeat(x, 2, 1)",
    "tile": "ndl.tile(x, 2)",
    "repeat_interleave": "ndl.repeat_interleave(x, 2, 1)",
    **_calls("concat cat", "ndl.{}([x, y], 1)"),
    **_calls("hstack vstack", "ndl.{}([x, y])"),
    "narrow": "ndl.narrow(x, 1, 1, 2)",
    "select": "ndl.select(x, 1, 2)",
    **_calls("ravel diff fliplr flipud", "ndl.{}(x)"),
    "broadcast_tensors": "ndl.broadcast_tensors(x, y[0])",
    "isin": "ndl.isin(i, i[:1, :2])",
    "F.pad": "F.pad(x, (1, -1))",
    "stack": "ndl.stack([x, y], 1)",
    "split": "x.split(2, 1)",
    "chunk": "ndl.chunk(x, 2, 1)",
    "unbind": "ndl.unbind(x)",
    "pad": "ndl.pad(x, ((1, 0), (0, 2)))",
    "unfold": "ndl.unfold(image, 3)",
    "fold": "ndl.fold(ndl.unfold(image, 3), (8, 8), 3)",
    "flip": "ndl.flip(x)",
    "diagonal": "ndl.diagonal(x)",
    "pixel_shuffle": "ndl.pixel_shuffle(image, 2)",
    "pixel_unshuffle": "ndl.pixel_unshuffle(image, 2)",
    "interpolate": "F.interpolate(image, scale_factor=2, mode='bilinear')",
    "grid_sample": "F.grid_sample(image, grid, align_corners=False)",
}

_MAKING: Mapping[str, str] = {
    **_calls("zeros ones rand randn", "ndl.{}(2, 3)"),
    **_calls("zeros_like ones_like", "ndl.{}(x) + x"),
    **_calls("tril triu diag", "ndl.{}(x)"),
    "bernoulli": "ndl.bernoulli(x)",
    "empty": "x * ndl.empty(2, 3).size",
    "full": "ndl.full((3, 4), 2.0) + x",
    "full_like": "ndl.full_like(x, 2.0) + x",
    "arange": "ndl.arange(4) + x",
    "linspace": "ndl.linspace(0, 1, 4) + x",
    "eye": "ndl.eye(3, 4) + x",
    "tri": "ndl.tri(3, 4) + x",
    "meshgrid": "ndl.meshgrid(x[0], y[0])",
    "randint": "ndl.randint(0, 5, (3,))",
    "randperm": "ndl.randperm(5)",
    "multinomial": "ndl.multinomial(x, 2)",
}

_LINEAR_ALGEBRA: Mapping[str, str] = {
    **_calls("inv cholesky det slogdet pinv qr svd eigh", "ndl.linalg.{}(spd)"),
    **_calls("fft ifft", "ndl.fft.{}(ndl.fft.from_real(x))"),
    "rfft": "ndl.fft.rfft(x)",
    "irfft": "ndl.fft.irfft(ndl.fft.rfft(x))",
    **_calls("matmul mm", "ndl.{}(x, y.t())"),
    "addmm": "ndl.addmm(x[0], x, spd, beta=0.5, alpha=2.0)",
    "cdist": "ndl.cdist(x, y)",
    "bmm": "ndl.bmm(batch, batch.mT)",
    "einsum": "ndl.einsum('ij,kj->ik', x, y)",
    "tensordot": "ndl.tensordot(x, y.T, 1)",
    "outer": "ndl.outer(x[0], y[0])",
    "dot": "ndl.dot(x[0], y[0])",
    "kron": "ndl.kron(x, y)",
    "trace": "ndl.trace(x)",
    "cross": "ndl.cross(x[:, :3], y[:, :3])",
    "solve": "ndl.linalg.solve(spd, spd[:, :1])",
    "lstsq": "ndl.linalg.lstsq(spd, spd[:, :1])",
    "norm": "ndl.linalg.norm(x)",
    "matrix_power": "ndl.linalg.matrix_power(spd, 3)",
}

_FUNCTIONAL: Mapping[str, str] = {
    **_calls("softmax logsoftmax normalize", "F.{}(x)"),
    **_calls("max_pool1d avg_pool1d", "F.{}(signal, 2)"),
    **_calls("max_pool2d avg_pool2d", "F.{}(image, 2)"),
    **_calls("max_pool3d avg_pool3d", "F.{}(volume, 2)"),
    **_calls("adaptive_avg_pool2d adaptive_max_pool2d", "F.{}(image, 3)"),
    **_calls("mse_loss l1_loss smooth_l1_loss huber_loss kl_div cosine_similarity", "F.{}(x, y)"),
    **_calls("binary_cross_entropy binary_cross_entropy_with_logits", "F.{}(x, y)"),
    **_calls("cross_entropy nll_loss", "F.{}(x, i[:, 0])"),
    "layer_norm": "F.layer_norm(x, (4,))",
    "group_norm": "F.group_norm(image, 2)",
    "batch_norm": "F.batch_norm(x, x[0], x[1] + 1)",
    "instance_norm": "F.instance_norm(image)",
    "rms_norm": "F.rms_norm(x, (4,))",
    "dropout": "F.dropout(x, 0.5, training=False)",
    "linear": "F.linear(x, y.T)",
    "conv1d": "F.conv1d(signal, ndl.full((3, 4, 2), 0.1), padding=1)",
    "conv2d": "F.conv2d(image, ndl.full((3, 3, 4, 2), 0.1), padding=1)",
    "conv3d": "F.conv3d(volume, ndl.full((3, 3, 3, 4, 2), 0.1), padding=1)",
    "conv_transpose1d": "F.conv_transpose1d(signal, ndl.full((3, 2, 4), 0.1))",
    "conv_transpose2d": "F.conv_transpose2d(image, ndl.full((3, 3, 2, 4), 0.1))",
    "adaptive_avg_pool1d": "F.adaptive_avg_pool1d(signal, 3)",
    "scaled_dot_product_attention": "F.scaled_dot_product_attention(heads, heads, heads)",
    "rotary_embedding": "F.rotary_embedding(heads)",
    "ctc_loss": "F.ctc_loss(F.logsoftmax(batch), i[:, :1], (3, 3, 3), (1, 1, 1))",
    "triplet_margin_loss": "F.triplet_margin_loss(x, y, x * y)",
}

# A layer is made once; the text after the colon is what it is called on.
_LAYERS: Mapping[str, str] = {
    **_calls(
        "Identity ReLU ReLU6 LeakyReLU PReLU ELU SELU GELU SiLU Mish Softplus Hardswish "
        "Hardsigmoid Hardtanh Sigmoid Tanh Softmax LogSoftmax Dropout Flatten",
        "nn.{}() : x",
    ),
    **_calls("LayerNorm RMSNorm BatchNorm1d", "nn.{}(4) : x"),
    **_calls("BatchNorm2d InstanceNorm2d", "nn.{}(4) : image"),
    **_calls("MaxPool1d AvgPool1d AdaptiveAvgPool1d", "nn.{}(2) : signal"),
    **_calls("MaxPool2d AvgPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d", "nn.{}(2) : image"),
    **_calls("MaxPool3d AvgPool3d", "nn.{}(2) : volume"),
    **_calls("Conv1d ConvTranspose1d", "nn.{}(4, 2, 3) : signal"),
    **_calls("Conv2d ConvTranspose2d", "nn.{}(4, 2, 3) : image"),
    **_calls("RNN LSTM GRU", "nn.{}(4, 5) : batch"),
    **_calls("RNNCell LSTMCell GRUCell", "nn.{}(4, 5) : x"),
    "Linear": "nn.Linear(4, 2) : x",
    "Bilinear": "nn.Bilinear(4, 4, 2) : x, y",
    "Embedding": "nn.Embedding(4, 3) : i",
    "EmbeddingBag": "nn.EmbeddingBag(4, 3) : i",
    "Conv3d": "nn.Conv3d(4, 2, 3) : volume",
    "BatchNorm3d": "nn.BatchNorm3d(4) : volume",
    "InstanceNorm1d": "nn.InstanceNorm1d(4) : signal",
    "GroupNorm": "nn.GroupNorm(2, 4) : image",
    "Dropout2d": "nn.Dropout2d() : image",
    "Upsample": "nn.Upsample(scale_factor=2) : image",
    "PixelShuffle": "nn.PixelShuffle(2) : image",
    "Unflatten": "nn.Unflatten(1, (2, 2)) : x",
    "MultiheadAttention": "nn.MultiheadAttention(4, 2) : batch, batch, batch",
    "MultiHeadAttention": "nn.MultiHeadAttention() : heads, heads, heads",
    "TransformerEncoder": "nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2) : batch",
    "TransformerEncoderLayer": "nn.TransformerEncoderLayer(4, 2, 8) : batch",
    "TransformerDecoder": "nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 2) "
    ": batch, batch",
    "TransformerDecoderLayer": "nn.TransformerDecoderLayer(4, 2, 8) : batch, batch",
    "RotaryEmbedding": "nn.RotaryEmbedding(4) : heads",
    "SinusoidalEncoding": "nn.SinusoidalEncoding(4) : batch",
    "Sequential": "nn.Sequential(nn.Linear(4, 2), nn.ReLU()) : x",
    "ModuleList": "Each(nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])) : x",
    "ModuleDict": "Each(nn.ModuleDict({'a': nn.Linear(4, 4), 'b': nn.ReLU()})) : x",
    "ParameterList": "Each(nn.ParameterList([ndl.ones(4), ndl.ones(4)])) : x",
    "ParameterDict": "Each(nn.ParameterDict({'a': ndl.ones(4)})) : x",
    "Residual": "nn.Residual(nn.Linear(4, 4)) : x",
}

_LOSSES: Mapping[str, str] = {
    **_calls("MSELoss L1Loss SmoothL1Loss HuberLoss KLDivLoss", "nn.{}() : x, y"),
    **_calls("BCELoss BCEWithLogitsLoss", "nn.{}() : x, y"),
    **_calls("CrossEntropyLoss NLLLoss", "nn.{}() : x, i[:, 0]"),
    "CTCLoss": "nn.CTCLoss() : F.logsoftmax(batch), i[:, :1], (3, 3, 3), (1, 1, 1)",
    "CosineEmbeddingLoss": "nn.CosineEmbeddingLoss() : x, y, ndl.ones(3)",
    "TripletMarginLoss": "nn.TripletMarginLoss() : x, y, x * y",
}

# These are for training, which is eager: an example is a step of the optimizer `o`.
_OPTIMIZERS: Mapping[str, str] = {
    **_calls("SGD Adam AdamW Adagrad RMSprop Lion", "step(optim.{}(weights, lr=0.1))"),
    **_calls("Adafactor Adadelta Adamax NAdam RAdam", "step(optim.{}(weights))"),
    "Muon": "step(optim.Muon(weights, lr=0.1))",
    "LBFGS": "optim.LBFGS(weights).step(loss)",
    "StepLR": "step(o, optim.StepLR(o, 2))",
    "MultiStepLR": "step(o, optim.MultiStepLR(o, [2, 4]))",
    "ExponentialLR": "step(o, optim.ExponentialLR(o, 0.9))",
    "CosineAnnealingLR": "step(o, optim.CosineAnnealingLR(o, 10))",
    "OneCycleLR": "step(o, optim.OneCycleLR(o, 0.1, total_steps=10))",
    **_calls("LinearLR ConstantLR PolynomialLR", "step(o, optim.{}(o))"),
    **_calls("LambdaLR MultiplicativeLR", "step(o, optim.{}(o, lambda n: 0.9))"),
    "CyclicLR": "step(o, optim.CyclicLR(o, 0.01, 0.1))",
    "CosineAnnealingWarmRestarts": "step(o, optim.CosineAnnealingWarmRestarts(o, 4))",
    "ChainedScheduler": "step(o, optim.ChainedScheduler([optim.LinearLR(o), optim.StepLR(o, 2)]))",
    "SequentialLR": "step(o, optim.SequentialLR(o, [optim.LinearLR(o), optim.StepLR(o, 2)], [3]))",
    "ReduceLROnPlateau": "optim.ReduceLROnPlateau(o).step(1.0)",
    "clip_grad_norm": "optim.clip_grad_norm(weights, 1.0)",
    "clip_grad_value": "optim.clip_grad_value(weights, 1.0)",
    "EMA": "optim.EMA(model).update()",
}

_TENSOR: Mapping[str, str] = {
    **_calls("+ - * / // % **", "x {} y"),
    **_calls("& | ^", "m {} ~m"),
    **_calls("<< >>", "i {} 1"),
    **_calls("< <= > >= == !=", "x {} y"),
    **_calls("T mT", "x.{}"),
    **_calls("contiguous clone", "x.{}()"),
    **_calls("ndim size", "x * x.{}"),
    "@": "x @ y.T",
    "~": "~m",
    "abs()": "abs(x)",
    "len": "x * len(x)",
    "iteration": "sum(row for row in x)",
    "bool()": "bool(x[0, 0])",
    "item": "x[0, 0].item()",
    "tolist": "x.tolist()",
    "numel": "x * x.numel()",
    "astype": "x.astype('float16')",
    "to": "x.to('float64')",
}

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Elementwise": _ELEMENTWISE,
    "Reductions and scans": _REDUCTIONS,
    "Sorting and indexing": _INDEXING,
    "Shape": _SHAPES,
    "Making": _MAKING,
    "Linear algebra": _LINEAR_ALGEBRA,
    "nn.functional": _FUNCTIONAL,
    "Layers": _LAYERS,
    "Losses": _LOSSES,
    "Optimizers": _OPTIMIZERS,
    "Tensor": _TENSOR,
}
