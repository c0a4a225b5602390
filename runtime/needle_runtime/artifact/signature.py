"""Ed25519 signatures (RFC 8032), with keys in PEM files as OpenSSL reads and writes them.

The package `cryptography` computes and checks signatures; it is imported only when it is needed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from needle_runtime.artifact.files import read_at_most, regular_size
from needle_runtime.errors import InstallError, KeyFileError
from needle_runtime.process.paths import StrPath, as_path

LENGTH = 64  # bytes of a signature
_LARGEST_KEY = 1 << 16  # bytes of a PEM file


def generate(path: StrPath) -> Path:
    """Write a new private key to `path`, readable only by its owner, and the public key beside it.

    Returns the public key's path: `path` with ".pub" appended. Raises KeyFileError if one of the
    files exists already or cannot be written, and InstallError without `cryptography`.
    """
    from needle_runtime.process import atomic  # imported here, because readers do not need it

    serialization, ed25519, _ = _cryptography()
    private = as_path(path, "path", KeyFileError)
    public = Path(f"{private}.pub")
    key = ed25519.Ed25519PrivateKey.generate()
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shared = key.public_key().public_bytes(
        encoding, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for file in (private, public):
        if os.path.lexists(file):
            raise KeyFileError(f"{file}: exists; a key is never overwritten")
    try:
        for file, data, mode in ((private, secret, 0o600), (public, shared, 0o644)):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(data)
            atomic.sync(file)
        atomic.sync(private.absolute().parent)
    except OSError as error:
        raise KeyFileError(f"{file}: cannot be written ({error.strerror})") from error
    return public


def sign(data: bytes, private_key: StrPath) -> bytes:
    """Sign `data` with the `private_key` in a PEM file; return the signature of 64 bytes.

    Raises KeyFileError if the file has no unencrypted Ed25519 private key, and InstallError without
    `cryptography`.
    """
    serialization, ed25519, _ = _cryptography()
    pem = _read(private_key)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError:  # raised if a password is needed
        raise KeyFileError(
            f"{private_key}: is encrypted; a key without a password is needed"
        ) from None
    except Exception as error:  # ValueError, or one of the package's own classes
        raise KeyFileError(f"{private_key}: is not a private key in PEM form") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise KeyFileError(f"{private_key}: is not an Ed25519 key")
    return bytes(key.sign(data))


def is_signed_by(data: bytes, signature: bytes, public_key: StrPath) -> bool:
    """Return whether the owner of the `public_key` in a PEM file signed `data` with `signature`.

    Raises KeyFileError if the file has no Ed25519 public key, and InstallError without
    `cryptography`.
    """
    serialization, ed25519, invalid_signature = _cryptography()
    pem = _read(public_key)
    if b"PRIVATE KEY" in pem:
        raise KeyFileError(f"{public_key}: is a private key; the public one is needed")
    try:
        key = serialization.load_pem_public_key(pem)
    except Exception as error:  # ValueError, or one of the package's own classes
        raise KeyFileError(f"{public_key}: is not a public key in PEM form") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise KeyFileError(f"{public_key}: is not an Ed25519 key")
    try:
        key.verify(signature, data)
    except invalid_signature:
        return False
    return True


def _read(path: StrPath) -> bytes:
    file_path = as_path(path, "key", KeyFileError)
    try:
        regular_size(file_path)
        data = read_at_most(file_path, _LARGEST_KEY)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(data) > _LARGEST_KEY:
        raise KeyFileError(f"{path}: is too long for a key (more than {_LARGEST_KEY} bytes)")
    return data


def _cryptography() -> tuple[Any, Any, type[Exception]]:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise InstallError(
            f"signatures need the package cryptography ({error}): "
            "pip install 'needle-runtime[sign]'"
        ) from None
    return serialization, ed25519, InvalidSignature
