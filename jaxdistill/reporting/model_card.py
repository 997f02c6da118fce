"""Writes the model card of an export: how the model was made, what it scores, how to use it.

A run writes its facts to `card.json` in the workdir, so that any of its checkpoints can be exported with them later.
"""

import dataclasses
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import yaml

from jaxdistill.core import InputError
from jaxdistill.files import write_atomic
from jaxdistill.paths import is_hub_name, public_name
from jaxdistill.versions import versions

FACTS_FILE = "card.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """How a student was made. The card omits empty texts and zeros."""

    name: str
    teacher: str = ""
    student: str = ""
    """Origin of the student's weights, for instance `layers 1,3,5 of all-MiniLM-L6-v2`."""
    licences: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Models that the student was made from to their licences; empty: the model card states none."""
    languages: str = ""
    """Languages that the cards of these models have in common, such as `en, de`."""
    objective: str = ""
    """The objective with its options, in one line."""
    data: str = ""
    """Sources of the sentences."""
    data_digest: str = ""
    sentences: int = 0
    steps: int = 0
    chosen_by: str = ""
    """The dev score that chose this step's checkpoint."""
    averaged: str = ""
    """Steps of the checkpoints whose mean the student is; empty: it is one checkpoint."""
    batch_size: int = 0
    seed: int = 0
    prompt: str = ""
    """Text before every sentence without a role, in training and evaluation."""
    roles: str = ""
    """Which sentences are queries and which documents, as `data.roles` has it."""
    role_prompts: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """For each role of the text, `student` and `teacher` to the prompt that each reads before its sentences."""
    dims: str = ""
    """Widths whose first numbers are trained to be useful by themselves, such as `64, 128`."""
    command: str = ""
    """The command that repeats the training."""
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Score name to value in [-1, 1], such as `{"sts-b-dev/spearman": 0.84}`."""
    teacher_scores: Mapping[str, float] = dataclasses.field(default_factory=dict)


PATH_OPTIONS = (
    "data.text", "data.exclude", "data.cache_folder", "teacher.model", "student.model", "evals.pairs", "evals.retrieval",
    "evals.entities", "evals.agreement", "run.parts", "student.vocabulary", "objective.name",
)  # fmt: skip
"""Options whose values may be local paths without a leading `/`, `~` or `.`."""


def public_command(command: str) -> str:
    """The command with every local path shortened to its last part; a call from Python is so already."""
    if command.startswith("jaxdistill."):
        return command
    return shlex.join(map(public_argument, shlex.split(command)))


def public_argument(argument: str) -> str:
    """`--OPTION=VALUE` with every local path in its value shortened to its last part."""
    name, equals, value = argument.partition("=")
    if name.lstrip("-") == "config":
        path, colon, preset = value.partition(":")
        folder = "configs/" if Path(path).parent.name == "configs" else ""
        return f"{name}={folder}{Path(path).name}{colon}{preset}"
    if not equals or not (".".join(name.split(".")[-2:]) in PATH_OPTIONS or value.startswith(("/", "~", "."))):
        return argument
    return f"{name}={','.join(public_name(spec.strip()) for spec in value.split(','))}"


def write_facts(folder: str | Path, facts: Facts) -> None:
    """Writes `card.json` into a workdir or an export, atomically."""
    write_atomic(Path(folder) / FACTS_FILE, json.dumps(dataclasses.asdict(facts), indent=2) + "\n")


def read_facts(folder: str | Path) -> Facts | None:
    """The facts of a workdir or an export; None if it has no `card.json`."""
    path = Path(folder) / FACTS_FILE
    if not path.is_file():
        return None
    try:
        return Facts(**json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise InputError(
            f"{path} is not readable as the facts of a run ({error}); remove it to export without facts."
        ) from error


def model_card(
    facts: Facts,
    *,
    spec: str,
    parameters: int,
    width: int,
    max_length: int,
    pooling: str,
    digest: str,
    in_sentence_transformers: bool,
    reads_pairs: bool,
) -> str:
    """The README of an exported model: markdown with the YAML header that model hubs read.

    Args:
      spec: of the model, for the code.
      width: of sentence vectors; unused for a cross-encoder.
      max_length: in tokens; 0: unlimited.
      in_sentence_transformers: whether that library has the pooling and can load the model.
      reads_pairs: whether the model is a cross-encoder.
    """
    model = {
        "Parameters": f"{parameters:,}",
        "Embedding width": "" if reads_pairs else str(width),
        "Longest pair" if reads_pairs else "Longest sentence": f"{max_length} tokens" if max_length else "any",
        "Nested widths": facts.dims and f"the first {facts.dims} numbers of a vector are vectors too (`truncate_dim`)",
        "Pooling": "" if reads_pairs else pooling,
        "Digest of the model": digest,
    }
    software = ", ".join(f"{name} {version}" for name, version in versions().items())
    vectors = (
        f"A sentence encoder distilled with jaxdistill: it maps sentences to vectors of {width} numbers whose cosine "
        "similarity says how alike they are in meaning."
    )
    scores = "A cross-encoder distilled with jaxdistill: it scores how alike two sentences are in meaning, from 0 to 1."
    parts = [
        f"---\n{yaml.safe_dump(_metadata(facts, in_sentence_transformers, reads_pairs), sort_keys=False)}---\n",
        f"# {facts.name}\n\n{scores if reads_pairs else vectors}\n",
        _usage(
            spec,
            in_sentence_transformers,
            _CODE["pairs" if reads_pairs else "roles" if facts.role_prompts else "plain"],
        ),
        "## The model\n\n" + _table(model),
        "## How it was made\n\n" + _table({**_how_made(facts), "Software": software}),
        _scores(facts),
    ]
    return "\n".join(part for part in parts if part)


def averaged_steps(steps: Sequence[int]) -> str:
    """`Facts.averaged` of a student of the checkpoints of these steps."""
    return ", ".join(map(str, steps)) if len(steps) > 1 else ""


def _how_made(facts: Facts) -> dict[str, str]:
    """Rows of the table of how the model was made."""
    return {
        "Teacher": facts.teacher,
        "Student": facts.student,
        "Licences": "; ".join(f"{name}: {licence or 'not stated'}" for name, licence in facts.licences.items()),
        "Objective": facts.objective,
        "Text": facts.data,
        "Digest of the text": facts.data_digest,
        "Sentences": f"{facts.sentences:,}" if facts.sentences else "",
        "Steps": f"{facts.steps:,}" if facts.steps else "",
        "Checkpoint chosen by": facts.chosen_by,
        "Mean of the checkpoints of steps": facts.averaged,
        "Batch size": f"{facts.batch_size:,}" if facts.batch_size else "",
        "Seed": str(facts.seed) if facts.steps else "",
        "Prompt, in training and for the scores": _prompt(facts.prompt) if facts.prompt else "",
        "Roles of the text": facts.roles,
        **{
            f"Prompt of a {role}": ", ".join(f"{_prompt(text)} ({model})" for model, text in prompts.items())
            for role, prompts in facts.role_prompts.items()
        },
        "Command": f"`{facts.command}`" if facts.command else "",
    }


def _metadata(facts: Facts, in_sentence_transformers: bool, reads_pairs: bool) -> dict[str, str | list[str]]:
    """What model hubs read: https://huggingface.co/docs/hub/model-cards. A field without a certain value is left out."""
    library = ["sentence-transformers"] if in_sentence_transformers else []
    kinds = ["cross-encoder", "text-ranking"] if reads_pairs else ["sentence-similarity", "feature-extraction"]
    # An export that states no origin has its public name here, which looks like a hub's.
    base = [name for name in facts.licences if is_hub_name(name) and not name.endswith("/export")]
    found = {
        "language": facts.languages.split(", ") if facts.languages else [],
        "license": _common_licence(facts.licences.values()),
        "library_name": "".join(library),
        "pipeline_tag": "text-ranking" if reads_pairs else "sentence-similarity",
        "base_model": base,
        "base_model_relation": "finetune" if base else "",  # hubs take several base models for a merge
        "tags": [*library, *kinds, "distillation", "jaxdistill"],
    }
    return {name: value for name, value in found.items() if value}


def _common_licence(licences: Collection[str]) -> str:
    """The licence that all models have that a student was made from; empty if they differ or one states none."""
    first = next(iter(licences), "")
    return first if all(one == first for one in licences) and "," not in first else ""


_ROLES_CODE = """
queries = model.encode_query(["Where does a cat sleep?"])
documents = model.encode_document(["A cat sleeps in a basket.", "Rain falls."])"""
_CODE = {
    "plain": (
        """from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("{spec}").encode(["A cat sleeps.", "A cat naps."])""",
        """import jaxdistill

vectors = jaxdistill.load("{spec}").encode(["A cat sleeps.", "A cat naps."])""",
    ),
    "roles": (
        """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{spec}")"""
        + _ROLES_CODE,
        """import jaxdistill

model = jaxdistill.load("{spec}")"""
        + _ROLES_CODE,
    ),
    "pairs": (
        """from sentence_transformers import CrossEncoder

scores = CrossEncoder("{spec}").predict([("A cat sleeps.", "A cat naps.")])""",
        """import jaxdistill

scores = jaxdistill.load("{spec}").score(["A cat sleeps."], ["A cat naps."])""",
    ),
}
"""Code for sentence-transformers and for jaxdistill: of an encoder, of one with prompts for roles, of a cross-encoder."""


def _usage(spec: str, in_sentence_transformers: bool, code: tuple[str, str]) -> str:
    theirs, ours = code
    refusal = "sentence-transformers has no module for this model's pooling and refuses to load it.\n"
    return "\n".join(
        [
            f"## Use\n\n`{spec}` is the folder of this card; on a model hub, put its name there instead.\n",
            _code("sentence-transformers", theirs.format(spec=spec)) if in_sentence_transformers else refusal,
            _code("jaxdistill", ours.format(spec=spec)),
        ]
    )


def _code(library: str, code: str) -> str:
    return f"With {library}:\n\n```python\n{code}\n```\n"


def _table(rows: Mapping[str, str]) -> str:
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows.items() if value]
    return "\n".join(["| | |", "|---|---|", *lines]) + "\n"


def _scores(facts: Facts) -> str:
    if not facts.scores:
        return ""
    lines = [
        f"| {name} | {100 * value:.2f} | {100 * facts.teacher_scores[name]:.2f} |"
        if name in facts.teacher_scores
        else f"| {name} | {100 * value:.2f} | |"
        for name, value in facts.scores.items()
    ]
    return "\n".join(["## Scores (× 100)\n", "| | this model | teacher |", "|---|---|---|", *lines]) + "\n"


def _prompt(text: str) -> str:
    """A prompt as code, in one line."""
    return f"`{text}`".replace("\n", "\\n") if text else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
