"""The training text in the tokens of a model."""

from jaxdistill.config import Data
from jaxdistill.data import tokenize
from jaxdistill.data.sources import split_specs
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.paths import cache_folder


def tokenised(data: Data, model: SentenceModel, *, max_length: int, progress: bool) -> tokenize.TokenStore:
    """The text in the tokens of a model."""
    return tokenize.build(
        split_specs(data.text),
        tokenizer=model.tokenizer,
        max_length=max_length,
        cache_folder=cache_folder(data.cache_folder) / "tokens",
        columns=dict(data.columns) or ("text",),
        prompt=model.prompt,
        dedupe=data.dedupe,
        exclude=split_specs(data.exclude),
        weights=data.weights,
        line_bytes=data.max_line_bytes,
        progress=progress,
    )
