"""Objects of Amazon S3 and Google Cloud Storage: reads, atomic writes, and errors of one line.

A store replaces one object whole or not at all, but knows no folders. Whoever changes several objects that belong together
notes their names first (`Bucket.changing`), and readers refuse a folder while the note is there.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from jaxdistill.core import InputError, TemporaryError
from jaxdistill.files import make_folder_atomic
from jaxdistill.files.reading import parsed_json

PACKAGES = {"s3": "s3fs", "gs": "gcsfs"}
"""Schemes of addresses, and the package that fsspec needs for each."""
SIGN_IN = {
    "s3": "`aws configure` or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "`gcloud auth application-default login`",
}
UNFINISHED = "jaxdistill-unfinished.json"
"""Object with the names of objects that are being replaced; removed at the end."""
LEVELS = 3
"""How many folders above an object may hold the note that it is being replaced: `run/stage1/export`."""
Note = TypeVar("Note", list, dict)
VERSIONS = ("ETag", "etag", "md5Hash", "generation", "LastModified", "mtime")
"""Fields of a listing that differ between versions of an object; the first that there is counts."""

log = logging.getLogger(__name__)


class MissingObject(InputError):
    """Raised where an object or a bucket does not exist."""


class Bucket:
    """The objects under an address, by their names relative to it; the empty name is an object at the address itself."""

    def __init__(self, address: str | Path):
        """Connects; raises `InputError` for an address that cannot be used, or without the package for its scheme."""
        self.address = checked_address(str(address))
        self.scheme, _, self._root = self.address.partition("://")
        with self._errors():
            import fsspec  # imported here: only addresses need it

            self._files: Any = fsspec.filesystem(self.scheme, use_listings_cache=False)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return posixpath.basename(self._root)

    def versions(self) -> dict[str, str]:
        """Names of all objects below the address, each with what changes when it is replaced."""
        with self._errors():
            found = self._files.find(self._root, detail=True)
        inside = {path[len(self._root) + 1 :]: _version(info) for path, info in found.items() if path != self._root}
        return {safe_name(name): version for name, version in sorted(inside.items()) if name and not name.endswith("/")}

    def matching(self) -> dict[str, str]:
        """Addresses and versions of the objects that the address names, which may be a glob."""
        with self._errors():
            if glob.has_magic(self._root):
                found = self._files.glob(self._root, detail=True)
            else:
                found = {self._root: self._files.info(self._root)}
        return {
            f"{self.scheme}://{path}": _version(found[path]) for path in sorted(found) if found[path]["type"] == "file"
        }

    def read(self, name: str) -> bytes | None:
        """Content of an object; None if it does not exist."""
        try:
            with self._errors(name):
                return self._files.cat_file(self._path(name))
        except MissingObject:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes an object, or replaces it."""
        with self._errors(name):
            self._files.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes an object unless it exists; returns whether it was written. Of several callers, one succeeds."""
        with self._errors(name):
            try:
                self._files.pipe_file(self._path(name), content, mode="create")
                return True
            except FileExistsError:
                return False

    def upload(self, path: Path, name: str) -> None:
        """Writes a local file to an object."""
        with self._errors(name):
            self._files.put_file(str(path), self._path(name))

    def download(self, name: str, path: Path) -> None:
        """Reads an object into a local file, whose folder is made; not atomic."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors(name):
            self._files.get_file(self._path(name), str(path))

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; those that do not exist are ignored."""
        with self._errors():
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._files.rm_file(self._path(name))

    @contextlib.contextmanager
    def changing(self, names: Sequence[str]) -> Iterator[None]:
        """Notes that the objects `names` are being replaced, until the end of the body; an error leaves the note."""
        self.write(UNFINISHED, json.dumps(sorted({*names, *self.unfinished()})).encode())
        yield
        self.remove([UNFINISHED])

    def unfinished(self) -> list[str]:
        """Names of objects whose replacement has not ended, or was cut off."""
        listed = self.note(UNFINISHED, list) or []
        if not all(isinstance(name, str) for name in listed):
            raise self.no_note(UNFINISHED)
        return [safe_name(name) for name in listed]

    def note(self, name: str, kind: type[Note]) -> Note | None:
        """What an object of this program's own says, in JSON; None if it does not exist.

        Raises:
          InputError: it holds something else than a `kind`.
        """
        content = self.read(name)
        if content is None:
            return None
        said = parsed_json(content, f"{self.address}/{name}")
        if not isinstance(said, kind):
            raise self.no_note(name)
        return said

    def no_note(self, name: str) -> InputError:
        """The error for such an object that this program has not written."""
        return InputError(
            f"{self.address}/{name} does not hold what this program writes there; remove that object, or use another address."
        )

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextlib.contextmanager
    def _errors(self, name: str = "") -> Iterator[None]:
        """Turns errors of the store into `InputError`, or into `TemporaryError` where it does not answer."""
        try:
            yield
        except ImportError:
            package = PACKAGES[self.scheme]
            raise InputError(f"{self.address} needs the package {package}; run: pip install {package}") from None
        except Exception as error:  # each store's client has exceptions of its own
            if isinstance(error, InputError) or (isinstance(error, OSError) and error.filename) or _is_disk_full(error):
                raise
            raise self._described(f"{self.address}/{name}".rstrip("/"), error) from error

    def _described(self, address: str, error: Exception) -> InputError:
        status = str(getattr(error, "code", ""))
        if isinstance(error, FileNotFoundError) or status == "404":
            return MissingObject(f"{address} does not exist; check the bucket and the path.")
        refused = isinstance(error, PermissionError) or str(error).startswith("Forbidden") or status in ("401", "403")
        if refused or "Credentials" in type(error).__name__:
            return InputError(f"{address} is not accessible ({_line(error)}); sign in with {SIGN_IN[self.scheme]}.")
        if getattr(error, "errno", None) == errno.EINVAL:
            return InputError(f"{address} cannot be used ({_line(error)}); check the address.")
        return TemporaryError(f"{address} cannot be reached ({_line(error)}); give the same command again.")


def checked_address(address: str) -> str:
    """The address in its plain form; raises `InputError`, without what may be a secret, if it is not one of an object."""
    scheme, _, rest = address.partition(":")
    bucket, _, path = rest.strip("/").partition("/")
    if scheme not in PACKAGES:
        raise InputError(f"{scheme}: is not a supported address; use {' or '.join(f'{one}://' for one in PACKAGES)}.")
    if "@" in bucket or re.search(r"[?&][\w-]+=", address):
        raise InputError(f"the {scheme}:// address holds a key or a signature; give the plain address, and sign in.")
    safe_name(path)
    if not bucket:
        raise InputError(f"{address} names no bucket; give {scheme}://BUCKET/PATH.")
    return f"{scheme}://{bucket}/{path}".rstrip("/")


def fetched_files(address: str | Path, cache: Path) -> list[Path]:
    """Local copies of the objects that an address or a glob names, sorted; empty if a glob matches none.

    Copies are made once for each version of an object, in folders of `cache`.

    Raises:
      InputError: the object does not exist or is not accessible.
    """
    bucket = Bucket(address)
    found = bucket.matching()
    if not found and not glob.has_magic(bucket.address):
        raise InputError(f"{bucket.address} is a folder; name an object, or a glob such as {bucket.address}/*.txt.gz.")
    return [_fetched(Bucket(one), {"": version}, cache) for one, version in found.items()]


def fetched_folder(address: str | Path, cache: Path, patterns: Sequence[str] = ("*",)) -> Path:
    """A local copy of the objects under an address, whose names match one of the patterns; as `fetched_files`.

    Raises:
      InputError: there are none.
      TemporaryError: they are being replaced.
    """
    bucket = Bucket(address)
    _refuse_unfinished(bucket)
    found = bucket.versions()
    wanted = {name: found[name] for name in found if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}
    if not wanted:
        raise InputError(f"{bucket.address} does not exist or holds no such files; check the bucket and the path.")
    folder = _fetched(bucket, wanted, cache)
    if bucket.versions() != found:
        raise TemporaryError(f"{bucket.address} changed while it was read; give the same command again.")
    return folder


def upload_folder(folder: Path, bucket: Bucket, *, replaced: Iterable[str] = ()) -> None:
    """Writes all files of a folder; removes those of `replaced` that it does not have. Readers see all or are refused."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    old = sorted({*replaced} - {*names})
    with bucket.changing([*names, *old]):
        for name in names:
            bucket.upload(folder / name, name)
        bucket.remove(old)


def address_digest(address: str) -> str:
    """Name of the folder of the cache that belongs to an address."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def _fetched(bucket: Bucket, versions: Mapping[str, str], cache: Path) -> Path:
    """The local copy of these versions, fetched if it is not there yet."""
    place = cache / address_digest(json.dumps([bucket.address, dict(versions)]))
    if not place.is_dir():
        log.info("fetching %s", bucket.address)
        make_folder_atomic(place, _downloads(bucket, versions), what=f"the copy of {bucket.address}")
    return place / bucket.name


def _downloads(bucket: Bucket, names: Iterable[str]) -> Callable[[Path], None]:
    def fill(draft: Path) -> None:
        for name in names:
            bucket.download(name, draft / bucket.name / name if name else draft / bucket.name)

    return fill


def _refuse_unfinished(bucket: Bucket) -> None:
    """Raises `TemporaryError` if objects under the address are noted as being replaced, there or in a folder above."""
    place, below, unfinished = bucket, "", []
    for _ in range(LEVELS):
        with contextlib.nullcontext() if place is bucket else contextlib.suppress(InputError):  # may not be readable
            unfinished = place.unfinished()
        if any(name.startswith(below) for name in unfinished):
            raise TemporaryError(
                f"{bucket.address} is being written, or its upload was cut off; wait for its end, or give the command "
                "that writes it again."
            )
        above, _, name = place.address.rpartition("/")
        if above.endswith("/"):
            return
        place, below = Bucket(above), f"{name}/{below}"


def safe_name(name: str) -> str:
    """The name; raises `InputError` if it would lead out of a local folder."""
    if name.startswith("/") or "\0" in name or {"..", "."} & set(name.split("/")):
        raise InputError(f"{name!r} is the name of an object that no local file can have.")
    return name


def _version(info: Mapping[str, Any]) -> str:
    return " ".join([str(info["size"]), *(str(info[field]) for field in VERSIONS if info.get(field))][:2])


def _is_disk_full(error: Exception) -> bool:
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def _line(error: Exception) -> str:
    """First line of an error without the query of an address, where signatures are."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{type(error).__name__}: {re.sub(r'[?][^ ]*', '', text)}"[:200].rstrip(".")
