"""A teacher of one or several models that score the text's sentence pairs."""

import dataclasses

from jaxdistill.core import InputError
from jaxdistill.core.paths import cache_folder
from jaxdistill.data import targets
from jaxdistill.models import labelling
from jaxdistill.models.checkpoints.model import SentenceModel, labels_of
from jaxdistill.models.model_text import check_reads
from jaxdistill.models.teacher import Encoder, ModelContext, TargetInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels(Encoder):
    """The mean score that one or several models give to each pair of the columns `text` and `second`, or to a query and each
    of its candidates (`listwise`). Scores are computed once and cached on disk."""

    kind: str = "labels"

    scores_pairs = of_rows = True

    def labellers(self, context: ModelContext) -> list[SentenceModel]:
        """The models that score the pairs. Cross-encoders keep their form."""
        for one in self.each():
            if one.pooling and labels_of(context.located(one.model)):
                raise InputError(
                    f"teacher.pooling={one.pooling!r} would make a sentence encoder of {one.model}, which is a cross-encoder or "
                    "another classifier; leave it empty (--config.teacher.pooling=)."
                )
        return [one.read(context, frozen=False) for one in self.each()]

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        columns = inputs.objective.scored
        for model in inputs.labellers:
            check_reads(inputs.data, model, columns, inputs.text)
        scores = labelling.labels(
            inputs.labellers, inputs.text, cache_folder(inputs.data.cache_folder) / "labels", columns=columns,
            logits=inputs.objective.logits, compute_dtype=inputs.compute_dtype, progress=inputs.progress,
        )  # fmt: skip
        return (scores,)
