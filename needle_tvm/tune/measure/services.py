"""The services of the search's worker processes; `bench` passes `serve` to its `Workers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from needle_tvm.tune.measure import steps as measure

_SERVICES = {
    "prepare": measure.prepare,
    "build": measure.build,
    "measure": measure.measure,
    "compare": measure.compare,
}


def serve(request: Mapping[str, Any]) -> Any:
    """Run the service named by the request's `do`."""
    return _SERVICES[request["do"]](request)
