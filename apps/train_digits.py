"""Train the MLP on scikit-learn's 8x8 digits and save its weights as safetensors."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cli

HIDDEN = (128, 64)
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4


def make_parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="train_digits.py", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--epochs", type=cli.positive, default=40, metavar="N", help="passes (%(default)s)")
    add("--batch", type=cli.positive, default=32, metavar="N", help="samples a step (%(default)s)")
    add("--seed", type=cli.natural, default=0, metavar="N", help="weights, order (%(default)s)")
    add(
        "--out",
        type=Path,
        default=Path("out/digits.safetensors"),
        metavar="FILE",
        help="where the weights go (%(default)s)",
    )
    add(
        "--device",
        choices=("cpu", "cpu_numpy", "cuda"),
        default="cpu",
        help="where it trains (%(default)s)",
    )
    add("-q", "--quiet", action="store_true", help="print errors only")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    options = make_parser().parse_args(arguments)
    return cli.guarded("train_digits.py", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Trains, saves, and says how well the result does on the test set."""
    import digits
    import needle as ndl
    from models.mlp import MLP

    cli.check_writable(options.out)
    device = getattr(ndl, options.device)()
    if not device.enabled():
        raise cli.UsageError(f"device {options.device!r} is not available on this machine")
    ndl.manual_seed(options.seed)
    model = MLP([digits.FEATURES, *HIDDEN], digits.CLASSES)
    model.to(device)
    data = ndl.data.DigitsDataset(train=True)
    loader = ndl.data.DataLoader(data, batch_size=options.batch, shuffle=True, seed=options.seed)
    optimizer = ndl.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    loss_of = ndl.nn.SoftmaxLoss()

    start = time.perf_counter()
    model.train()
    with cli.progress(options.quiet) as report:
        for epoch in range(options.epochs):
            losses = []
            for images, labels in loader:
                optimizer.reset_grad()
                loss = loss_of(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
                losses.append(float(loss.numpy()))
            mean = sum(losses) / len(losses)
            report(epoch + 1, options.epochs, f"epoch {epoch + 1:3d}  loss {mean:.4f}")
    seconds = time.perf_counter() - start

    model.eval()
    model.to(ndl.cpu())
    images, labels = digits.test_set()
    accuracy = (digits.predict(model, images, len(images)) == labels).mean()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    ndl.save(options.out, model)
    if not options.quiet:
        sys.stdout.write(
            f"test accuracy {accuracy:.2%} after {options.epochs} epochs in {seconds:.1f} s; "
            f"wrote {options.out}\n"
        )
    return cli.OK


if __name__ == "__main__":
    sys.exit(main())
