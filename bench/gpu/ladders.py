"""The kernel lab's GPU ladders beside PyTorch: `python -m kernel_lab`, but for what fails."""

from __future__ import annotations

from typing import Any

from bench.gpu.settings import Settings

_ROUNDS = 3  # a ladder has some twenty contestants
# At a large size the rungs below these take seconds a launch and say nothing new.
_FIRST_AT_SIZE = {"gemm": "register_tile"}


def measure(name: str, extent: int | None, settings: Settings) -> dict[str, Any]:
    """A ladder's result as JSON values; with `extent` a square product of that size, by its upper
    rungs. A contestant that fails or is wrong is left out, with the reason under "left_out"."""
    from kernel_lab import registry
    from kernel_lab.errors import ContestantError
    from kernel_lab.run import Request, run
    from needle_tvm._tvm.names import tvm
    from needle_tvm.process.timing import TimingError

    ladder = registry.ladder(name, settings.device)
    rungs = [rung.name for rung in ladder.rungs]
    size = {}
    if extent is not None:
        size = dict.fromkeys("MNK", settings.extent(extent))
        first = _FIRST_AT_SIZE[name]
        if first in rungs:
            rungs = rungs[rungs.index(first) :]
        rungs = [rung.name for rung in ladder.select(rungs) if rung.kind != "failed"]
    elif settings.rehearsal:
        size = {axis: 64 for axis in ("M", "N", "K") if axis in ladder.workload.sizes["cpu"][0]}
    peers, left_out = True, {}
    while True:
        request = Request(
            name,
            device=settings.device,
            size=size,
            rungs=rungs,
            rounds=min(_ROUNDS, settings.rounds),
            peers=peers,
        )
        try:
            result = run(request).to_dict()
        except (ContestantError, TimingError) as error:
            name_of = getattr(error, "contestant", "") or getattr(error, "child", "")
            guilty = name_of.removesuffix(", one launch")
            left_out[guilty] = str(error)
            if guilty in rungs and len(rungs) > 1:
                rungs.remove(guilty)
            elif guilty and guilty not in rungs and peers:
                peers = False
            else:
                raise
            continue
        return {**result, "left_out": left_out, "versions": {"TVM": str(tvm.__version__)}}
