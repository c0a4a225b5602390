"""Train a language model, LSTM or Transformer, on the text files of the Penn Treebank."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import index as as_int
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # a script finds modules beside it, not its own package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from apps import training
from needle_runtime.errors import UsageError
from needle_runtime.process import command_line as cli
from needle_runtime.text import error_line

LEARNING_RATE = {"lstm": 4e-3, "transformer": 1e-3}
MAX_NORM = 0.25
HEADS = 4


def make_parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="train_ptb.py", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("data", type=Path, help="folder with train.txt and test.txt (or ptb.train.txt and so on)")
    add(
        "--model",
        choices=tuple(LEARNING_RATE),
        default="lstm",
        help="model to train (%(default)s)",
    )
    add("--size", type=cli.positive, default=200, metavar="N", help="hidden size (%(default)s)")
    add("--layers", type=cli.positive, default=2, metavar="N", help="layers (%(default)s)")
    add("--length", type=cli.positive, default=35, metavar="N", help="words per step (%(default)s)")
    add("--lines", type=cli.positive, metavar="N", help="lines to read from each file (all)")
    training.add_arguments(parser, epochs=6, batch=20, out="out/ptb.safetensors")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = make_parser().parse_args(arguments)
    return training.main("train_ptb.py", options, PennTreebank)


class TextLoader:
    """A loader that iterates over the result of batchify in steps of `length` rows."""

    def __init__(self, batches: Any, length: int, device: Any) -> None:
        self.batches = batches
        self.length = length
        self.device = device
        self.next = 0  # the next step; after the last step it is 0 again

    def __len__(self) -> int:
        return -(-(len(self.batches) - 1) // self.length)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        from needle.data import get_batch

        self.next %= max(len(self), 1)
        while self.next < len(self):
            batch = get_batch(self.batches, self.next * self.length, self.length, self.device)
            self.next += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as JSON values."""
        return {"next": self.next}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved position. Raises ValueError if it does not exist."""
        position = as_int(values["next"])
        if not 0 <= position <= len(self):
            raise ValueError(f"position {position} must be from 0 to {len(self)}")
        self.next = position


class PennTreebank(training.Task):
    """A language model trained with Adam. An LSTM's state carries over from step to step."""

    max_norm = MAX_NORM
    warmup = 0.05

    def __init__(self, options: argparse.Namespace, device: Any) -> None:
        import needle as ndl
        from apps.models.language import LanguageModel

        self.device = device
        self.carried = {}
        self.hands_on = options.model != "transformer"
        try:
            corpus = ndl.data.Corpus(options.data, options.lines)
            train = ndl.data.batchify(corpus.train, options.batch)
            test = ndl.data.batchify(corpus.test, min(options.batch, len(corpus.test) // 2))
        except (ValueError, FileNotFoundError) as error:
            raise UsageError(error_line(error)) from error
        words = len(corpus.dictionary)
        self.settings = {
            "model": options.model,
            "size": options.size,
            "layers": options.layers,
            "length": options.length,
            "words": words,
            "batch": options.batch,
            "seed": options.seed,
            "lr": LEARNING_RATE[options.model],
        }
        self.loader = TextLoader(train, options.length, device)
        self.test = TextLoader(test, options.length, device)
        self.model = LanguageModel(
            options.size,
            words,
            options.size,
            options.layers,
            options.model,
            options.length,
            device=device,
            num_head=HEADS,
            dim_head=max(options.size // HEADS, 1),
        )
        self.optimizer = ndl.optim.Adam(self.model.parameters(), lr=self.settings["lr"])
        self.loss_of = ndl.nn.SoftmaxLoss()

    def begin_epoch(self) -> None:
        self.carried = {}

    def loss(self, batch: Any) -> Any:
        words, following = batch
        before = (self.carried["h"], self.carried["c"]) if self.carried else None
        scores, state = self.model(words, before)
        if self.hands_on:
            h, c = state
            self.carried = {"h": h.detach(), "c": c.detach()}
        return self.loss_of(scores, following)

    def evaluate(self) -> dict[str, float]:
        import needle as ndl

        total, count, state = 0.0, 0, None
        with ndl.no_grad():
            for words, following in self.test:
                scores, state = self.model(words, state if self.hands_on else None)
                total += self.loss_of(scores, following).item() * len(following)
                count += len(following)
        loss = total / count
        return {"test_loss": loss, "test_perplexity": math.exp(min(loss, 700.0))}


if __name__ == "__main__":
    sys.exit(main())
