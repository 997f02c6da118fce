"""A fresh student: randomly initialised, with the family of a model, and its tokenizer or a new one."""

import dataclasses

from jaxdistill.core import Count, CountOrNone
from jaxdistill.core.paths import cache_folder
from jaxdistill.data.text import split_specs
from jaxdistill.data.wordpiece import train_wordpiece
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.checkpoints.tokenizer import read_tokenizer
from jaxdistill.models.model_text import columns_read
from jaxdistill.models.student import Headed, Prompted, StudentInputs
from jaxdistill.models.students.layered import Layered


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fresh(Layered, Prompted, Headed):
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

    def make(self, inputs: StudentInputs) -> SentenceModel:
        template = self.loaded(inputs)
        if self.vocabulary:
            template = self._with_vocabulary(inputs, template)
        sizes = dict(width=self.width, depth=self.depth, heads=self.heads, intermediate=self.intermediate)
        model = surgery.fresh(template, inputs.key("body"), **sizes)
        return self.with_head(inputs, self.compact(inputs, model))

    def _with_vocabulary(self, inputs: StudentInputs, model: SentenceModel) -> SentenceModel:
        """The model as a BERT with a new tokenizer, trained on the text. It keeps the old weights, which `surgery.fresh` replaces."""
        data = inputs.context.data
        columns = columns_read(data, inputs.context.student_views)
        folder = train_wordpiece(
            split_specs(data.text), entries=self.vocabulary, cache_folder=cache_folder(data.cache_folder), columns=columns
        )  # fmt: skip
        tokenizer = read_tokenizer(folder)
        tokenizer.enable_truncation(model.max_length)
        entries = tokenizer.get_vocab_size()
        changes = dict(vocab_size=entries, pad_id=tokenizer.token_to_id("[PAD]"), token_types=2)  # as in BERT
        architecture = surgery.plain_architecture(model.definition.architecture, "bert", **changes)
        return dataclasses.replace(
            model, definition=dataclasses.replace(model.definition, architecture=architecture), tokenizer=tokenizer,
            tokenizer_folder=folder, source=f"its own with {entries:,} entries",  # `surgery.fresh` puts it after "tokenizer of"
        )  # fmt: skip
