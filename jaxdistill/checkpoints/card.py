"""Reads the front matter of a checkpoint's model card: its licence, languages and base models."""

from pathlib import Path
from typing import NamedTuple

from huggingface_hub import ModelCard

from jaxdistill.files import MARK
from jaxdistill.paths import public_name


class CardFacts(NamedTuple):
    """What a model card says of a checkpoint."""

    base_models: tuple[str, ...] = ()
    """For an export of this project, the models that it was made from; for any other checkpoint, itself."""
    licence: str = ""
    """Such as `apache-2.0`; empty: not stated."""
    languages: tuple[str, ...] = ()


def read_card(folder: Path, source: str) -> CardFacts:
    """The facts in the card of the checkpoint `source`, which is in `folder`; a card that cannot be read states nothing."""
    try:
        data = ModelCard.load(folder / "README.md", ignore_metadata_errors=True).data.to_dict()
    except Exception:  # whatever is in the file: loading the model needs none of it
        data = {}
    base = _texts(data.get("base_model")) if (folder / MARK).is_file() else ()
    licences = _texts(data.get("license"))
    return CardFacts(
        base or (public_name(source),), licences[0] if len(licences) == 1 else "", _texts(data.get("language"))
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))
