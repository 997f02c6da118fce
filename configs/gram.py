"""Jasper's and Luxical's losses: match the similarities inside a batch to the teacher's.

    python -m jaxdistill.main --config=configs/gram.py:PRESET --workdir=runs/NAME

jasper      3 layers of all-MiniLM-L6-v2 on your text (--config.data.text=PATH_OR_GLOB), by cosine, pair similarity and
            triplet order with Jasper's weights (Zhang et al., 2024, arXiv 2412.19048)
luxical     the same student by the divergence of Gram matrices alone, at temperature 3 (Merrick et al., 2025, arXiv
            2512.09015)
quickstart  the default: on text that comes with the project, offline, in a minute or two
tiny        a one-minute smoke test of jasper from text to export; says nothing about quality

Both papers train other students on other text. Jasper also trains nested widths (`--config.student.dims`). Luxical uses
batches of 12,288; `luxical` uses 512. Without the cosine term, student and teacher may differ in width. docs/results.md
has a run on gte-small.
"""

from ml_collections import ConfigDict

from jaxdistill.config.shipped._presets import chosen, embedded, minilm_l3


def gram(**changed) -> dict:
    """The objective with its options: Jasper's by default."""
    defaults = dict(
        kind="gram",
        cosine_weight=10.0,
        pair_weight=200.0,
        triplet_weight=20.0,
        triplet_margin=0.015,
        kl_weight=0.0,
        kl_temperature=3.0,
        spread_weight=0.0,
        views=("text",),
    )
    return defaults | changed


def luxical() -> ConfigDict:
    config = minilm_l3(**gram(cosine_weight=0.0, pair_weight=0.0, triplet_weight=0.0, kl_weight=1.0))
    config.data.batch_size = 512
    config.optimizer.eps = 1e-8  # differences of similarities, like differences of vectors, have small gradients
    return config


PRESETS = {
    "jasper": lambda: minilm_l3(**gram()),
    "luxical": luxical,
    **embedded(lambda: minilm_l3(**gram())),
}


def get_config(preset: str = "quickstart") -> ConfigDict:
    """The preset's options, all of them spelled out."""
    return chosen("gram", PRESETS, preset)
