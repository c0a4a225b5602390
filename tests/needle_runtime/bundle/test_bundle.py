"""A bundle has every library but libc, its programs need nothing else, and its bytes are those of
the artifact."""

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import needle_tvm
from needle_runtime.__main__ import main
from needle_runtime.bundle import elf
from needle_runtime.bundle.libraries import Libraries, is_libc, prefix
from needle_runtime.bundle.making import bundle
from needle_runtime.errors import ArtifactError, SignatureError, TargetError, UsageError
from needle_tvm.__main__ import main as compiler_main
from tests.needle_runtime.bundle.conftest import EPOCHS, build_examples, checked, right_of
from tests.needle_tvm.conftest import make_mlp, tensor

HERE = platform.machine()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    needle_tvm.compile(make_mlp(8, 4), tensor(np.ones((2, 8), np.float32))).export(folder / "mlp")
    return folder / "mlp"


@pytest.fixture(scope="module")
def made(exported, tmp_path_factory):
    return bundle(exported, tmp_path_factory.mktemp("made") / "bundle")


def contents(folder):
    return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def test_the_model_is_copied_byte_for_byte(exported, made):
    assert contents(made.path / "model") == contents(exported)


def test_every_library_that_is_needed_is_libc_or_in_the_bundle(made):
    libraries = [*(made.path / "lib").glob("*.so*"), made.path / "model" / "lib.so"]
    inside = {file.name for file in libraries}
    for file in libraries:
        needs = elf.read(file.read_bytes())
        assert needs.machine == HERE
        assert [name for name in needs.needed if not is_libc(name) and name not in inside] == []
        assert made.glibc[file.relative_to(made.path).as_posix()] == needs.glibc
    assert {"libneedle_runtime.so", "libtvm_runtime.so", "libstdc++.so.6"} < inside


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_the_needs_are_those_that_readelf_prints(made):
    for file in (made.path / "lib").glob("*.so*"):
        text = checked(["readelf", "-W", "-d", "-V", file])
        needs = elf.read(file.read_bytes())
        lines = [line for line in text.splitlines() if "(NEEDED)" in line]
        assert [line.split("[")[1].rstrip("]") for line in lines] == list(needs.needed)
        printed = {word for word in text.split() if word.startswith("GLIBC_2.")}
        wanted = {name for names in needs.versions.values() for name in names}
        assert printed == {name for name in wanted if name.startswith("GLIBC_2.")}


def test_the_record_has_every_file(made):
    record = json.loads((made.path / "bundle.json").read_text())
    found = {
        file.relative_to(made.path).as_posix(): file.stat().st_size
        for file in made.path.rglob("*")
        if file.is_file() and file.name != "bundle.json"
    }
    assert {name: facts["size"] for name, facts in record["files"].items()} == found == made.files
    assert record["glibc"] == ".".join(map(str, made.least_glibc[1]))
    rows = (made.path / "licenses" / "README.txt").read_text()
    assert all(name.split("/")[1] in rows for name in made.glibc if name.startswith("lib/"))


def test_the_same_artifact_makes_the_same_bundle(exported, made, tmp_path):
    again = bundle(exported, tmp_path / "again")
    assert (again.path / "bundle.json").read_bytes() == (made.path / "bundle.json").read_bytes()


@pytest.mark.parametrize("run", [main, compiler_main], ids=["needle_runtime", "needle_tvm"])
def test_the_command_prints_sizes_and_what_is_needed(run, exported, tmp_path, capsys):
    assert run(["bundle", str(exported), str(tmp_path / "b")]) == 0
    text = capsys.readouterr().out
    assert "lib/libneedle_runtime.so" in text and "needs" in text and f"Linux on {HERE}" in text
    assert run(["bundle", str(exported), str(tmp_path / "b"), "--json"]) == 0  # again
    facts = json.loads(capsys.readouterr().out)
    assert facts["size"] == sum(facts["files"].values()) and facts["machine"] == HERE


def test_prefix_is_the_folder_of_the_interface(capsys):
    assert main(["prefix"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder == prefix() and (folder / "include" / "needle_runtime.h").is_file()


def test_what_is_no_bundle_stays(exported, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path, tmp_path / "file", exported):
        with pytest.raises(ArtifactError, match="exists and is not a bundle"):
            bundle(exported, out)
    assert (tmp_path / "file").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UsageError, match="cannot be in the folder of its artifact"):
        bundle(exported, exported / "b")
    (tmp_path / "empty").mkdir()
    bundle(exported, tmp_path / "empty")


def test_a_damaged_artifact_is_refused_and_the_old_bundle_stays(exported, tmp_path):
    copied = shutil.copytree(exported, tmp_path / "copy")
    made = bundle(copied, tmp_path / "b")
    library = copied / "lib.so"
    library.write_bytes(library.read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactError, match=r"lib.so: is damaged"):
        bundle(copied, made.path)
    assert contents(made.path / "model") == contents(exported)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "copy"]


def test_signatures_are_checked_and_kept(exported, tmp_path):
    pytest.importorskip("cryptography")
    for name in ("mine", "theirs"):
        assert main(["keygen", str(tmp_path / name)]) == 0
    signed = shutil.copytree(exported, tmp_path / "signed")
    assert main(["sign", str(signed), "--key", str(tmp_path / "mine")]) == 0
    with pytest.raises(SignatureError, match="signed"):
        bundle(signed, tmp_path / "b", require_signature=tmp_path / "theirs.pub")
    assert not (tmp_path / "b").exists()
    made = bundle(signed, tmp_path / "b", require_signature=tmp_path / "mine.pub")
    assert (made.path / "model" / "manifest.sig").is_file()
    sodium = [name for name in made.files if "sodium.so" in name]
    assert made.signed and bool(sodium) == made.sodium


def test_code_for_gpus_is_refused(exported, tmp_path):
    from needle_runtime.artifact.manifest import read_manifest, write_manifest

    copied = shutil.copytree(exported, tmp_path / "copy")
    gpu = {"kind": "cuda", "arch": "sm_90"}
    write_manifest(copied, {**read_manifest(copied), "target": gpu})
    with pytest.raises(TargetError, match="compiled for a GPU; the C interface"):
        bundle(copied, tmp_path / "b")


def test_a_folder_without_a_runtime_is_named(exported, made, tmp_path):
    with pytest.raises(TargetError, match=r"libneedle_runtime.so for .*, which the bundle needs"):
        bundle(exported, tmp_path / "b", runtime=tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libneedle_runtime.so").write_bytes(b"\x7fELF but no more")
    with pytest.raises(TargetError, match="cannot be read as a library"):
        bundle(exported, tmp_path / "b", runtime=tmp_path)
    shutil.copy(made.path / "lib" / "libneedle_runtime.so", tmp_path / "lib")
    with pytest.raises(TargetError, match=r"libtvm_runtime.so for .*, which the bundle needs"):
        bundle(exported, tmp_path / "b", runtime=tmp_path)


def test_a_bundle_serves_as_runtime_of_another_model(exported, made, tmp_path):
    other = bundle(exported, tmp_path / "b", runtime=made.path)
    assert other.files == made.files


def test_a_library_that_lacks_a_version_is_named(made):
    libraries = Libraries(HERE, None)
    wants = elf.Elf(
        HERE, ("libstdc++.so.6",), {"libstdc++.so.6": frozenset({"GLIBCXX_9.9"})}, frozenset()
    )
    with pytest.raises(TargetError, match=r"has no GLIBCXX_9.9, which app needs: it is too old"):
        libraries.needed([("app", wants)])


def test_another_architecture_needs_a_runtime_of_it(exported, monkeypatch, tmp_path):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(TargetError, match="give --runtime FOLDER, a folder with libneedle") as told:
        bundle(exported, tmp_path / "b")
    assert "\n" not in str(told.value) and HERE in str(told.value)


@pytest.mark.parametrize("cut", [6, 30, 64, 200, 1000])
def test_a_cut_library_is_an_error(exported, cut):
    with pytest.raises(ValueError, match="ELF"):
        elf.read((exported / "lib.so").read_bytes()[:cut])
    with pytest.raises(ValueError, match="not a 64-bit"):
        elf.read(b"MZ" * 100)


VERSION = """
#include <needle_runtime.h>
#include <stdio.h>
int main(void) { puts(needle_version()); }
"""


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_pkg_config_and_the_compiler_find_the_bundle(made, tmp_path):
    moved = shutil.copytree(made.path, tmp_path / "elsewhere")
    source = tmp_path / "version.c"
    source.write_text(VERSION)
    env = {**os.environ, "PKG_CONFIG_PATH": str(moved / "lib" / "pkgconfig")}
    flags = checked(["pkg-config", "--cflags", "--libs", "needle_runtime"], env=env).split()
    checked(["cc", source, *flags, "-o", tmp_path / "version"])
    assert checked([tmp_path / "version"]).strip()


can_chroot = os.geteuid() == 0 and shutil.which("chroot") is not None


@pytest.mark.slow
@pytest.mark.skipif(not can_chroot, reason="chroot needs root")
def test_programs_infer_and_train_in_a_root_with_libc_alone(digits, tmp_path):
    root = bare_root(tmp_path / "root")
    for name in ("model", "step"):
        bundle(digits.folder / f"here-{name}", root / name)
    built = build_examples(root / "model", tmp_path / "build")
    for name in ("infer_c", "infer_cpp", "train"):
        shutil.copy(built / name, root)
    shutil.copytree(digits.data, root / "data")

    def run(*command):
        return checked(in_root(root, *command))

    for program in ("/infer_c", "/infer_cpp"):
        assert right_of(run(program, "/model/model", "/data")) == digits.right[0]
    trained = run("/train", "/step/model", "/model/model", "/data", str(EPOCHS), "/state")
    assert abs(right_of(trained) - digits.right[1]) <= 0.01 * digits.count
    assert (root / "state").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.skipif(not can_chroot, reason="chroot needs root")
def test_a_signature_is_checked_in_a_root_with_libc_alone(exported, tmp_path):
    """By the bundle's libsodium."""
    pytest.importorskip("cryptography")
    root = bare_root(tmp_path / "root")
    for name in ("mine", "theirs"):
        assert main(["keygen", str(root / name)]) == 0
    signed = shutil.copytree(exported, tmp_path / "signed")
    assert main(["sign", str(signed), "--key", str(root / "mine")]) == 0
    made = bundle(signed, root / "model")
    if not made.sodium:
        pytest.skip("no libsodium here")
    (tmp_path / "open.c").write_text(OPEN)
    flags = [f"-I{made.path}/include", f"-L{made.path}/lib", "-lneedle_runtime"]
    checked(["cc", tmp_path / "open.c", *flags, "-o", root / "open"])
    assert checked(in_root(root, "/open", "/model/model", "/mine.pub")) == "opened\n"
    command = list(map(str, in_root(root, "/open", "/model/model", "/theirs.pub")))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "is not what the owner of /theirs.pub signed" in done.stdout


OPEN = """
#include <needle_runtime.h>
#include <stdio.h>
int main(int argc, char** argv) {
  needle_options options = {sizeof options, argv[argc - 1], 0};
  needle_program* program = NULL;
  int failed = needle_open(argv[1], &options, &program) != NEEDLE_OK;
  puts(failed ? needle_error() : "opened");
  needle_close(program);
  return failed;
}
"""


def bare_root(folder):
    """A root with glibc and a folder /tmp: no /proc, no /dev, no shell."""
    (folder / "tmp").mkdir(parents=True)
    for library in glibc():
        place = folder / library.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    return folder


def in_root(root, *command):
    """A command that runs in a root, with the libraries of the bundle /model."""
    return ["env", "LD_LIBRARY_PATH=/model/lib", "chroot", root, *command]


def glibc():
    """The files of glibc that a program of this machine loads."""
    names = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listed.splitlines():
        if ("=>" in line and "x86-64" in line) or "AArch64" in line:
            found.setdefault(line.split()[0], Path(line.split("=> ")[1]))
    loader = next(Path("/").glob("lib64/ld-linux-*.so.*"), None) or next(
        Path("/").glob("lib/ld-linux-*.so.*")
    )
    return [loader, *(found[name] for name in names if name in found)]
