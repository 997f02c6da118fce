"""Objects of Amazon S3 and Google Cloud Storage through fsspec: copies in the cache, and errors of one line."""

import contextlib
import errno
import fnmatch
import glob
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.core import InputError, TemporaryError, error_line
from jaxdistill.core.paths import cache_folder, make_folder

SIGN_IN = {"s3": "`aws configure` or AWS_ACCESS_KEY_ID", "gs": "`gcloud auth application-default login`"}
"""Maps the scheme of each supported store's addresses to how to sign in."""

log = logging.getLogger(__name__)


def checked_address(address: str | Path) -> str:
    """The address with its `://` restored, which `Path` shortens. Raises `InputError` if it holds a key, or is of another store."""
    scheme, _, rest = str(address).partition(":")
    path = rest.strip("/")
    if scheme not in SIGN_IN or not path:
        allowed = " or ".join(f"{supported}://BUCKET/PATH" for supported in SIGN_IN)
        raise InputError(f"{scheme}: is not an address of a supported store; give {allowed}.")
    if "@" in path.partition("/")[0] or re.search(r"[?&][\w-]+=", path):
        raise InputError(f"the {scheme}:// address holds a key or a signature; give the plain address, and sign in.")
    return f"{scheme}://{path}"


@contextlib.contextmanager
def store_errors(address: str) -> Iterator[None]:
    """Turns a store's errors in the `with` block into `InputError`, or into `TemporaryError` if the store does not answer."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the clients' exceptions have no common base
        os_errno = getattr(error, "errno", None)
        if os_errno in (errno.ENOSPC, errno.EDQUOT) or getattr(error, "filename", None):
            raise  # an error of the local disk
        line = re.sub(r"[?][^ ]*", "", f"{type(error).__name__}: {error_line(error):.200}")  # queries hold signatures
        # Clients report a refusal by class, error number, HTTP status or text.
        is_refusal = isinstance(error, ImportError | FileNotFoundError | PermissionError) or os_errno == errno.EINVAL
        has_refusing_code = str(getattr(error, "code", "")) in ("401", "403", "404")
        if is_refusal or has_refusing_code or re.search("Credentials|Forbidden", line):
            sign_in = SIGN_IN[address.partition(":")[0]]
            raise InputError(f"{address} is not accessible ({line}); check it, or sign in with {sign_in}.") from error
        raise TemporaryError(f"{address} cannot be reached ({line}); give the same command again.") from error


def fetched_files(address: str | Path) -> list[Path]:
    """Local copies of the object at an address, or of the objects that match a glob, sorted; empty if there are none."""
    address = checked_address(address)
    client, versions = objects(address)
    names = [name for name in versions if glob.has_magic(address) or name == address]  # not the objects below it
    return [_fetched(client, name, {name: versions[name]}) for name in names]


def fetched_folder(address: str | Path, patterns: Sequence[str]) -> Path:
    """A local copy of those objects in the folder at an address whose paths inside it match a pattern; raises `InputError` if none does."""
    address = checked_address(address)
    client, versions = objects(address)
    chosen = {
        name: version
        for name, version in versions.items()
        if any(fnmatch.fnmatch(name.removeprefix(f"{address}/"), pattern) for pattern in patterns)
    }
    if not chosen:
        raise InputError(f"{address} does not exist or holds no such files; check the bucket and the path.")
    return _fetched(client, address, chosen)


def objects(address: str) -> tuple[Any, dict[str, str]]:
    """Lists the object at an address and those below it, as if it were a folder; for a glob, the objects that match.
    Returns fsspec's client of the store, and the version of each object by its address: a text that changes with the content."""
    import fsspec  # imported here: only addresses need it

    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs the traceback of an error that it also raises
    scheme = address.partition(":")[0]
    found: Any = {}
    with store_errors(address):
        client = fsspec.filesystem(scheme, use_listings_cache=False)
        with contextlib.suppress(FileNotFoundError):
            list_objects = client.glob if glob.has_magic(address) else client.find
            found = list_objects(address, detail=True)
    files = {path: info for path, info in sorted(found.items()) if info["type"] == "file" and not path.endswith("/")}
    return client, {f"{scheme}://{path}": str(info) for path, info in files.items()}


def _fetched(client: Any, root: str, versions: Mapping[str, str]) -> Path:
    """The local copy of the object or folder at `root`; downloaded unless the cache has it in these `versions` (see `objects`)."""
    folder = cache_folder() / "fetched" / address_digest(json.dumps([root, versions]))
    name = root.rpartition("/")[2]

    def fill(draft: Path) -> None:
        log.info("fetching %s", root)
        with store_errors(root):
            client.get([*versions], [f"{draft / name}{address.removeprefix(root)}" for address in versions])

    make_folder(folder, fill)
    return folder / name


def address_digest(address: str) -> str:
    """Short SHA-256 of an address (and its versions), which names a folder in the cache."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]
