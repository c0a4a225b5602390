"""A damaged, mixed or rewritten artifact is refused before the dynamic loader sees any of it.

Every batch of faults runs in a separate process, so that a signal would be seen. Its `dlopen` logs
its arguments, among which may only be the undamaged artifact, loaded at the end of each batch.
"""

import base64
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle_tvm
from needle_runtime.artifact import layout, signature
from needle_runtime.artifact.manifest import read_manifest, write_manifest
from tests.needle_tvm.conftest import make_mlp, tensor

pytest.importorskip("cryptography", reason="signatures need the [sign] extra")

CHILD = Path(__file__).with_name("artifact_faults.py")
SPY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
void *dlopen(const char *file, int mode) {
  void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
  FILE *log = fopen(getenv("DLOPEN_LOG"), "a");
  if (log && file) fprintf(log, "%s\\n", file);
  if (log) fclose(log);
  return next(file, mode);
}
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    private = tmp_path_factory.mktemp("keys") / "key"
    return private, signature.generate(private)


@pytest.fixture(scope="module")
def pair(tmp_path_factory, keys):
    """Two signed artifacts that have no equal file."""
    folder = tmp_path_factory.mktemp("pair")
    for name, width in (("one", 5), ("two", 6)):
        x = tensor(np.random.default_rng(width).standard_normal((4, 16)).astype(np.float32))
        needle_tvm.compile(make_mlp(16, width), x, stage="fused").export(
            folder / name, sign=keys[0]
        )
    one, two = (contents(folder / name) for name in ("one", "two"))
    assert set(one) == set(two) and all(one[name] != two[name] for name in one)
    return folder / "one", folder / "two"


@pytest.fixture(scope="module")
def spy(tmp_path_factory):
    """A library to preload, whose dlopen logs its arguments."""
    folder = tmp_path_factory.mktemp("spy")
    (folder / "spy.c").write_text(SPY)
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / "spy.so"), str(folder / "spy.c")]
    subprocess.run([*command, "-ldl"], check=True)
    return folder / "spy.so"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_refused(faults, folder, spy, tmp_path, key=None):
    """Check that one child refuses all faults, ends without a signal and loads nothing else."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    if key is None:
        (copy / layout.SIGNATURE).unlink()
    log = tmp_path / "dlopen.log"
    done = subprocess.run(
        [sys.executable, str(CHILD), str(copy), *([str(key)] if key else [])],
        input=json.dumps(faults),
        env={**os.environ, "LD_PRELOAD": str(spy), "DLOPEN_LOG": str(log)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"refused": len(faults), "loaded": []}
    opened = {line for line in log.read_text().splitlines() if "/fd/" in line}
    assert len(opened) == 1, opened  # the undamaged artifact, which shows that the spy works
    assert not any(str(copy) in line for line in log.read_text().splitlines())


def counts(default, full):
    return [
        pytest.param(default, id=str(default)),
        pytest.param(full, id=str(full), marks=pytest.mark.slow),
    ]


signed = pytest.mark.parametrize("with_key", [False, True], ids=["unsigned", "signed"])


def names(pair, with_key):
    return sorted(set(contents(pair[0])) - (set() if with_key else {layout.SIGNATURE}))


@signed
@pytest.mark.parametrize("step", counts(7, 1))
def test_truncated(pair, keys, spy, tmp_path, with_key, step):
    sizes = {name: len(data) for name, data in contents(pair[0]).items()}
    faults = [
        {"file": name, "size": sizes[name] * percent // 100}
        for name in names(pair, with_key)
        for percent in range(0, 100, step)
    ]
    check_refused(faults, pair[0], spy, tmp_path, keys[1] if with_key else None)


@signed
@pytest.mark.parametrize("count", counts(200, 2000))
def test_a_bit_flipped(pair, keys, spy, tmp_path, with_key, count):
    rng = random.Random(count)
    files = contents(pair[0])
    chosen = [rng.choice(names(pair, with_key)) for _ in range(count)]
    faults = [{"file": name, "bit": rng.randrange(8 * len(files[name]))} for name in chosen]
    check_refused(faults, pair[0], spy, tmp_path, keys[1] if with_key else None)


@signed
def test_files_swapped_between_artifacts(pair, keys, spy, tmp_path, with_key):
    """Swap every subset of files except none and all; both artifacts are good and of one signer."""
    other = {name: base64.b64encode(data).decode() for name, data in contents(pair[1]).items()}
    files = names(pair, with_key)
    chosen = [
        subset for size in range(1, len(files)) for subset in itertools.combinations(files, size)
    ]
    faults = [{name: other[name] for name in subset} for subset in chosen]
    check_refused(faults, pair[0], spy, tmp_path, keys[1] if with_key else None)


def resealed(folder, key=None, **changes):
    """A folder's changed manifest with matching digests, and its signature if there is a key."""
    manifest = {**read_manifest(folder), **changes}
    write_manifest(folder, manifest, key)
    return contents(folder)


def test_rewritten_by_someone_else(pair, keys, spy, tmp_path):
    """Digests match again, with any signature that somebody without the key can make."""
    strangers = tmp_path / "stranger"
    signature.generate(strangers)
    mine, theirs = contents(pair[0]), contents(pair[1])
    forged = []
    for changed in ({}, {layout.LIBRARY}, {layout.PARAMS}, {layout.LIBRARY, layout.GOLDEN}):
        for key in (None, strangers):
            work = shutil.copytree(pair[0], tmp_path / f"work{len(forged)}")
            for name in changed:
                (work / name).write_bytes(theirs[name])
            files = resealed(work, key, note="rewritten")
            forged.append(files)
            for signed in (mine[layout.SIGNATURE], theirs[layout.SIGNATURE], bytes(64), b""):
                forged.append({**files, layout.SIGNATURE: signed})
    # A file cannot be taken away by writing it: what has no signature is tested elsewhere.
    faults = [
        {name: base64.b64encode(data).decode() for name, data in files.items()}
        for files in forged
        if layout.SIGNATURE in files
    ]
    check_refused(faults, pair[0], spy, tmp_path, keys[1])


MANIFESTS = {
    "not JSON": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "another type": b"[]",
    "empty": b"{}",
    "huge number": b'{"format": ' + b"9" * 10_000 + b"}",
}


def test_manifests_of_other_shapes(pair, spy, tmp_path):
    """Manifests with matching digests but missing or mistyped parts give one line, not a crash."""
    work = shutil.copytree(pair[0], tmp_path / "work")
    (work / layout.SIGNATURE).unlink()
    good = read_manifest(work)
    main = good["functions"]["main"]
    wrong = [
        {"functions": {}},
        {"functions": None},
        {"versions": []},
        {"target": {"features": [1]}},
        {"target": {"num-cores": "all"}},
        {"golden": {}},
        {"golden": {"tolerances": [float("nan")]}},
        *({"functions": {"main": {**main, name: value}}} for name, value in (
            ("inputs", None),
            ("inputs", [{}]),
            ("inputs", []),
            ("params", [{"name": 1, "shape": [], "dtype": "float32"}]),
            ("outputs", [{"shape": [-1], "dtype": "float32"}]),
            ("outputs", [{"shape": "4", "dtype": "float32"}]),
            ("outputs", [{"shape": ["n"], "dtype": "float32"}]),
            ("dims", [{"name": "n"}]),
            ("dims", [{"name": "n", "min": 1, "max": 2, "multiple_of": 1}]),
            ("arguments", [{"tree": {}}]),
            ("output_tree", {"tuple": ["*", "*"]}),
            ("output_tree", {"tuple": [{"list": 3}]}),
            ("bare_output", 1),
            ("transform", 1),
        )),
    ]  # fmt: skip
    # Equal JSON in other bytes counts as well: a flipped bit turns 1e-05 into 1E-05.
    fine = {"source": "eager", "tolerances": [1e-05]}
    data = resealed(work, golden=fine)[layout.MANIFEST]
    same = [
        data + b" ",
        data.strip(),
        data.replace(b"\n ", b"\n\t"),
        data.replace(b"e-05", b"E-05"),
    ]
    assert all(json.loads(other) == json.loads(data) and other != data for other in same)
    manifests = [*MANIFESTS.values(), *same]
    for changes in wrong:
        manifests.append(resealed(work, **changes)[layout.MANIFEST])
        write_manifest(work, good)
    faults = [{layout.MANIFEST: base64.b64encode(data).decode()} for data in manifests]
    check_refused(faults, pair[0], spy, tmp_path)
