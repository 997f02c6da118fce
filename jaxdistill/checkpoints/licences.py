"""Finds the licences and languages of a checkpoint and of the models that it was made from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxdistill.core import InputError
from jaxdistill.files.folders import MARK
from jaxdistill.files.reading import foreign_errors, open_regular, read_json
from jaxdistill.paths import public_name

CARD_BYTES = 16 << 20
"""How much of a model card is searched for front matter: long results of MTEB may precede the licence."""
FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
LANGUAGE = re.compile(r"multilingual|code|[a-z]{2,3}(-[A-Za-z]{2,4})?")
"""A language as model hubs write it: an ISO 639 code, possibly with a script or country."""
LICENCE = re.compile(r"(?!(?i:null)$)[\w.+-]{1,60}")


def licences_of(folder: Path, source: str) -> dict[str, str]:
    """Maps a model's public name to its licence, such as `apache-2.0`; to an empty string if its card states none.

    For an export of this project, these are the models that it was made from; for any other checkpoint, itself (`source`).
    """
    try:
        marker = read_json(folder / MARK) if (folder / MARK).is_file() else {}
    except InputError:  # it says nothing that loading needs
        marker = {}
    inherited = marker.get("licences") if isinstance(marker, dict) else None
    if isinstance(inherited, dict) and inherited:
        return {str(model): str(licence) for model, licence in inherited.items()}
    return {public_name(source): _stated(_front_matter(folder / "README.md"))}


def languages_of(folder: Path) -> list[str]:
    """Languages that a checkpoint's model card states, such as `en`."""
    return [one for one in _texts(_front_matter(folder / "README.md"), "language") if LANGUAGE.fullmatch(one)]


def common_languages(models: Iterable[Sequence[str]]) -> list[str]:
    """Languages that all models have in common; ignores models whose cards state none."""
    stated = [languages for languages in models if languages]
    return [one for one in stated[0] if all(one in languages for languages in stated)] if stated else []


def _stated(matter: Mapping[str, Any]) -> str:
    """The licence, or several joined, in a card's front matter."""
    return ", ".join(one for one in _texts(matter, "license") if LICENCE.fullmatch(one))


def _texts(matter: Mapping[str, Any], field: str) -> list[str]:
    given = matter.get(field)
    return [one for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)]


def _front_matter(card: Path) -> Mapping[str, Any]:
    if not card.is_file():
        return {}
    with open_regular(card) as file:
        found = FRONT_MATTER.match(file.read(CARD_BYTES).decode("utf-8-sig", errors="replace"))
    try:
        # Scalars stay strings, so that an invalid date does not make the whole front matter unreadable.
        with foreign_errors(f"{card} is not readable"):
            matter = yaml.load(found[1], yaml.BaseLoader) if found else None
    except InputError:  # an unreadable card states nothing
        return {}
    return matter if isinstance(matter, dict) else {}
