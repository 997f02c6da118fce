"""Which options a resumed run may change."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.core import InputError

WITHOUT_EFFECT = (
    "run.log_every", "run.save_every", "run.keep", "run.remat", "run.model_axis", "run.sharding", "run.slices", "run.profile",
    "run.export_to", "run.license", "run.wandb", "run.paper", "data.cache_folder", "data.max_line_bytes", "data.max_unknown",
)  # fmt: skip
"""Options that do not change the student, except for rounding."""
EXTENSIONS = (
    *WITHOUT_EFFECT, "run.steps", "run.epochs", "evals.every", "evals.patience", "evals.patience_epochs", "evals.average",
    "evals.sts", "student.export_prompt",
)  # fmt: skip
"""Options that may change when a run is resumed: they do not affect the steps already trained."""


def refuse_other_training(before: Mapping[str, Any], now: Mapping[str, Any], *, workdir: str) -> None:
    """Raises `InputError` with the differences if the workdir belongs to a run with incompatible options."""
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key) and key not in EXTENSIONS]
    if changed:
        shown = "; ".join(f"{key}: {before.get(key)!r} there, {now.get(key)!r} now" for key in changed)
        raise InputError(
            f"{workdir} was made with another config ({shown}). Use the same options or another --workdir."
        )
