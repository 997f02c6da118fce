"""Objects of Amazon S3 and Google Cloud Storage through fsspec: reads, atomic writes, and errors of one line.

A store replaces single objects atomically, but has no folders. So an export's marker, which lists its files' digests, is
written before the files, and readers refuse an export whose files do not match.
"""

import contextlib
import errno
import fnmatch
import glob
import hashlib
import json
import logging
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.core import InputError, TemporaryError, error_line
from jaxdistill.files import file_digest, make_folder_atomic
from jaxdistill.files.folders import MARK, listed

STORES = {
    "s3": ("s3fs", "`aws configure` or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "gs": ("gcsfs", "`gcloud auth application-default login`"),
}
"""Maps schemes of addresses to the package that fsspec needs, and how to sign in."""

log = logging.getLogger(__name__)


class MissingObject(InputError):
    """An object or a bucket does not exist."""


class Bucket:
    """The objects under an address, named relative to it; the empty name is the object at the address itself."""

    def __init__(self, address: str | Path):
        """Connects; raises `InputError` if the address cannot be used or the package for its scheme is missing."""
        self.address = checked_address(str(address))
        self.scheme, _, self._root = self.address.partition("://")
        self.name = posixpath.basename(self._root)
        with store_errors(self.address):
            import fsspec  # imported here: only addresses need it

            self._files: Any = fsspec.filesystem(self.scheme, use_listings_cache=False)

    def versions(self) -> dict[str, str]:
        """Maps the names of all objects below the address to a version, which changes when an object is replaced."""
        with store_errors(self.address):
            entries = self._files.find(self._root, detail=True)
        inside = {path[len(self._root) + 1 :]: str(info) for path, info in sorted(entries.items())}
        return {safe_name(name): version for name, version in inside.items() if name and not name.endswith("/")}

    def matching(self) -> dict[str, str]:
        """Maps the addresses of the objects that the address, possibly a glob, names to their versions."""
        with store_errors(self.address):
            magic = glob.has_magic(self._root)
            entries = self._files.glob(self._root, detail=True) if magic else {self._root: self._files.info(self._root)}
        files = {path: info for path, info in sorted(entries.items()) if info["type"] == "file"}
        return {f"{self.scheme}://{path}": str(info) for path, info in files.items()}

    def read(self, name: str) -> bytes | None:
        """Content of an object; None if it does not exist."""
        with contextlib.suppress(MissingObject), store_errors(self._at(name)):
            return self._files.cat_file(self._at(name))

    def upload(self, path: Path, name: str) -> None:
        """Writes a local file to an object."""
        with store_errors(self._at(name)):
            self._files.put_file(str(path), self._at(name))

    def download(self, name: str, path: Path) -> None:
        """Downloads an object to a local file, creating its folder; not atomic."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with store_errors(self._at(name)):
            self._files.get_file(self._at(name), str(path))

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; ignores missing ones."""
        for name in names:
            with store_errors(self._at(name)), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self.address}/{name}" if name else self.address


@contextlib.contextmanager
def store_errors(address: str) -> Iterator[None]:
    """Turns a store's errors into `InputError`, or into `TemporaryError` if it does not answer."""
    scheme = address.partition(":")[0]
    try:
        yield
    except ImportError:
        package, _ = STORES[scheme]
        raise InputError(f"{address} needs the package {package}; run: pip install {package}") from None
    except Exception as error:  # each store's client has exceptions of its own
        local = isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT))
        if local or isinstance(error, (InputError, FileExistsError)):
            raise
        public = re.sub(r"[?][^ ]*", "", error_line(error))  # signatures are in queries
        line, status = f"{type(error).__name__}: {public}"[:200].rstrip("."), str(getattr(error, "code", ""))
        if isinstance(error, FileNotFoundError) or status == "404":
            raise MissingObject(f"{address} does not exist; check the bucket and the path.") from error
        refused = isinstance(error, PermissionError) or str(error).startswith("Forbidden") or status in ("401", "403")
        if refused or "Credentials" in type(error).__name__:
            raise InputError(f"{address} is not accessible ({line}); sign in with {STORES[scheme][1]}.") from error
        if getattr(error, "errno", None) == errno.EINVAL:
            raise InputError(f"{address} cannot be used ({line}); check the address.") from error
        raise TemporaryError(f"{address} cannot be reached ({line}); give the same command again.") from error


def checked_address(address: str) -> str:
    """The address in its plain form; raises `InputError` for an invalid one, without printing what may be a secret."""
    scheme, _, rest = address.partition(":")
    bucket, _, path = rest.strip("/").partition("/")
    if scheme not in STORES:
        raise InputError(f"{scheme}: is not a supported address; use {' or '.join(f'{one}://' for one in STORES)}.")
    if "@" in bucket or re.search(r"[?&][\w-]+=", address):
        raise InputError(f"the {scheme}:// address holds a key or a signature; give the plain address, and sign in.")
    safe_name(path)
    if not bucket:
        raise InputError(f"{address} names no bucket; give {scheme}://BUCKET/PATH.")
    return f"{scheme}://{bucket}/{path}".rstrip("/")


def safe_name(name: str) -> str:
    """Returns the name; raises `InputError` if it would lead out of a local folder."""
    if name.startswith("/") or "\0" in name or {"..", "."} & set(name.split("/")):
        raise InputError(f"{name!r} is the name of an object that no local file can have; rename the object.")
    return name


def fetched_files(address: str | Path, cache: Path) -> list[Path]:
    """Local copies of the objects that an address or a glob names, sorted; empty if a glob matches none.

    Each version of an object is downloaded once, to a folder in `cache`. Raises `InputError` if there is no such object.
    """
    bucket = Bucket(address)
    versions = bucket.matching()
    if not versions and not glob.has_magic(bucket.address):
        raise InputError(f"{bucket.address} is a folder; name an object, or a glob such as {bucket.address}/*.txt.gz.")
    return [_fetched(Bucket(one), {"": version}, cache, {}) for one, version in versions.items()]


def fetched_folder(address: str | Path, cache: Path, patterns: Sequence[str]) -> Path:
    """A local copy of the objects under an address whose names match one of the patterns; for an export, of the files that
    its marker lists. Raises `InputError` if there are none, and `TemporaryError` if the export is being replaced."""
    bucket = Bucket(address)
    versions = bucket.versions()
    digests = listed(bucket.read(MARK) or b"") if MARK in versions else {}
    names = [MARK, *digests] if digests else versions
    wanted = {name: versions.get(name, "") for name in names if any(fnmatch.fnmatch(name, one) for one in patterns)}
    if not wanted:
        raise InputError(f"{bucket.address} does not exist or holds no such files; check the bucket and the path.")
    return _fetched(bucket, wanted, cache, digests)


def _fetched(bucket: Bucket, versions: Mapping[str, str], cache: Path, digests: Mapping[str, str]) -> Path:
    """The local copy of these versions, downloaded if absent; checks `digests`, except the model card's."""

    def fill(draft: Path) -> None:
        log.info("fetching %s", bucket.address)
        for name in versions:
            path = draft / bucket.name / name if name else draft / bucket.name
            with contextlib.suppress(MissingObject) if digests else contextlib.nullcontext():
                bucket.download(safe_name(name), path)
            edited = not name.endswith(".md") and not (path.is_file() and file_digest(path) == digests.get(name))
            if name in digests and edited:
                raise TemporaryError(
                    f"{bucket.address}/{name} does not match {MARK}: it is being written, or its upload was cut off; wait "
                    "until it is complete, or run the command that writes it again."
                )

    place = cache / address_digest(json.dumps([bucket.address, versions, digests]))
    if not place.is_dir():
        make_folder_atomic(place, fill, what=f"the copy of {bucket.address}")
    return place / bucket.name


def upload_folder(folder: Path, bucket: Bucket) -> None:
    """Uploads a folder: replaces an export; other folders' files are added to existing ones."""
    old = listed(bucket.read(MARK) or b"")
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    bucket.remove(old.keys() - {*names})
    for name in sorted(names, key=lambda name: name != MARK):  # so that readers notice that an export is being replaced
        bucket.upload(folder / name, name)


def address_digest(address: str) -> str:
    """Name of the cache folder for an address."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]
