"""GIST (Solatorio, 2024): contrasts labelled pairs, and masks the negatives that a guide model finds to be false.

    python -m jaxdistill.main --config=configs/gist.py:PRESET --workdir=runs/NAME --config.data.text=FILE.tsv

minilm-l3       3 layers of all-MiniLM-L6-v2, which is also the guide, on a file with the columns text, positive. For
                another guide, of any width: --config.teacher.model=MODEL
minilm-l3-sup   the same with hard negatives: text, positive, negative
quickstart      the default: on text that comes with the project, offline, in a minute or two
tiny            a one-minute smoke test from text to export; says nothing about quality

docs/results.md has a run on gte-small.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import chosen
from jaxdistill.config.shipped.simcse import presets_of_pairs

PRESETS = presets_of_pairs(kind="gist", temperature=0.01, margin=0.0, candidates="all")


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("gist", PRESETS, preset)
