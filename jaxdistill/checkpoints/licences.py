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
"""The front matter of a model card is looked for in so much of it: MTEB's results may stand before the licence."""
FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
LANGUAGE = re.compile(r"multilingual|code|[a-z]{2,3}(-[A-Za-z]{2,4})?")
"""A language as model hubs name it: by its ISO 639 code, perhaps with a script or country."""
LICENCE = re.compile(r"(?!(?i:null)$)[\w.+-]{1,60}")


def licences_of(folder: Path, source: str) -> dict[str, str]:
    """Public name of a model to its licence, such as `apache-2.0`; an empty text where its card states none.

    An export of this project names the models that it was made from, any other checkpoint (`source`) is its own origin.
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
    """Languages that the card of a checkpoint states, such as `en`; an export's card states them too."""
    return [one for one in _texts(_front_matter(folder / "README.md"), "language") if LANGUAGE.fullmatch(one)]


def common_languages(models: Iterable[Sequence[str]]) -> list[str]:
    """Languages that all models have, as far as their cards state any."""
    stated = [languages for languages in models if languages]
    return [one for one in stated[0] if all(one in languages for languages in stated)] if stated else []


def _stated(matter: Mapping[str, Any]) -> str:
    """The licence that a card's front matter names, or several."""
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
        # Scalars stay text: a date that does not exist costs no licence.
        with foreign_errors(f"{card} is not readable"):
            matter = yaml.load(found[1], yaml.BaseLoader) if found else None
    except InputError:  # a card that nobody can read states nothing
        return {}
    return matter if isinstance(matter, dict) else {}
