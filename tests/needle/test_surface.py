"""The names that model code relies on exist, are exported, and are documented."""

import pytest

import needle as ndl

NAMES = {
    "ops": """add add_scalar multiply mul_scalar power power_scalar divide divide_scalar negate
        transpose reshape broadcast_to summation matmul log exp relu tanh sigmoid stack split flip
        dilate undilate conv logsoftmax logsumexp make_tuple tuple_get_item fused_add_scalars sqrt
        rsqrt erf gelu silu abs maximum minimum where compare max min mean var argmax softmax
        layer_norm batch_norm concat slice pad gather embedding cast permute squeeze unsqueeze
        max_pool avg_pool""",
    "nn": """Parameter Module Identity Linear Flatten ReLU Tanh Sigmoid Sequential SoftmaxLoss
        BatchNorm1d BatchNorm2d LayerNorm1d Dropout Residual Conv RNNCell RNN LSTMCell LSTM
        Embedding MultiHeadAttention AttentionLayer TransformerLayer Transformer GELU SiLU
        MaxPool2d AvgPool2d GroupNorm CrossEntropyLoss MSELoss Bilinear EmbeddingBag Conv1d Conv2d
        Conv3d ConvTranspose1d ConvTranspose2d BatchNorm3d InstanceNorm1d InstanceNorm2d LayerNorm
        RMSNorm Dropout2d ReLU6 LeakyReLU PReLU ELU SELU Mish Softplus Hardswish Hardsigmoid
        Hardtanh Softmax LogSoftmax MaxPool1d MaxPool3d AvgPool1d AvgPool3d AdaptiveAvgPool1d
        AdaptiveAvgPool2d AdaptiveMaxPool2d PixelShuffle Unflatten GRU GRUCell MultiheadAttention
        TransformerEncoder TransformerEncoderLayer TransformerDecoder TransformerDecoderLayer
        RotaryEmbedding SinusoidalEncoding ModuleList ModuleDict ParameterList ParameterDict L1Loss
        SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss NLLLoss KLDivLoss CTCLoss
        CosineEmbeddingLoss TripletMarginLoss functional""",
    "init": """rand randn constant ones zeros randb one_hot zeros_like ones_like xavier_uniform
        xavier_normal kaiming_uniform kaiming_normal""",
    "optim": """SGD Adam AdamW Optimizer StepLR CosineLR LinearLR ExponentialLR LambdaLR Adagrad
        RMSprop Lion Adafactor Muon LBFGS MultiStepLR CosineAnnealingLR OneCycleLR SequentialLR
        ReduceLROnPlateau clip_grad_norm clip_grad_value EMA Adadelta Adamax NAdam RAdam
        lr_scheduler""",
}


@pytest.mark.parametrize("module", NAMES)
def test_public_names(module):
    package = getattr(ndl, module)
    for name in NAMES[module].split():
        assert name in package.__all__, name
        assert (getattr(package, name).__doc__ or "").strip(), name
