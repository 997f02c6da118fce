"""A fresh student: randomly initialised, with the family of a model, and its tokenizer or a new one."""

import dataclasses

from jaxdistill.core import Count, CountOrNone
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.from_text import new_tokenizer
from jaxdistill.models.student import Headed, Layered, Prompted, StudentInputs, Trimming
from jaxdistill.models.surgery import resizing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fresh(Layered, Prompted, Trimming, Headed):
    """A randomly initialised sentence encoder with the family and tokenizer of `model`."""

    kind: str = "fresh"
    width: Count = 384
    """Width of the layers."""
    depth: Count = 3
    """Number of layers."""
    heads: CountOrNone = 0
    """Attention heads per layer; 0: one per 64 of `width`."""
    intermediate: CountOrNone = 0
    """Width of the feed-forward networks; 0: four times `width`."""
    vocabulary: CountOrNone = 0
    """Above 0: the encoder is a BERT with a new WordPiece tokenizer of this many entries, trained on the columns of
    `data.text` that the student reads. It lower-cases text and keeps accents. For text without spaces (Thai), it splits
    long runs of characters and isolates rare characters. 0: the tokenizer of `model`."""

    computes = False

    def make(self, inputs: StudentInputs) -> SentenceModel:
        context = inputs.context
        model = self.trimmed(context, self.with_prompts(context, self.loaded(inputs)))
        model = resizing.fresh(
            model, inputs.key("body"), width=self.width, depth=self.depth, heads=self.heads,
            intermediate=self.intermediate,
            tokenizer_folder=new_tokenizer(context, self.vocabulary) if self.vocabulary else None,
        )  # fmt: skip
        return self.with_head(inputs, self.compact(inputs, model))
