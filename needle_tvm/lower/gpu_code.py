"""Puts GPU machine code into libraries when they are built.

TVM 0.27 exports GPU kernels as CUDA source, and compiles them when the library is loaded, by
`tvm_callback_cuda_compile`, which is part of TVM's compiler. TVM's runtime also accepts machine
code in place of the source, and this module inserts it. A library's symbol
`__tvm_ffi__library_bin` holds the bytes of its modules. The bytes of a CUDA module are its format,
its kernels' parameters and its code (`CUDAModuleNode::SaveToBytes`). A string is stored as its
64-bit little-endian length, followed by its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from needle_tvm._tvm.names import tvm
from needle_tvm.lower import linking
from needle_tvm.lower.split_module import on_cores

_SYMBOL = "__tvm_ffi__library_bin"
_KIND, _SOURCE, _MACHINE_CODE = b"cuda", b"cuda", b"cubin"

# TVM emits CUDA's approximations (as with --use_fast_math) of these float32 functions: __logf has
# no correct digit near 1, and __expf loses one digit for every 10 by which its argument grows.
_APPROXIMATE = re.compile(r"\b__((?:exp|exp10|log|log2|log10|pow|sin|cos|tan)f)\(")


def module_of_library(library: Any) -> Any:
    """Return a built module without its wrapper, which would compile the whole module if asked for
    a function."""
    return library.mod if isinstance(library, tvm.runtime.Executable) else library


def device_source(library: Any) -> str:
    """Return the CUDA source of a built module's kernels, or "" if it has no kernels."""
    return "\n".join(_source(module) for module in _cuda_modules(module_of_library(library)))


def export_library(
    library: Any,
    path: Path,
    compile_cuda: Callable[[str], bytes],
    objects: Sequence[Path] = (),
    *,
    machine: str = "",
) -> None:
    """Link a built module into a shared library, with machine code for its GPU kernels, if any.

    `compile_cuda` compiles CUDA source to a cubin; it is not called if there are no kernels.
    `objects` are object files to link in. `machine` is the triple of another machine to link for.
    Temporary files are written beside `path` under its name with other suffixes, so that searches
    can build several libraries in a folder at once. Raises ToolchainError if the linker fails, and
    OSError if a file cannot be written.
    """
    module = module_of_library(library)
    sources = [(_raw_source(each), _source(each)) for each in _cuda_modules(module)]
    codes = [(raw, compile_cuda(source)) for raw, source in sources]
    parts = linking.compiled_parts(module)
    files = [path.with_suffix(f".{i}.o") for i, _ in enumerate(parts)]
    assembly, binary = path.with_suffix(".s"), path.with_suffix(".bin")
    try:
        machine_codes = on_cores(
            lambda each: linking.object_code(*each), zip(parts, files, strict=True)
        )
        for file, machine_code in zip(files, machine_codes, strict=True):
            file.write_bytes(machine_code)
        if module.imports:
            _write_imports(module, codes, assembly, binary)
            files.append(assembly)
        linking.link([*objects, *files], path, machine=machine)
    finally:
        for file in (*files, assembly, binary):
            file.unlink(missing_ok=True)


def _write_imports(
    module: Any, codes: Sequence[tuple[bytes, bytes]], assembly: Path, binary: Path
) -> None:
    """Write the part of a library that is not host machine code, such as a virtual machine's
    program. For each pair (source, code) in `codes`, GPU machine code replaces its source."""
    image = _packed(module, False, "")
    for raw, code in codes:
        image = with_code(image, raw, code)
    binary.write_bytes(image)
    assembly.write_text(
        f".section .rodata\n.globl {_SYMBOL}\n.balign 16\n{_SYMBOL}:\n"
        f'.incbin "{binary}"\n.section .note.GNU-stack,"",%progbits\n'
    )


def with_code(image: bytes, source: bytes, code: bytes) -> bytes:
    """Return a library's bytes with a CUDA module's machine code in place of its source.

    Raises ValueError if the bytes do not have the format in the module docstring.
    """
    total, body = int.from_bytes(image[:8], "little"), image[8:]
    end_of_source = _string(source)
    place = body.find(end_of_source)
    if total != len(body) or place < 0 or body.find(end_of_source, place + 1) >= 0:
        raise ValueError("a CUDA module's source is not where TVM 0.27 puts it")
    end = place + len(end_of_source)
    head = _string(_KIND)
    start = body.rfind(head, 0, place)
    while start >= 0:
        first = start + len(head) + 8  # the module's first byte, after the length
        length = int.from_bytes(body[start + len(head) : first], "little")
        if first + length == end and body.startswith(_string(_SOURCE), first):
            break
        start = body.rfind(head, 0, start)
    else:
        raise ValueError("a CUDA module does not begin as TVM 0.27 writes it")
    parameters = body[first + len(_string(_SOURCE)) : place]
    changed = _string(_MACHINE_CODE) + parameters + _string(code)
    body = body[: start + len(head)] + _string(changed) + body[end:]
    return len(body).to_bytes(8, "little") + body


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def _packed(module: Any, is_system_library: bool, prefix: str) -> bytes:
    """Return the bytes of the library's symbol, which TVM writes as a C array."""
    text = str(tvm.runtime._ffi_api.ModulePackImportsToC(module, is_system_library, prefix))
    array = text[text.index("= {") + 3 : text.rindex("};")]
    return bytes(int(each, 16) for each in re.findall(r"0x[0-9a-f]{2}", array))


def _cuda_modules(module: Any) -> Iterator[Any]:
    for each in module.imports:
        if each.kind == "cuda":
            yield each
        yield from _cuda_modules(each)


def _raw_source(module: Any) -> bytes:
    return str(module.inspect_source()).encode()


def _source(module: Any) -> str:
    return _APPROXIMATE.sub(r"\1(", str(module.inspect_source()))
