"""The zip archives that torch writes: a certificate beside their records, readable without running anything."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from pathlib import Path

from coattend.export.certificate import Certificate
from coattend.export.measurement import CertificateCheck, digest_claim

RECORD = "extra/certificate.json"  # where torch.export.load looks for extra files
MOST_BYTES = 2**20  # of a certificate
NOTE = "only compared, not run: loading the file with torch can run code in it"


def archive_digest(content: bytes) -> str:
    """Return the SHA-256 of names and bytes of all records but the certificate, in the order of the names."""
    total = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith(f"/{RECORD}"):
                total.update(f"{name} {archive.getinfo(name).file_size}\n".encode())
                with archive.open(name) as record:
                    while part := record.read(2**20):
                        total.update(part)
    return total.hexdigest()


def certified_archive(content: bytes, certificate: Certificate) -> bytes:
    """Return the archive with the certificate as one more record."""
    whole = io.BytesIO(content)
    with zipfile.ZipFile(whole, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{RECORD}", certificate.to_json())
    return whole.getvalue()


def check_archive(path: Path) -> CertificateCheck:
    """Compare a .pt2 or .pt file with its certificate; it is not run, because torch can run code in it."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}; expected a {path.suffix} file written by `coattend export`.")
    content = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            records = [info for info in archive.infolist() if info.filename.endswith(f"/{RECORD}")]
            text = archive.open(records[0]).read(MOST_BYTES).decode() if records else ""
        digest = archive_digest(content)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a whole {path.suffix} file ({error}); copy or export it again.") from error
    if not records:
        raise ValueError(
            f"{path} has no certificate that can be read without loading the file, which can run code; expected a file "
            "written by `coattend export`. A .pt file of an earlier version has to be exported again."
        )
    certificate = Certificate.from_json(text, str(path))
    if certificate.format == 1:
        raise ValueError(
            f"{path} has an older certificate, about its weights only, which cannot be checked without loading the "
            "file; export the network again."
        )
    return CertificateCheck(path, certificate, (digest_claim(certificate, digest),), NOTE)
