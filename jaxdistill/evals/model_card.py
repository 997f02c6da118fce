"""Writes the model card of an export: how the model was made, its scores, and how to use it.

A run writes its `Facts` to `card.json` in the workdir, so that any of its checkpoints can be exported with them later.
"""

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from jaxdistill.core.files import write_atomic
from jaxdistill.core.paths import is_hub_name, public_name
from jaxdistill.core.runtime import versions
from jaxdistill.models.checkpoints.model import SentenceModel

FACTS_FILE = "card.json"
MARKUP = re.compile(r"[\\`*\[\]<>|~&#$]|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning in Markdown; an underscore has one only at the ends of words."""
HUB_DATA = re.compile(r"(?:^|, )hf:(\w[\w.-]*(?:/[\w.-]+)?):")
"""A data set of the Hugging Face hub among the sources of a text; a local folder does not match."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """How a student was made: the content of `card.json`. The model card leaves out empty texts and zeros."""

    name: str
    teacher: str = ""
    student: str = ""
    """Origin of the student's weights, such as `layers 1,3,5 of all-MiniLM-L6-v2`."""
    base_models: str = ""
    """The models that the student was made from, separated by commas."""
    languages: str = ""
    """Languages that all of their cards state, such as `en, de`; cards that state no language do not count."""
    objective: str = ""
    data: str = ""
    data_digest: str = ""
    sentences: int = 0
    batch_size: int = 0
    seed: int = 0
    command: str = ""
    """The command that repeats the training."""
    steps: int = 0
    """Step of the student's checkpoint; of averaged ones, the last."""
    chosen_by: str = ""
    """The dev score that chose this step's checkpoint."""
    averaged: str = ""
    """Steps of the averaged checkpoints; empty if the student is a single checkpoint."""
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Maps names of scores to values in [-1, 1], such as `{"sts-b-dev/spearman": 0.84}`."""
    teacher_scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    prompt: str = ""
    """Prompt of every sentence without a role, in training and evaluation."""
    roles: str = ""
    """Which sentences are queries and which are documents; see `data.roles`."""
    role_prompts: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """For each role of the text, maps `student` and `teacher` to their prompts."""
    dims: str = ""
    """Nested widths that were trained, such as `64, 128`."""


def public_command(command: str) -> str:
    """The command with local paths shortened by `public_argument`; unchanged if it is a call from Python (`jaxdistill.distill(...)`)."""
    if command.startswith("jaxdistill."):
        return command
    return shlex.join(map(public_argument, shlex.split(command)))


def public_argument(argument: str) -> str:
    """`--OPTION=VALUE` without the folders of local paths in its value, as `public_name` shortens them; a config file keeps `configs/`."""
    name, _, value = argument.partition("=")
    if name.lstrip("-") == "config":
        path, colon, preset = value.partition(":")
        folder = "configs/" if Path(path).parent.name == "configs" else ""
        preset = re.sub("=[^:=]*/", "=", preset)  # shortens `teacher=FOLDER/my.py:Teacher` to `teacher=my.py:Teacher`
        return f"{name}={folder}{Path(path).name}{colon}{preset}"
    if "/" not in value or value.startswith("("):  # no path, or the rules of run.sharding
        return argument
    return f"{name}={','.join(public_name(spec.strip()) for spec in value.split(','))}"


def write_facts(folder: str | Path, facts: Facts) -> None:
    """Writes `card.json` into a workdir or an export, atomically."""
    write_atomic(Path(folder) / FACTS_FILE, json.dumps(dataclasses.asdict(facts), indent=2) + "\n")


def read_facts(folder: str | Path) -> Facts | None:
    """The facts of a workdir or an export; None if it has no `card.json`."""
    path = Path(folder) / FACTS_FILE
    return Facts(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def model_card(model: SentenceModel, facts: Facts, *, spec: str, forms: Sequence[Mapping[str, str]] = ()) -> str:
    """The README of an exported model: markdown with the YAML header that model hubs read. `spec` names the model in the code
    examples; `forms` are rows of measurements of ONNX files, which map columns to cells."""
    definition = model.definition
    pooling = str(definition.pooling)
    library = "sentence-transformers" if definition.pooling.in_sentence_transformers else ""
    tags = ["sentence-similarity", "feature-extraction"]
    if definition.reads_pairs:
        tags = ["cross-encoder", "text-ranking"]
    # An export that states no base model counts as its own; its name, `RUN/export`, looks like one of the hub.
    base = [name for name in facts.base_models.split(", ") if is_hub_name(name) and not name.endswith("/export")]
    metadata = {  # https://huggingface.co/docs/hub/model-cards
        "language": facts.languages.split(", ") if facts.languages else [],
        "library_name": library,
        "pipeline_tag": "text-ranking" if definition.reads_pairs else "sentence-similarity",
        "base_model": base,
        "base_model_relation": "finetune" if base else "",  # otherwise hubs take several base models for a merge
        "datasets": [*dict.fromkeys(HUB_DATA.findall(facts.data))],
        "tags": list(filter(None, [library, *tags, "distillation", "jaxdistill"])),
    }
    known_metadata = {name: value for name, value in metadata.items() if value}
    is_static = definition.architecture.is_static
    has_head = definition.dense or definition.reads_pairs
    return filled(
        "model_card.md",
        facts=facts,
        spec=spec,
        definition=definition,
        parameters=model.parameter_count,
        max_length=0 if is_static else model.max_length,
        pooling=pooling,
        pooled_by_hand=pooling in ("mean", "cls") and not (has_head or is_static),  # the example for transformers alone
        prompts=model.role_prompts,
        forms=forms,
        metadata=yaml.safe_dump(known_metadata, sort_keys=False, allow_unicode=True),
        software=", ".join(f"{name} {version}" for name, version in versions().items()),
    )


def averaged_steps(steps: Sequence[int]) -> str:
    """The steps of averaged checkpoints, separated by commas, for `Facts.averaged`; empty for a single checkpoint."""
    return ", ".join(map(str, steps)) if len(steps) > 1 else ""


def origin_of(*models: SentenceModel) -> dict[str, str]:
    """The fields `base_models` and `languages` of the `Facts` of a model that is made from `models`. They list the base models of
    all, and the languages that all have in common; models that state no language are ignored."""
    stated = [model.languages for model in models if model.languages]
    shared = [language for language in next(iter(stated), ()) if all(language in languages for languages in stated)]
    base_models = dict.fromkeys(name for model in models for name in model.base_models)
    return {"base_models": ", ".join(base_models), "languages": ", ".join(shared)}


def filled(name: str, **values: Any) -> str:
    """Fills the template `name` of `core/assets/` with values; a variable without a value is an error. Values are escaped in .html; a
    .md template escapes them by the filters `plain`, `code` and `literal` (a string of Python and JavaScript)."""
    import jinja2  # imported here, because most programs need no template

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdistill", "core/assets"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=name.endswith(".md"),  # .html keeps the line break after a tag
        keep_trailing_newline=True,
    )
    environment.filters.update(plain=plain, code=code, literal=partial(json.dumps, ensure_ascii=False))
    return environment.get_template(name).render(**values)


def plain(text: str) -> str:
    """Markdown that shows the text literally, in one line, also within a table."""
    return MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def code(text: str) -> str:
    """The text as code within a line of Markdown, also within a table; line ends become `\\n`."""
    line = "\\n".join(text.splitlines()) + ("\\n" if text.endswith("\n") else "")
    if not re.search("[`|]|^ .* $", line):
        return f"`{line}`"
    # In a code span, `|` would split a table's cell, a backtick end the span, and outer spaces be lost.
    return f"<code>{MARKUP.sub(lambda match: f'&#{ord(match[0])};', line)}</code>"
