"""The architectures of `bench.zoo`, with random weights, batch 1.

`GROUPS` maps a group to its models: functions that return a module in eval mode, its arguments and
its keyword arguments. Groups named after a package need that package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class UNet(nn.Module):
    """Ronneberger et al., 2015, three levels deep. Upsampling is a transposed convolution or
    bilinear resizing."""

    def __init__(self, transposed: bool, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths, strict=False))
        self.down = nn.ModuleList([self._block(a, b) for a, b in pairs])
        self.up, self.join = nn.ModuleList(), nn.ModuleList()
        for high, low in zip(widths[-2::-1], widths[:0:-1], strict=True):
            bilinear = nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
                nn.Conv2d(low, high, 1),
            )
            self.up.append(nn.ConvTranspose2d(low, high, 2, stride=2) if transposed else bilinear)
            self.join.append(self._block(2 * high, high))
        self.head = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        layers = []
        for channels in (inputs, outputs):
            conv = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for number, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if number else x)
            skipped.append(x)
        for up, join, skip in zip(self.up, self.join, skipped[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)


class Classifier(nn.Module):
    """A recurrent network over tokens, with a classifier on the last step."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.steps = kind(64, 128, num_layers=layers, bidirectional=bidirectional, batch_first=True)
        self.head = nn.Linear(256 if bidirectional else 128, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.steps(self.embed(tokens))[0][:, -1])


class Translator(nn.Module):
    """Sequence to sequence with attention (Luong et al., 2015), with teacher forcing."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(1000, width), nn.Embedding(1000, width)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.mix, self.head = nn.Linear(2 * width, width), nn.Linear(width, 1000)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen, states = self.encoder(self.source(source))
        asked, _ = self.decoder(self.target(target), states)
        context = (asked @ seen.transpose(1, 2)).softmax(-1) @ seen
        return self.head(self.mix(torch.cat([asked, context], -1)).tanh())


class WaveNet(nn.Module):
    """Gated causal convolutions of growing dilation (van den Oord et al., 2016)."""

    def __init__(self, width: int = 32, layers: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            [nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(layers)]
        )
        self.mixes = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(layers)])
        self.head = nn.Conv1d(width, 256, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        total: Any = 0
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            a, b = gate(functional.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
            step = mix(a.tanh() * b.sigmoid())
            x, total = x + step, total + step
        return self.head(total.relu())


def tokens(length: int = 32, count: int = 1000) -> torch.Tensor:
    """Return random tokens (1, length) below `count`."""
    return torch.randint(0, count, (1, length))


def _made(make: Callable[[], nn.Module], *inputs: torch.Tensor) -> Made:
    return make().eval(), inputs, {}


OTHERS: dict[str, Callable[[], Made]] = {
    "unet transposed": lambda: _made(partial(UNet, True), torch.randn(1, 3, 64, 64)),
    "unet bilinear": lambda: _made(partial(UNet, False), torch.randn(1, 3, 64, 64)),
    "lstm classifier": lambda: _made(partial(Classifier, nn.LSTM, 2, True), tokens()),
    "gru classifier": lambda: _made(partial(Classifier, nn.GRU, 1, False), tokens()),
    "seq2seq": lambda: _made(Translator, tokens(), tokens(20)),
    "wavenet": lambda: _made(WaveNet, torch.randn(1, 1, 512)),
}

_TORCHVISION = """alexnet vgg11_bn resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121
googlenet inception_v3 squeezenet1_1 mobilenet_v2 mobilenet_v3_large mnasnet1_0 shufflenet_v2_x1_0
efficientnet_b0 regnet_y_400mf convnext_tiny vit_b_16 swin_t deeplabv3_mobilenet_v3_large
fcn_resnet50 lraspp_mobilenet_v3_large""".split()

_TIMM = """resnet50d efficientnet_lite0 tf_efficientnetv2_b0 mobilenetv3_small_100 convnextv2_atto
vit_tiny_patch16_224 deit_tiny_patch16_224 mixer_s32_224 gmlp_s16_224 poolformer_s12
edgenext_xx_small ghostnet_100 levit_128s""".split()


def declare_torchvision() -> None:
    """Declare the two operators that torchvision extends when it is imported. Without them, PyPI's
    CUDA build of torchvision fails to import beside a CPU build of PyTorch."""
    if not hasattr(torch.ops.torchvision, "nms"):
        for name in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            _DECLARED.define(name + schema)


_DECLARED = torch.library.Library("torchvision", "FRAGMENT")


def _torchvision(name: str) -> Made:
    declare_torchvision()
    import torchvision

    size = 299 if name == "inception_v3" else 224
    bare = {"weights_backbone": None} if name.startswith(("deeplab", "fcn", "lraspp")) else {}
    unfilled = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = torchvision.models.get_model(name, weights=None, **bare, **unfilled)
    return settled(model, size), (images(1, size),), {}


def images(count: int, size: int) -> torch.Tensor:
    """Return random images whose neighbouring pixels are similar."""
    return functional.interpolate(torch.randn(count, 3, 7, 7), (size, size), mode="bicubic")


@torch.no_grad()
def settled(model: nn.Module, size: int) -> nn.Module:
    """Return the model in eval mode, with numbers that make a fault visible. Heads that a package
    fills with zeros get random numbers. If untrained batch norms make the activations vanish, so
    that every image has the same result, the batch norms get the statistics of eight images."""
    for each in model.parameters():
        if each.ndim > 1 and not each.any():
            nn.init.normal_(each, std=0.02)
    several = images(8, size)
    result = torch.utils._pytree.tree_leaves(model.eval()(several))[0]
    if (result[0] - result[1]).abs().max() < 1e-2 * result.abs().max():
        for each in model.modules():
            if isinstance(each, nn.modules.batchnorm._BatchNorm):
                each.momentum = 1.0
        model.train()(several)
    return model.eval()


def timm_model(name: str, size: int | None = None) -> Made:
    """Return a model of timm at this image size, or at its own."""
    declare_torchvision()
    import timm

    model = timm.create_model(name, pretrained=False)
    size = size or model.pretrained_cfg["input_size"][-1]
    return settled(model, size), (images(1, size),), {}


_TWO = {"num_hidden_layers": 2}
_BOTH = {"encoder_layers": 2, "decoder_layers": 2}

# The class in transformers, and options of its configuration.
_TRANSFORMERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("BertModel", _TWO),
    "distilbert": ("DistilBertModel", {"n_layers": 2}),
    "roberta": ("RobertaModel", _TWO),
    "albert": ("AlbertModel", _TWO),
    "electra": ("ElectraModel", _TWO),
    "mobilebert": ("MobileBertModel", _TWO),
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 2}),
    "gptneox": ("GPTNeoXForCausalLM", {**_TWO, "hidden_size": 1024, "num_attention_heads": 16,
                                       "intermediate_size": 4096}),
    "llama": ("LlamaForCausalLM", {**_TWO, "hidden_size": 2048, "intermediate_size": 5632,
                                   "num_attention_heads": 32, "num_key_value_heads": 4}),
    "mistral": ("MistralForCausalLM", {**_TWO, "hidden_size": 1024, "intermediate_size": 3584,
                                       "num_attention_heads": 16, "num_key_value_heads": 4}),
    "qwen2": ("Qwen2ForCausalLM", {**_TWO, "hidden_size": 896, "intermediate_size": 4864,
                                   "num_attention_heads": 14, "num_key_value_heads": 2}),
    "gemma": ("GemmaForCausalLM", {**_TWO, "hidden_size": 1024, "intermediate_size": 4096,
                                   "num_attention_heads": 8, "num_key_value_heads": 1,
                                   "head_dim": 128}),
    "t5": ("T5ForConditionalGeneration", {"num_layers": 2, "num_decoder_layers": 2}),
    "bart": ("BartModel", _BOTH),
    "whisper": ("WhisperModel", _BOTH),
    "vit": ("ViTModel", _TWO),
    "clip": ("CLIPModel", {"text_config": _TWO, "vision_config": _TWO}),
    "segformer": ("SegformerForSemanticSegmentation", {}),
    "wav2vec2": ("Wav2Vec2Model", _TWO),
}  # fmt: skip


def _transformers(name: str) -> Made:
    declare_torchvision()
    import transformers

    kind, options = _TRANSFORMERS[name]
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**options)).eval()
    return model, (), dict(arguments(model))


def arguments(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield inputs for the arguments that the model's signature has."""
    names = inspect.signature(model.forward).parameters
    parts = [model.config, *(v for v in vars(model.config).values() if hasattr(v, "to_dict"))]

    def setting(name: str, default: Any) -> Any:
        return next((v for part in parts if (v := getattr(part, name, None)) is not None), default)

    count = min(setting("vocab_size", 1000), 1000)
    if "input_ids" in names:
        yield "input_ids", tokens(32, count)
        if "attention_mask" in names:
            yield "attention_mask", torch.ones(1, 32, dtype=torch.int64)
    if "decoder_input_ids" in names:
        yield "decoder_input_ids", tokens(16, count)
    if "pixel_values" in names:
        size = setting("image_size", 224)
        size = size if isinstance(size, int) else size[0]
        yield "pixel_values", images(1, size)[:, : setting("num_channels", 3)]
    if "input_values" in names:
        yield "input_values", torch.randn(1, 16000)
    if "input_features" in names:
        yield "input_features", torch.randn(1, setting("num_mel_bins", 80), 3000)


GROUPS: dict[str, dict[str, Callable[[], Made]]] = {
    "others": OTHERS,
    "torchvision": {name: partial(_torchvision, name) for name in _TORCHVISION},
    "timm": {name: partial(timm_model, name, 224) for name in _TIMM},
    "transformers": {name: partial(_transformers, name) for name in _TRANSFORMERS},
}
