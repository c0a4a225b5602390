"""Train ResNet9 on CIFAR-10; write the weights as safetensors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # a script finds modules beside it, not its own package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from apps import training
from needle_runtime.errors import UsageError
from needle_runtime.process import command_line as cli
from needle_runtime.text import error_line

LEARNING_RATE = 2e-3
WEIGHT_DECAY = 5e-4
SHIFT = 4  # images are shifted by up to this many pixels
TEST_BATCH = 500


def make_parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="train_cifar10.py", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "data", type=Path, help="folder with CIFAR-10's files, in the Python or the binary version"
    )
    parser.add_argument(
        "--workers",
        type=cli.natural,
        default=2,
        metavar="N",
        help="threads that prepare batches; the result is the same for any number (%(default)s)",
    )
    training.add_arguments(parser, epochs=10, batch=128, out="out/cifar10.safetensors")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = make_parser().parse_args(arguments)
    return training.main("train_cifar10.py", options, Cifar10)


class Cifar10(training.Task):
    """ResNet9 trained with Adam on randomly shifted and flipped images."""

    warmup = 0.1

    def __init__(self, options: argparse.Namespace, device: Any) -> None:
        import needle as ndl
        from apps.models.resnet import ResNet9

        self.device = device
        self.carried = {}
        self.settings = {
            "batch": options.batch,
            "seed": options.seed,
            "lr": LEARNING_RATE,
            "weight_decay": WEIGHT_DECAY,
        }
        changes = [ndl.data.RandomCrop(SHIFT), ndl.data.RandomFlipHorizontal()]
        try:
            train = ndl.data.CIFAR10Dataset(options.data, True, transforms=changes)
            test = ndl.data.CIFAR10Dataset(options.data, False)
        except (ValueError, FileNotFoundError) as error:
            raise UsageError(error_line(error)) from error
        self.loader = ndl.data.DataLoader(
            train,
            options.batch,
            shuffle=True,
            seed=options.seed,
            workers=options.workers,
            device=device,
        )
        self.test = ndl.data.DataLoader(test, TEST_BATCH, device=device)
        self.model = ResNet9(device=device)
        self.optimizer = ndl.optim.Adam(
            self.model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        self.loss_of = ndl.nn.SoftmaxLoss()

    def loss(self, batch: Any) -> Any:
        images, labels = batch
        return self.loss_of(self.model(images), labels)

    def evaluate(self) -> dict[str, float]:
        import needle as ndl

        right = total = 0
        loss = 0.0
        with ndl.no_grad():
            for images, labels in self.test:
                scores = self.model(images)
                loss += self.loss_of(scores, labels).item() * len(labels)
                right += int((scores.numpy().argmax(axis=1) == labels.numpy()).sum())
                total += len(labels)
        return {"test_loss": loss / total, "test_accuracy": right / total}


if __name__ == "__main__":
    sys.exit(main())
