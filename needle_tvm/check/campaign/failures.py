"""Record a failing program as a short script that reproduces the failure.

`campaign.run` calls `write`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from needle_runtime.text import one_line
from needle_tvm.check.campaign.judge import ONNX, TORCH, Variant
from needle_tvm.check.campaign.program import Program
from needle_tvm.check.campaign.shrink import shrunk
from needle_tvm.check.campaign.verdicts import FOREIGN, VARIANTS, WRONG, place
from needle_tvm.tune.measure.workers import CRASH, MEMORY, TIMEOUT

FAILURES = (WRONG, FOREIGN, CRASH, TIMEOUT, MEMORY)

Judge = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_HEAD = """\
# {verdict} at {where}: {what}
# {kind}, seed {seed}. Exits with 1, or is killed, while the failure remains; with 0 once fixed.
"""

_BY_SOURCE = """
{source}
if __name__ == "__main__":
    from needle_tvm.check.campaign.judge import rerun

    raise SystemExit(rerun(lambda: (type(model)().eval(), inputs), {arguments}))
"""

_BY_REQUEST = """
if __name__ == "__main__":
    from {home} import rerun_request

    raise SystemExit(rerun_request({request!r}))
"""

_HOMES = {kind: f"needle_tvm.check.campaign.{kind}.programs" for kind in (TORCH, ONNX)}
_HOME = "needle_tvm.check.campaign.judge"

_ALARM = "import signal\n\nsignal.alarm({seconds:.0f})  # it may never end\n"


def write(
    folder: Path, result: Mapping[str, Any], judge: Judge, seconds: float, limit: float
) -> Path:
    """Write the script of a failure into `folder`, shrunk with the help of `judge`.

    Shrinking takes about `seconds` seconds; 0 means no shrinking. `result` may contain its
    `program`, unless its process died. `limit` is the most seconds that a program may take.
    """
    kind, verdict = result["kind"], result["verdict"]
    text = _HEAD.format(**{**result, "what": one_line(str(result["what"]))})
    if verdict == TIMEOUT:
        text += _ALARM.format(seconds=limit)
    program = result.get("program")
    if program is None and kind != TORCH:
        program = judge({"kind": kind, "seed": result["seed"], "variants": []}).get("program")
    of = {"seed": result["seed"]} if program is None else {"program": program}
    variants: Sequence[Variant] = VARIANTS
    if program is not None and kind != TORCH:
        small, variants = _small(Program.from_json(program), result, judge, seconds)
        of = {"program": small.to_json(), "variants": list(variants)}
    if program is None or kind in _HOMES:
        request = {"kind": kind, **of}
        text += _BY_REQUEST.format(home=_HOMES.get(kind, _HOME), request=request)
    else:
        arguments = f"{list(variants)!r}{', dims, others' if small.dims else ''}"
        text += _BY_SOURCE.format(source=small.source(), arguments=arguments)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{result['seed']}.py"
    path.write_text(text)
    return path


def _small(
    program: Program, result: Mapping[str, Any], judge: Judge, seconds: float
) -> tuple[Program, Sequence[Variant]]:
    """Return the shrunk program, and the variants at which it fails. If `seconds` is 0, return the
    program as it is, and all variants."""
    if not seconds:
        return program, VARIANTS
    variants = [variant for variant in VARIANTS if place(*variant) == result["where"]]
    if not variants and result["where"] in ("eager", "trace"):
        return program, ()

    def fails(candidate: Program, at: Sequence[Variant]) -> bool:
        request = {"kind": result["kind"], "program": candidate.to_json(), "variants": list(at)}
        return _alike(judge(request), result)

    # If the process died, it is not known where the program failed: try the original program
    # without compiling it, then at each variant.
    tried = [variants] if variants else [[], *([variant] for variant in VARIANTS)]
    found = next((at for at in tried if fails(program, at)), None)
    if found is None:
        return program, VARIANTS
    end = time.monotonic() + seconds  # after the first judgement, which may start a process
    return shrunk(program, lambda each: time.monotonic() < end and fails(each, found)), found


def _alike(found: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Return whether a program failed in the same way as in `result`."""
    if found["verdict"] != result["verdict"]:
        return False
    return result["verdict"] != FOREIGN or _kinds(found["what"]) == _kinds(result["what"])


def _kinds(what: str) -> list[str]:
    """Return the names of errors, passes and rules in a message.

    Names of functions are left out, because they differ in a smaller program.
    """
    return re.findall(r"\w+Error\b|(?:pass|rule) '\w+'", what)


def normalised_of_dims(what: str) -> str:
    """Return the text of a refusal because of dims, without the parts that depend on the sizes."""
    what = re.sub(r"\[.*\]", "[...]", one_line(what).partition(", which is not known")[0])
    what = re.sub(r"(whether|extent) .*?( [<>=]=? |$| can be ).*", r"\1 ...\2 ...", what)
    return normalised(what)


def normalised(what: str) -> str:
    """Return the text of a verdict without numbers, names and quotations."""
    what = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", one_line(what))
    what = re.sub(r"\b\w*\d\w*(\.\d+)?", "N", what)
    what = re.sub(r"[\[(](?:-?N,? ?)+[\])]|\(\)", "(N)", what)
    return what[:200]
