"""What the search's worker processes do for it; see `workers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from needle_tvm.tune import roofline
from needle_tvm.tune.measure import steps as measure

_SERVICES = {
    "prepare": measure.prepare,
    "build": measure.build,
    "measure": measure.measure,
    "compare": measure.compare,
    "probe": roofline.probe,
}


def serve(request: Mapping[str, Any]) -> Any:
    """Carry out the request named by its `do`."""
    return _SERVICES[request["do"]](request)
