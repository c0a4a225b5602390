"""Artifacts, and the folders in which programs are built."""

import os
import sys
from pathlib import Path

import pytest

import needle_runtime

# A folder that already has the artifacts, for a process in which the compiler should not run.
MODELS_VARIABLE = "NEEDLE_TESTED_MODELS"

if not sys.platform.startswith("linux"):
    pytest.skip("the C interface is for Linux", allow_module_level=True)
if not any(Path(each, "lib", "libneedle_runtime.so").is_file() for each in needle_runtime.__path__):
    pytest.skip("libneedle_runtime is not built", allow_module_level=True)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The folder of the artifacts that `models.write_small` writes."""
    if written := os.environ.get(MODELS_VARIABLE):
        return Path(written)
    from tests.needle_runtime.capi.models import write_small

    folder = tmp_path_factory.mktemp("models")
    write_small(folder)
    return folder


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """The folder of the artifacts and data that `models.write_digits` writes."""
    pytest.importorskip("sklearn")
    from tests.needle_runtime.capi.models import write_digits

    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    return folder
