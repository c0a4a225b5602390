"""The cache of compiled models on disk. This module imports neither needle nor TVM.

An entry is an artifact without weights, named by the SHA-256 of everything that determines the
compiler's output. So a changed model, target or version gets another entry, and a stale entry is
never used.

The code in entries is executed. So the cache's folder and everything in it are created for their
owner only, and used only if nobody but this user and root could have written them. `checked`
enforces this for an entry, and `check` for the record store, before either is read.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pwd
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from needle_runtime.artifact import replacing
from needle_runtime.artifact.artifact import Artifact
from needle_runtime.artifact.layout import MANIFEST
from needle_runtime.errors import ArtifactError, InstallError, UsageError
from needle_runtime.process import atomic
from needle_runtime.process.scratch import lasting_folder
from needle_runtime.target.precision import FLOAT32
from needle_tvm._tvm import versions
from needle_tvm.errors import CacheWarning

CACHE_VARIABLE = "NEEDLE_CACHE_DIR"
ARTIFACTS, RECORDS = "artifacts", "records"

_PRIVATE = 0o700
_OTHERS, _OTHERS_WRITE = 0o077, 0o022  # bits of a mode
_OURS = re.compile(rf"{ARTIFACTS}|\.?{RECORDS}(\..*)?", re.DOTALL)  # names in the cache's folder
_SYSTEMS = ("/tmp", "/var/tmp", "/dev/shm")  # folders shared by all users


def root() -> Path:
    """Return the cache's folder: `NEEDLE_CACHE_DIR`, or the user's cache folder.

    Raises UsageError if the variable does not name a folder or the user has no cache folder, and
    InstallError if the package platformdirs, which finds that folder, is missing.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        try:
            return Path(chosen).expanduser().absolute()
        except (RuntimeError, OSError) as error:  # no such user, no current folder
            raise UsageError(f"{CACHE_VARIABLE}={chosen!r}: names no folder ({error})") from None
    try:
        import platformdirs
    except ImportError as error:
        raise InstallError(
            f"finding the user's cache folder needs the package platformdirs ({error}): "
            f"pip install platformdirs, or set {CACHE_VARIABLE}"
        ) from None
    found = Path(platformdirs.user_cache_dir("needle", appauthor=False))
    if not found.is_absolute():  # "~" cannot be expanded
        raise UsageError(f"this user has no home folder: set {CACHE_VARIABLE} to a folder")
    return found


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
    """Return the key of one compiled stage, as JSON values.

    `graph` is `needle.trace.Graph.fingerprint()`, or `lower.build.digest` for a graph with ops
    defined outside needle. `target` and `stage` are the compilation's. `search` is
    `tune.options.Options.cache_key()`, `disable` names the passes and rules left out, `products` is
    `lower.variant.Choice.key`, and `precision` is the precision that operands of matmuls are
    rounded to.
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
    """Return the folder of the artifact with this `key`, whether it exists or not."""
    digest = _digest(key)
    return root() / ARTIFACTS / digest[:2] / digest


def _digest(key: Any) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


@contextmanager
def writing(entry: Path) -> Iterator[Path]:
    """Yield a new folder for an `entry`, like `replacing.writing`, readable only by its owner.

    Removes remnants of killed processes in the cache, and anything in the entry's place that is not
    an artifact. Raises ArtifactError if the entry cannot be written (its `__cause__` is an OSError)
    or if its folders belong to others (without a cause).
    """
    try:
        _remove_unless_folder(entry.parent)
        make_private(entry.parent)
        _remove_unless_whole(entry)
        for folder in (root() / ARTIFACTS).iterdir():
            atomic.remove_abandoned(folder)
    except OSError as error:
        raise ArtifactError(f"{entry}: cannot be written ({error})") from error
    with replacing.writing(entry, private=True) as folder:
        yield folder


def write(entry: Path, fill: Callable[[Path], None]) -> Path:
    """Have `fill` fill the folder of an `entry`; return the folder.

    If the cache cannot be written or is full, the folder is a temporary one that lasts as long as
    the process, and a warning says so once. Raises the errors of `fill`, and ArtifactError if no
    folder can be written or the entry's folders belong to others.
    """
    try:
        with writing(entry) as folder:
            fill(folder)
        return entry
    except ArtifactError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        if root() not in _unwritable:
            _unwritable.add(root())
            warnings.warn(
                f"{root()}: the cache cannot be written, so models are compiled again in each "
                f"process ({error.__cause__})",
                CacheWarning,
                stacklevel=2,
            )
    place = lasting_folder() / entry.name
    with replacing.writing(place, private=True) as folder:
        fill(folder)
    return place


_unwritable: set[Path] = set()  # folders that a warning has already named


def _remove_unless_folder(path: Path) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()


def _remove_unless_whole(entry: Path) -> None:
    """Remove the file or folder in an entry's place, unless it may be an artifact to replace."""
    _remove_unless_folder(entry)
    try:
        if not stat.S_ISREG((entry / MANIFEST).lstat().st_mode):
            shutil.rmtree(entry)
    except FileNotFoundError:
        if entry.is_dir():
            shutil.rmtree(entry)


def checked(entry: Path) -> Artifact:
    """Return the artifact of an `entry`, or of a folder returned by `write`, after checking that it
    is safe to use.

    Raises ArtifactError as `check` and `Artifact.open` do, and if the entry's name does not match
    its key.
    """
    if holds(entry):
        check(entry)
    elif entry.parent != lasting_folder():
        raise ArtifactError(f"{entry}: is not in the cache")
    found = Artifact.open(entry)
    if _digest(found.manifest.get("key")) != entry.name:
        raise ArtifactError(f"{entry}: is the entry of another key")
    return found


def holds(path: Path) -> bool:
    """Return whether `path` lies in the cache's folder."""
    try:
        return path.absolute().is_relative_to(root().absolute())
    except (InstallError, UsageError, OSError):  # there is no such folder
        return False


def check(place: Path) -> None:
    """Raise ArtifactError unless only this user and root can have written the folder `place`.

    The check covers the cache's own folder, every folder below it down to `place`, and the files in
    `place`: a user who may write a folder may replace its files. Folders above the cache are the
    user's choice and are not checked: a user who puts another folder in the cache's place owns that
    folder, which the check detects.
    """
    found = _way(place)
    try:
        for path in found:
            _check_one(path, path.stat() if path == found[0] else path.lstat())
        for path in place.iterdir():
            _check_one(path, path.lstat())
    except OSError as error:
        raise ArtifactError(f"{place}: cannot be read ({error})") from None


def make_private(place: Path) -> None:
    """Create the cache's folders down to `place`, accessible only to their owner.

    Existing folders of this user are made private. Raises ArtifactError if a folder belongs to
    another user, or if the cache's own folder is open to others and also holds other files. Raises
    OSError if a folder cannot be created.
    """
    found = _way(place)
    found[0].parent.mkdir(parents=True, exist_ok=True)
    for path in found:
        try:
            path.mkdir(_PRIVATE)
            path.chmod(_PRIVATE)  # independent of the umask
        except FileExistsError:
            is_root = path == found[0]
            status = path.stat() if is_root else path.lstat()
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if ours and status.st_mode & (_OTHERS_WRITE if is_root else _OTHERS):
                if not is_root or _holds_the_cache_alone(path):
                    path.chmod(_PRIVATE)
                    status = path.stat()
            _check_one(path, status)


def _way(place: Path) -> list[Path]:
    """Return the cache's folder and the folders below it, down to `place`."""
    top = root().absolute()
    names = place.absolute().relative_to(top).parts
    return list(itertools.accumulate(names, Path.joinpath, initial=top))


def _holds_the_cache_alone(folder: Path) -> bool:
    names = [path.name for path in folder.iterdir()]
    return str(folder.resolve()) not in _SYSTEMS and all(map(_OURS.fullmatch, names))


def _check_one(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        why = "is a link"
    elif status.st_uid not in (os.geteuid(), 0):
        why = f"belongs to {_user(status.st_uid)}"
    elif status.st_mode & _OTHERS_WRITE:
        why = f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    else:
        return
    raise ArtifactError(
        f"{path}: {why}; only you and root may be able to write the cache ({CACHE_VARIABLE})"
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
