"""A sentence encoder of a few thousand numbers, made without any download."""

import dataclasses
import json

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from jaxdistill.encoders.architecture import Architecture, Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.sentence import param_shapes
from jaxdistill.models.checkpoints import static
from jaxdistill.models.checkpoints.model import SentenceModel

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def tiny_tokenizer(folder, *, max_length=16):
    """A WordPiece tokenizer that spells every word letter by letter; its files are in `folder`."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)] + list("0123456789.,?!")
    vocabulary = [*SPECIAL.values(), *letters, *(f"##{letter}" for letter in letters)]
    vocabulary += ["the", "cat", "dog", "sleeps", "rain"]
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(list(SPECIAL.values()))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": max_length, **SPECIAL}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer.enable_truncation(max_length)
    return tokenizer


def tiny_model(folder, *, pooling="mean", head=None, seed=0, scale=10.0, max_length=16, layers=1):
    """A randomly initialised BERT; `scale` spreads its weights so that sentences differ."""
    tokenizer = tiny_tokenizer(folder, max_length=max_length)
    sizes = dict(hidden_size=16, layers=layers, heads=2, intermediate_size=32, max_positions=32, token_types=2)
    definition = EncoderDefinition(
        architecture=Architecture(family="bert", vocab_size=tokenizer.get_vocab_size(), **sizes),
        pooling=Pooling.parse(pooling),
        dense=(Dense(in_features=16, out_features=head),) if head else (),
    )
    params = random_params(definition, seed)
    params = {path: array * (scale if path.endswith("kernel") else 1.0) for path, array in params.items()}
    return SentenceModel(
        definition=definition,
        params=params,
        tokenizer=tokenizer,
        max_length=max_length,
        prompts={"query": "the cat "},
        default_prompt=None,
        source="tiny",
        tokenizer_folder=folder,
    )


def random_params(definition, seed):
    """Normally distributed parameters, the scales of norms around 1."""
    random = np.random.default_rng(seed)
    drawn = {path: 0.02 * random.standard_normal(shape) for path, shape in param_shapes(definition).items()}
    return {path: np.float32(array + path.endswith("scale")) for path, array in drawn.items()}


def word_table(model):
    """The word embeddings of a BERT-like model as a static encoder."""
    tokenizer = static.without_special_tokens(model.tokenizer)
    tokenizer.enable_truncation(static.MAX_LENGTH)
    rows = np.asarray(model.params["transformer/embeddings/word/embedding"], np.float32)
    architecture = static.architecture_of(rows, static.dropped_id(tokenizer))
    definition = dataclasses.replace(model.definition, architecture=architecture, pooling=static.POOLING)
    return dataclasses.replace(
        model, definition=definition, params={static.TABLE: rows}, tokenizer=tokenizer, max_length=static.MAX_LENGTH,
        unread_pooler={},
    )  # fmt: skip
