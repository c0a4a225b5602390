"""Train an MLP or a small ResNet on scikit-learn's 8x8 digits; write the weights as safetensors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # a script finds modules beside it, not its own package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from apps import training
from needle_runtime.process import command_line as cli

HIDDEN = (128, 64)
LEARNING_RATE = {"mlp": 3e-3, "resnet": 4e-3}
EPOCHS = {"mlp": 40, "resnet": 30}
BATCH = {"mlp": 32, "resnet": 64}
WEIGHT_DECAY = 1e-4
SHIFT = 1  # the ResNet's images are shifted by up to this many pixels


def make_parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="train_digits.py", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--model", choices=tuple(EPOCHS), default="mlp", help="model to train (%(default)s)"
    )
    training.add_arguments(parser, epochs=None, batch=None, out="out/digits.safetensors")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = make_parser().parse_args(arguments)
    options.epochs = options.epochs or EPOCHS[options.model]
    options.batch = options.batch or BATCH[options.model]
    return training.main("train_digits.py", options, Digits)


class Digits(training.Task):
    """An MLP, or a ResNet on randomly shifted images, trained with Adam."""

    def __init__(self, options: argparse.Namespace, device: Any) -> None:
        import needle as ndl
        from apps import digits

        resnet = options.model == "resnet"
        self.warmup = 0.1 if resnet else 0.0
        self.device = device
        self.carried = {}
        self.settings = {
            "model": options.model,
            "batch": options.batch,
            "seed": options.seed,
            "lr": LEARNING_RATE[options.model],
            "weight_decay": WEIGHT_DECAY,
        }
        if resnet:
            from apps.models.resnet import DigitsResNet

            self.model: Any = DigitsResNet(device=device)
            moved = [ndl.data.RandomCrop(SHIFT)]
            data: Any = digits.DigitImages(train=True, transforms=moved)
        else:
            from apps.models.mlp import MLP

            self.model = MLP([digits.FEATURES, *HIDDEN], digits.CLASSES)
            self.model.to(device)
            data = ndl.data.DigitsDataset(train=True)
        self.loader = ndl.data.DataLoader(
            data, options.batch, shuffle=True, seed=options.seed, device=device
        )
        self.optimizer = ndl.optim.Adam(
            self.model.parameters(), lr=self.settings["lr"], weight_decay=WEIGHT_DECAY
        )
        self.loss_of = ndl.nn.SoftmaxLoss()
        images, self.labels = digits.test_set()
        self.images = images.reshape((-1, 1, digits.SIDE, digits.SIDE) if resnet else images.shape)

    def loss(self, batch: Any) -> Any:
        images, labels = batch
        return self.loss_of(self.model(images), labels)

    def evaluate(self) -> dict[str, float]:
        from apps import digits

        found = digits.predict(self.model, self.images, len(self.images), self.device)
        return {"test_accuracy": float((found == self.labels).mean())}


if __name__ == "__main__":
    sys.exit(main())
