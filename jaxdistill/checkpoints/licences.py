"""Finds and checks the licences and languages of a checkpoint and of the models that it was made from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxdistill.cli import did_you_mean
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
OTHER = re.compile(r"other:([\w.+-]{1,60}):(https?://[\w.~:/?#@!$&'()*+,;=%-]{1,300})")
"""A licence that the hub does not list: its name and address."""
LISTED = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0
    cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
    cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0
    creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2
    fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research intel-research isc lgpl
    lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by
    ofl-1.1 openmdw-1.0 openmdw-1.1 openrail openrail++ osl-3.0 pddl postgresql unlicense wtfpl zlib
    """.split()
)
"""Licences of https://huggingface.co/docs/hub/repositories-licenses in 2026, without `unknown` and `other`."""


def check_licence(given: str, option: str) -> None:
    """Raises `InputError` unless `given` is empty, a licence that the hub lists, or `other:NAME:LINK`."""
    if given and given not in LISTED and not OTHER.fullmatch(given):
        raise InputError(
            f"{option}={given!r:.80} is not a licence that the Hugging Face hub knows.{did_you_mean(given.lower(), sorted(LISTED))} Give one such"
            " as apache-2.0 or mit, or other:NAME:LINK with the name and the https address of another."
        )


def licence_metadata(licence: str) -> dict[str, str]:
    """The licence as a card's front matter has it: `license`, for another than the listed ones also `license_name` and
    `license_link`."""
    if other := OTHER.fullmatch(licence):
        return {"license": "other", "license_name": other[1], "license_link": other[2]}
    return {"license": licence}


def licences_of(folder: Path, source: str) -> dict[str, str]:
    """Maps a model's public name to its licence, such as `apache-2.0`; to an empty string if its card states none.

    For an export of this project, these are the models that it was made from; for any other checkpoint, itself (`source`).
    """
    inherited = _marker(folder).get("licences")
    if isinstance(inherited, dict) and inherited:
        return {str(model): str(licence) for model, licence in inherited.items()}
    return {public_name(source): _stated(_front_matter(folder / "README.md"))}


def licence_of(folder: Path, licences: Mapping[str, str]) -> str:
    """The licence of a checkpoint itself: as its export states, or else common to `licences_of`; empty if unknown."""
    stated = _marker(folder).get("licence")
    return stated if isinstance(stated, str) and stated else common_licence(licences.values())


def _marker(folder: Path) -> Mapping[str, Any]:
    """The marker of an export; empty for other checkpoints."""
    try:
        marker = read_json(folder / MARK) if (folder / MARK).is_file() else {}
    except InputError:  # it says nothing that loading needs
        marker = {}
    return marker if isinstance(marker, dict) else {}


def languages_of(folder: Path) -> list[str]:
    """Languages that a checkpoint's model card states, such as `en`."""
    return [one for one in _texts(_front_matter(folder / "README.md"), "language") if LANGUAGE.fullmatch(one)]


def common_languages(models: Iterable[Sequence[str]]) -> list[str]:
    """Languages that all models have in common; ignores models whose cards state none."""
    stated = [languages for languages in models if languages]
    return [one for one in stated[0] if all(one in languages for languages in stated)] if stated else []


def common_licence(licences: Iterable[str]) -> str:
    """The licence of all of these; empty if they differ, or one is unknown or several."""
    stated = {*licences}
    return stated.pop() if len(stated) == 1 and not any("," in one for one in stated) else ""


def _stated(matter: Mapping[str, Any]) -> str:
    """The licence, or several joined, in a card's front matter."""
    other = ":".join(["other", *_texts(matter, "license_name"), *_texts(matter, "license_link")])
    if _texts(matter, "license") == ["other"] and OTHER.fullmatch(other):
        return other
    return ", ".join(one for one in _texts(matter, "license") if LICENCE.fullmatch(one))


def _texts(matter: Mapping[str, Any], field: str) -> list[str]:
    given = matter.get(field)
    return [one for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)]


def _front_matter(card: Path) -> Mapping[str, Any]:
    if not card.is_file():
        return {}
    with open_regular(card) as file:
        match = FRONT_MATTER.match(file.read(CARD_BYTES).decode("utf-8-sig", errors="replace"))
    try:
        # Scalars stay strings, so that an invalid date does not make the whole front matter unreadable.
        with foreign_errors(f"{card} is not readable"):
            matter = yaml.load(match[1], yaml.BaseLoader) if match else None
    except InputError:  # an unreadable card states nothing
        return {}
    return matter if isinstance(matter, dict) else {}
