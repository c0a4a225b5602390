"""Language models that predict the next word after each word of a text."""

from __future__ import annotations

from typing import Any

import numpy as np

import needle as ndl
from needle import nn

SEQUENCE_MODELS = ("rnn", "lstm", "transformer")


class LanguageModel(nn.Module):
    """Words (seq_len, bs) as whole numbers -> (scores (seq_len * bs, output_size), state).

    `seq_model` is "rnn", "lstm" or "transformer" (causal, sequences of at most `seq_len`). The
    state belongs to the recurrent layer; pass it in with the words that follow.
    """

    def __init__(
        self,
        embedding_size: int,
        output_size: int,
        hidden_size: int,
        num_layers: int = 1,
        seq_model: str = "rnn",
        seq_len: int = 40,
        device: Any = None,
        dtype: str = "float32",
        *,
        num_head: int = 8,
        dim_head: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if seq_model not in SEQUENCE_MODELS:
            known = ", ".join(map(repr, SEQUENCE_MODELS))
            raise ValueError(f"LanguageModel: seq_model {seq_model!r} is not one of {known}")
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.embedding = nn.Embedding(output_size, embedding_size, **where)
        self.dropout = nn.Dropout(dropout)
        width = hidden_size
        if seq_model == "transformer":
            width = embedding_size
            self.seq_model: Any = nn.Transformer(
                embedding_size,
                hidden_size,
                num_layers,
                num_head=num_head,
                dim_head=dim_head,
                dropout=dropout,
                causal=True,
                sequence_len=seq_len,
                **where,
            )
        else:
            kind = nn.LSTM if seq_model == "lstm" else nn.RNN
            self.seq_model = kind(embedding_size, hidden_size, num_layers, **where)
        self.linear = nn.Linear(width, output_size, **where)

    def forward(self, x: ndl.Tensor, h: Any = None) -> tuple[ndl.Tensor, Any]:
        words, state = self.seq_model(self.dropout(self.embedding(x)), h)
        length, batch, width = words.shape
        scores = self.linear(self.dropout(words.reshape(length * batch, width)))
        return scores, state


def lstm(
    batch: int = 4, words: int = 100, size: int = 64, layers: int = 2, length: int = 20
) -> tuple[nn.Module, np.ndarray]:
    """Return an LSTM language model (small by default) and `length` words, for
    tvm_eval.py's FILE.py:function."""
    return _example("lstm", batch, words, size, layers, length)


def transformer(batch: int = 4) -> tuple[nn.Module, np.ndarray]:
    """Return a small Transformer language model and 20 words, for FILE.py:function."""
    return _example("transformer", batch, 100, 64, 2, 20)


def _example(
    seq_model: str, batch: int, words: int, size: int, layers: int, length: int
) -> tuple[nn.Module, np.ndarray]:
    ndl.manual_seed(0)
    model = LanguageModel(
        size // 2, words, size, layers, seq_model, seq_len=length, num_head=4, dim_head=8
    )
    model.eval()
    return model, np.random.default_rng(0).integers(0, words, (length, batch), dtype=np.int32)
