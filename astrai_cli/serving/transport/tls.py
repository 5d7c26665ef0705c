"""The certificate that the server shows: read, and checked, before a model is loaded."""

from __future__ import annotations

import ssl
from pathlib import Path

from astrai_cli.errors import InvalidInputError


def server_context(certfile: Path | None, keyfile: Path | None) -> ssl.SSLContext | None:
    """What makes connections of TLS 1.2 or newer; None without a certificate: plain HTTP.

    keyfile: None where the key is in `certfile`. Raises InvalidInputError for files that
    cannot be read, do not hold what they should or do not belong together.
    """
    if certfile is None:
        if keyfile is not None:
            raise InvalidInputError("tls_keyfile needs tls_certfile", param="tls_keyfile")
        return None
    for name, file in (("tls_certfile", certfile), ("tls_keyfile", keyfile)):
        if file is not None:
            _check_readable(name, file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certfile, keyfile, password=_no_password)
    except ssl.SSLError as error:
        reason = (error.reason or "").lower().replace("_", " ") or _lack(certfile, keyfile)
        files = " and ".join(str(file) for file in (certfile, keyfile) if file is not None)
        raise InvalidInputError(f"{files}: {reason}", param="tls_certfile") from error
    return context


def _check_readable(name: str, file: Path) -> None:
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise InvalidInputError(f"{file}: {error.strerror}", param=name) from error


def _lack(certfile: Path, keyfile: Path | None) -> str:
    """What OpenSSL has no reason for: a file that is no PEM, or lacks one of the two."""
    if keyfile is None and b"-----BEGIN CERTIFICATE-----" in certfile.read_bytes():
        return "a certificate without its private key; name the key's file with --tls-keyfile"
    return "no certificate and key in PEM"


def _no_password() -> str:
    """Instead of OpenSSL's own question on the terminal."""
    raise InvalidInputError(
        "the private key is encrypted; give one that is not, readable by its owner alone",
        param="tls_keyfile",
    )
