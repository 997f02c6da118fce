"""InfoNCE on labelled pairs, as MultipleNegativesRankingLoss of sentence-transformers; no teacher.

    python -m jaxdistill.main --config=configs/contrastive.py:PRESET --workdir=runs/NAME --config.data.text=FILE.tsv

minilm-l3       3 layers of all-MiniLM-L6-v2 on a file with the columns text, positive
minilm-l3-sup   the same with hard negatives: text, positive, negative
quickstart      the default: on text that comes with the project, offline, in a minute or two
tiny            a one-minute smoke test from text to export; says nothing about quality

For more hard negatives, add columns and views; for the symmetric loss, add a direction:
--config.data.columns='(("text","text"),("positive","positive"),("a","negative_1"),("b","negative_2"))'
--config.objective.views='("text","positive","a","b")'
--config.objective.directions='("query_to_doc","doc_to_query")' --config.objective.partition_mode=per_direction
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import chosen
from jaxdistill.config.shipped.simcse import presets_of_pairs

PRESETS = presets_of_pairs(
    kind="contrastive", temperature=0.05, learned_scale="none", directions=("query_to_doc",), partition_mode="joint"
)


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("contrastive", PRESETS, preset)
