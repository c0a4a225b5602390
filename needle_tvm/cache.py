"""Where compiled models are kept between runs. Imports neither needle nor TVM.

An entry is an artifact directory without weights, named by the SHA-256 of everything that decides
what the compiler produces: so a changed model, target or version is another entry and nothing
stale is ever served.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from needle_tvm import versions
from needle_tvm.precision import FLOAT32

CACHE_VARIABLE = "NEEDLE_CACHE_DIR"


def root() -> Path:
    """The cache's folder: `NEEDLE_CACHE_DIR`, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("needle", appauthor=False))


def key(
    *,
    graph: str,
    target: dict[str, Any],
    stage: str,
    search: dict[str, Any],
    disable: Collection[str] = (),
    products: dict[str, Any] | None = None,
    precision: str = FLOAT32,
) -> dict[str, Any]:
    """The key of one compiled stage, as JSON: `graph` is `needle.trace.Graph.fingerprint()`,
    `search` what `tune.options.Options.cache_key` gives, `disable` what was left out of it,
    `products` what `products.Choice.key` is, `precision` what products' operands are rounded to.
    """
    return {
        "graph": graph,
        "target": target,
        "stage": stage,
        "precision": precision,
        "search": search,
        "disable": sorted(disable),
        "products": products,
        "versions": versions.stamp(),
    }


def entry(key: dict[str, Any]) -> Path:
    """The folder this key's artifact has, or would have."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return root() / "artifacts" / digest[:2] / digest
