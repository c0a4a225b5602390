"""Run the scripts of this folder, each in its own process, and print a table of the models.

Writes real.json beside the scripts' files. The exit code is 1 if a script fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
SCRIPTS = {
    "file_types": ("file_types",),
    "speech": ("speech",),
    "notes": ("notes",),
    "words": ("words_find", "words_turn", "words_read"),
    "speakers": ("speakers",),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("out/real"), help="folder of results")
    parser.add_argument("--no-times", action="store_true", help="do not time the models")
    options = parser.parse_args()
    shared = ["--out", str(options.out)] + (["--no-times"] if options.no_times else [])
    failed, results = [], []
    for script, models in SCRIPTS.items():
        command = [sys.executable, str(HERE / f"{script}.py"), *shared]
        if subprocess.run(command).returncode:
            failed.append(script)
        else:
            results += [json.loads((options.out / f"{name}.json").read_text()) for name in models]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "real.json").write_text(json.dumps(results, indent=1) + "\n")
    table = Table("model", "package", "compiled", "needle", "ONNX Runtime", "differs by", "answer")
    for result in results:
        times = result["milliseconds"] or {}
        ours, theirs = (times.get(name) for name in ("needle", "ONNX Runtime"))
        table.add_row(
            result["model"],
            result["package"],
            f"{result['compile_seconds']:.1f} s",
            "" if ours is None else f"{ours:.2f} ms",
            "" if theirs is None else f"{theirs:.2f} ms",
            f"{result['difference']:.1e}",
            result["answer"],
        )
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)
    if failed:
        Console(stderr=True).print(f"failed: {', '.join(failed)}", style="red")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
