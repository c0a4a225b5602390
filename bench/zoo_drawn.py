"""Sixty architectures drawn at random from the lists of timm and transformers, for `bench.zoo`.

The lists (`timm.list_models()`, and the model types of transformers' `MODEL_MAPPING_NAMES`) were
shuffled with seed 17. From the front of each list come the first twenty models that are not in
`bench.zoo_models`, that PyTorch itself runs, and that are small: at most 30 million parameters and
256 x 256 pixels for timm; at most 60 million parameters, with two layers and 1000 tokens, for
transformers. The choice did not depend on whether needle accepts a model. "drawn timm 20" has the
first twenty models of timm's list (1.0.31), shuffled with seed 20, that are in no other group and
have fewer than 30 million parameters, at their own sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .zoo_models import Made, arguments, declare_torchvision, timm_model


def transformers_model(kind: str) -> Made:
    """Return a model of transformers by its type, with two layers and 1000 tokens."""
    declare_torchvision()
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    name = MODEL_MAPPING_NAMES[kind]
    cls = getattr(transformers, name if isinstance(name, str) else name[0])
    model = cls(_shallow(transformers.CONFIG_MAPPING[kind]())).eval()
    return model, (), dict(arguments(model))


_LAYERS = frozenset(
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth "
    "num_encoder_layers num_decoder_layers encoder_num_hidden_layers decoder_num_hidden_layers "
    "encoder_n_layers decoder_n_layers num_hidden_groups".split()
)


def _shallow(config: Any) -> Any:
    """Limit a configuration and its parts, in place, to two layers and 1000 tokens, and return it.
    Lists with an entry for each layer are cut."""
    from transformers import PretrainedConfig

    named = dict(vars(config))
    counts = {value for key, value in named.items() if key in _LAYERS and isinstance(value, int)}
    for key, value in named.items():
        if isinstance(value, PretrainedConfig):
            _shallow(value)
        elif key in _LAYERS and isinstance(value, int):
            setattr(config, key, min(value, 2))
        elif key == "vocab_size" and isinstance(value, int):
            setattr(config, key, min(value, 1000))
        elif isinstance(value, (list, tuple)) and len(value) in counts and len(value) > 2:
            setattr(config, key, value[:2])
        elif key.endswith("token_id") and isinstance(value, int):
            setattr(config, key, min(value, 999))
    return config


TIMM = """efficientvit_b1 regnetz_d32 hrnet_w18_small_v2 cspnext_s regnetx_008 mobilevitv2_100
vit_small_plus_patch16_dinov3 cs3darknet_focus_s convnext_tiny_hnf efficientnet_b0_gn regnetx_064
vit_small_patch32_224 iformer_m swinv2_tiny_window16_256 maxvit_nano_rw_256 convnext_tiny
vit_small_patch16_224 test_efficientnet_gn convnext_zepto_rms maxvit_rmlp_nano_rw_256""".split()

TIMM_20 = """tf_efficientnet_b4 ghostnetv2_160 xcit_small_12_p8_384 repvit_m0_9 edgenext_small
efficientnet_x_b3 pvt_v2_b2 skresnet50 mobileone_s0 resnext50d_32x4d mobileone_s3 starnet_s050
mobilenetv2_110d iformer_m_distilled convmixer_768_32 sehalonet33ts nest_tiny_jx
xcit_tiny_24_p16_224 cait_xxs24_384 efficientnet_es_pruned""".split()

TRANSFORMERS = """regnet fnet clip_text_model nomic_bert sam dpr bert-generation sapiens2 imagegpt
big_bird openai-gpt rt_detr mamba roformer sam2_vision_model gpt_bigcode hiera
pp_ocrv5_mobile_rec vision-text-dual-encoder falcon_mamba""".split()

DRAWN: dict[str, dict[str, Callable[[], Made]]] = {
    "drawn timm": {name: partial(timm_model, name) for name in TIMM},
    "drawn timm 20": {name: partial(timm_model, name) for name in TIMM_20},
    "drawn transformers": {name: partial(transformers_model, name) for name in TRANSFORMERS},
}
