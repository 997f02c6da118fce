"""Reads values of a model's JSON files; an invalid value raises an error that names file and key."""

import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any

from jaxdistill.core import InputError
from jaxdistill.core.files import read_json

ADAPTER = "adapter_config.json"
"""peft's settings of a LoRA adapter."""
NEEDED = object()
"""Default of a required key."""


def read_settings(path: Path) -> dict[str, Any]:
    """Reads a JSON object; raises `InputError` if the file is missing or holds something else."""
    if not path.exists():
        refuse_adapter(path.parent)
        raise InputError(f"{path} is missing; the folder is not a complete model.")
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, not a {type(content).__name__}.")
    return content


def refuse_adapter(folder: Path) -> None:
    """Raises `InputError` if the folder has an adapter, which peft merges into its base model."""
    if (folder / ADAPTER).exists():
        raise InputError(
            f"{folder} has a LoRA adapter; merge it with peft and give FOLDER: "
            f"model = PeftModel.from_pretrained(AutoModel.from_pretrained(BASE_MODEL), {str(folder)!r}).merge_and_unload(); "
            "model.save_pretrained(FOLDER)"
        )


def refuse_others(
    content: Mapping[str, Any], readable: Mapping[str, Sequence[Any]], *, file: Path | str, advice: str = ""
) -> None:
    """Raises `InputError` if a key has another value than those that are implemented, which would change the result.

    Args:
      readable: maps keys to their implemented values; null and an absent key always count as one of them.
      advice: what to do instead, for the end of the error.
    """
    for key, values in readable.items():
        value = content.get(key)
        if value is not None and value not in values:
            named = value.get("quant_method", value) if isinstance(value, dict) else value
            only = ", ".join(map(json.dumps, values or (None,)))
            raise InputError(f"{file} has {key}={json.dumps(named):.160}; only {only} can be read{advice}.")


def setting(
    content: Mapping[str, Any],
    key: str,
    kind: type | UnionType,
    default: Any = NEEDED,
    *,
    file: Path | str,
    least: float | None = None,
) -> Any:
    """The value of `key`.

    Args:
      kind: one or several types of JSON values; `float` also allows whole numbers.
      default: returned if the key is absent. NOTE: null is a value, allowed only if `kind` contains None.
      file: named in errors.
      least: the smallest allowed number.

    Raises:
      InputError: the key is missing, or its value is of another kind or below `least`.
    """
    if key not in content:
        if default is NEEDED:
            raise InputError(f"{file} has no {key!r}; is it the complete file of a model?")
        return default
    value, kinds = content[key], typing.get_args(kind) or (kind,)
    allowed = (*kinds, int) if float in kinds else kinds
    fits = isinstance(value, allowed) and (bool in kinds or not isinstance(value, bool))
    number = isinstance(value, int | float)
    if not fits or (least is not None and number and not value >= least):  # NaN too
        words = " or ".join(getattr(one, "__name__", str(one)) for one in kinds)
        least_words = "" if least is None else f", at least {least}"
        raise InputError(f"{file} has {key}={json.dumps(value):.80}; it must be {words}{least_words}.")
    return value
