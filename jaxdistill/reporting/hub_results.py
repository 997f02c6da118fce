"""Writes scores on public sets as model hubs read them: the card's `model-index`, and `.eval_results/sts.yaml` for leaderboards.

The hub calls the first form legacy and takes new scores from the second (https://huggingface.co/docs/hub/eval-results), which
serves only sets with a leaderboard.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from jaxdistill.evals import sts
from jaxdistill.versions import versions

RESULTS_FILE = ".eval_results/sts.yaml"
SET_OF_SCORE: Mapping[str, str] = {name: name for name in sts.SETS} | {sts.DEV_METRIC: "sts-b-dev"}
"""Maps names of scores to the sets that they are of."""
TITLES = {"sts-b": "STS-B", "sts-b-dev": "STS-B dev"}
TASKS: Mapping[str, str] = {name: name.upper() for name in sts.SUBSETS} | {"sts-b": "STSBenchmark"}
"""Maps sets to the tasks of MTEB that score the same pairs; MTEB's SICK-R has others."""
NOTE = (
    "Spearman correlation of {alike} and gold score, all pairs of the set together, on the file {file} of a data folder, whose "
    "text may be prepared otherwise than the hub's (SentEval's is lower-cased and tokenised); scored by jaxdistill {version}"
)
"""How a score was made. Trainings score files of a data folder alone, never the hub's copies."""


def model_index(name: str, scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """The `model-index` of a card; empty if no score is of a public set.

    Args:
      name: name of the model.
      scores: maps names of scores to values in [-1, 1]; the index has them × 100.
    """
    results = [
        {
            "task": {"type": "sentence-similarity", "name": "Semantic Textual Similarity"},
            "dataset": {
                "type": sts.SETS[known].hub,
                "name": TITLES.get(known, known.upper()),
                "split": sts.SETS[known].split,
            },
            "metrics": [{"type": "spearmanr", "name": "Spearman × 100", "value": value}],
        }
        for known, value in _of_public_sets(scores).items()
    ]
    return [{"name": name, "results": results}] if results else []


def write_results(folder: Path, scores: Mapping[str, float], *, reads_pairs: bool) -> None:
    """Writes `.eval_results/sts.yaml` into a folder, if a score is of a set with a leaderboard.

    Args:
      scores: as of `model_index`.
      reads_pairs: whether the model is a cross-encoder, which scores pairs without cosine similarity.
    """
    made = {"alike": "the model's score" if reads_pairs else "cosine similarity", "version": versions()["jaxdistill"]}
    # No date: the hub then shows the date of the commit, and an export made again has the same bytes.
    results = [
        {
            "dataset": {"id": sts.SETS[known].hub, "task_id": TASKS[known]},
            "value": value,
            "notes": NOTE.format(file=sts.SETS[known].file, **made),
        }
        for known, value in _of_public_sets(scores).items()
        if known in TASKS
    ]
    if results:
        path = folder / RESULTS_FILE
        path.parent.mkdir()
        path.write_text(yaml.safe_dump(results, sort_keys=False), encoding="utf-8")


def _of_public_sets(scores: Mapping[str, float]) -> dict[str, float]:
    """Scores × 100 by set, rounded as in the card's table; without what is no number."""
    known = {SET_OF_SCORE[name]: value for name, value in scores.items() if name in SET_OF_SCORE}
    return {name: round(100 * value, 2) for name, value in known.items() if math.isfinite(value)}
