"""Translates sentences with a local sequence-to-sequence model of transformers, which needs PyTorch."""

import importlib.util
from collections.abc import Sequence

from jaxdistill.bars import Advance
from jaxdistill.core import InputError

EXTRA = "pip install 'jaxdistill[augment]'"


class Translator:
    """Translates sentences by beam search, which is deterministic."""

    def __init__(
        self,
        folder: str,
        *,
        source_language: str = "",
        target_language: str = "",
        prefix: str = "",
        beams: int,
        max_length: int,
        batch_size: int,
    ):
        """
        Args:
          folder: a model that `AutoModelForSeq2SeqLM` loads, with its tokenizer.
          source_language: language code of a multilingual model (NLLB, M2M100, mBART), such as `eng_Latn`; otherwise empty.
          target_language: likewise.
          prefix: prepended to each sentence, such as T5's `translate English to German: ` or Marian's `>>deu<< `.
          beams: width of the beam search; 1 is greedy.
          max_length: maximum tokens of a sentence, in both languages.
          batch_size: number of sentences translated together.
        """
        self.tokenizer, self.model = _loaded(folder)
        self.prefix, self.batch_size = prefix, batch_size
        positions = getattr(self.model.config, "max_position_embeddings", max_length)
        self.max_length = min(max_length, positions, self.tokenizer.model_max_length)
        self.options = {"num_beams": beams, "max_new_tokens": self.max_length, "do_sample": False}
        many = hasattr(self.tokenizer, "src_lang")
        if many != bool(source_language) or many != bool(target_language):
            needs = "needs" if many else "has no use for"
            raise InputError(f"{folder}: this model {needs} --source_language and --target_language.")
        if many:
            self._language_id(source_language)
            self.tokenizer.src_lang = source_language
            self.options["forced_bos_token_id"] = self._language_id(target_language)

    def __call__(self, texts: Sequence[str], advance: Advance = lambda count: None) -> list[str]:
        """The translations; blank sentences stay unchanged. Calls `advance` with numbers of finished sentences."""
        results = list(texts)
        rows = sorted((row for row, text in enumerate(texts) if text.strip()), key=lambda row: -len(texts[row]))
        advance(len(texts) - len(rows))
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            for row, translation in zip(batch, self._translated([texts[row] for row in batch]), strict=True):
                results[row] = translation.strip()
            advance(len(batch))
        return results

    def _translated(self, texts: Sequence[str]) -> list[str]:
        encoded = self.tokenizer(
            [self.prefix + text for text in texts],
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=self.max_length,
        ).to(self.model.device)
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        return self.tokenizer.batch_decode(self.model.generate(**inputs, **self.options), skip_special_tokens=True)

    def _language_id(self, code: str) -> int:
        """Id of a language's token; M2M100's tokens differ from the language codes."""
        try:
            if hasattr(self.tokenizer, "get_lang_id"):
                return self.tokenizer.get_lang_id(code)
            token_id = self.tokenizer.convert_tokens_to_ids(code)
        except KeyError:
            token_id = None
        if token_id in (None, self.tokenizer.unk_token_id):
            raise InputError(f"{self.tokenizer.name_or_path}: the tokenizer does not know the language {code!r}.")
        return token_id


def _loaded(folder: str):
    """Tokenizer and model, on a GPU if torch sees one."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"--method=translate needs PyTorch, which is not installed; run: {EXTRA}")
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers.utils import logging
    from transformers.utils.import_utils import is_torch_cuda_available

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # each of the libraries below has its own
        reason = " ".join(str(error).split())[:200]
        extra = f" (for what is not installed: {EXTRA})" if isinstance(error, ImportError) else ""
        raise InputError(f"{folder} cannot be loaded as a translation model: {reason}{extra}") from None
    return tokenizer, model.eval().to("cuda" if is_torch_cuda_available() else "cpu")
