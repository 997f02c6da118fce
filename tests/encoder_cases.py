"""Small random encoders of every family, made by transformers, one of this package, and tokens for them."""

import json
from functools import partial
from pathlib import Path
from string import ascii_lowercase, digits

import jax
import numpy as np
import tokenizers
import torch
import transformers

from jaxdistill.core import Tokens
from jaxdistill.data import packing
from jaxdistill.encoders.architecture import Architecture, Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.sentence import vectors_and_states

from tiny_models import random_params

VOCAB_SIZE = 99
SIZES = dict(vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=48)
BERT_LIKE = SIZES | dict(max_position_embeddings=70)
IDS = dict(pad_token_id=0, bos_token_id=2, eos_token_id=3)
DECODER = SIZES | IDS | dict(max_position_embeddings=70, num_hidden_layers=3)
WINDOWS = dict(use_sliding_window=True, sliding_window=5, max_window_layers=2)
LONGER = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, original_max_position_embeddings=100)
LONGER |= dict(low_freq_factor=1.5, high_freq_factor=4.0)
DISTILBERT = dict(vocab_size=VOCAB_SIZE, dim=32, n_layers=4, n_heads=4, hidden_dim=48, max_position_embeddings=70)
LOCAL_WHOLE_LOCAL = dict(layer_types=["sliding_attention", "full_attention", "sliding_attention"])


def config_of(kind: str, base: dict, **changes) -> tuple:
    return getattr(transformers, f"{kind}Config"), base | changes


CONFIGS = {
    "bert": config_of("Bert", BERT_LIKE),
    "roberta": config_of("Roberta", BERT_LIKE, type_vocab_size=1, layer_norm_eps=1e-5),
    "xlm-roberta": config_of("XLMRoberta", BERT_LIKE, type_vocab_size=1, hidden_act="gelu_new"),
    "camembert": config_of("Camembert", BERT_LIKE, type_vocab_size=1, pad_token_id=0),
    "distilbert": config_of("DistilBert", DISTILBERT),
    "mpnet": config_of("MPNet", BERT_LIKE, layer_norm_eps=1e-5),
    "mpnet:odd": config_of("MPNet", BERT_LIKE, pad_token_id=0, relative_attention_num_buckets=40),
    "electra": config_of("Electra", BERT_LIKE, embedding_size=16),
    # Windows are shorter than the texts of `random_sequences`, and heads wider than width / heads, where a family has these.
    "modernbert": config_of(
        "ModernBert", DECODER, cls_token_id=2, sep_token_id=3, norm_eps=1e-4, local_attention=8, layer_types=None,
        global_attn_every_n_layers=2,
    ),
    "llama": config_of("Llama", DECODER, num_key_value_heads=2, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-4),
    "llama:longer": config_of("Llama", DECODER, rope_parameters=LONGER),
    "mistral": config_of("Mistral", DECODER, num_key_value_heads=1, sliding_window=6),
    "mistral:both-sides": config_of("Mistral", DECODER, num_key_value_heads=1, sliding_window=5, is_causal=False),
    "eurobert": config_of("EuroBert", DECODER, head_dim=12, rms_norm_eps=1e-4),
    "qwen2": config_of("Qwen2", DECODER, num_key_value_heads=2, **WINDOWS),
    "qwen2:both-sides": config_of("Qwen2", DECODER, num_key_value_heads=1, is_causal=False),
    "qwen3": config_of("Qwen3", DECODER, num_key_value_heads=2, head_dim=12, rms_norm_eps=1e-4, **WINDOWS),
    "qwen3:both-sides": config_of("Qwen3", DECODER, num_key_value_heads=4, head_dim=8, is_causal=False, **WINDOWS),
    "gemma3-text": config_of(
        "Gemma3Text", DECODER, num_key_value_heads=1, head_dim=12, sliding_window=6, sliding_window_pattern=2
    ),
    "gemma3-text:both-sides": config_of(
        "Gemma3Text", DECODER, num_key_value_heads=2, head_dim=12, sliding_window=6, use_bidirectional_attention=True,
        query_pre_attn_scalar=20, **LOCAL_WHOLE_LOCAL,
    ),
    "gemma3-text:not-causal": config_of(
        "Gemma3Text", DECODER, num_key_value_heads=1, head_dim=12, sliding_window=5, sliding_window_pattern=2,
        is_causal=False,
    ),
    "nomic-bert": config_of("NomicBert", DECODER),
    "gte": config_of("Gte", DECODER, type_vocab_size=1),
    "albert": config_of("Albert", DECODER, embedding_size=16),
    "albert:wide": config_of("Albert", DECODER, embedding_size=32),
}  # fmt: skip
"""Families, some in two forms."""
GRAPHS = ("bert", "electra", "mpnet", "albert", "modernbert", "mistral", "qwen3", "gemma3-text:both-sides")
"""One family for each kind of graph; what a family names otherwise is compared where its files are read and written."""
SPECIAL_IDS = {"[PAD]": 0, "[CLS]": 2, "[SEP]": 3, "[UNK]": 4, "[MASK]": 5}


def write_tokenizer(folder: Path, *, extra_words: int = 0) -> None:
    """A tokenizer of words w0, w1, ..., which has the encoders' vocabulary size and `extra_words` more."""
    count = VOCAB_SIZE + extra_words - 6
    vocabulary = SPECIAL_IDS | {"[unused]": 1} | {f"w{index}": 6 + index for index in range(count)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    _write_tokenizer(folder, tokenizer)


def write_letters(folder: Path) -> None:
    """A tokenizer of bytes, for families whose class transformers builds anew around the vocabulary, whatever its kind."""
    vocabulary = (
        SPECIAL_IDS
        | {"[unused]": 1}
        | {letter: 6 + index for index, letter in enumerate("Ġ" + ascii_lowercase + digits)}
    )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    _write_tokenizer(folder, tokenizer)


def _write_tokenizer(folder: Path, tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(list(SPECIAL_IDS))
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(20)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = dict(tokenizer_class="PreTrainedTokenizerFast", model_max_length=40, pad_token="[PAD]", cls_token="[CLS]")
    (folder / "tokenizer_config.json").write_text(json.dumps(config | dict(sep_token="[SEP]", unk_token="[UNK]")))


def torch_encoder(family: str, seed: int = 0, **changes) -> torch.nn.Module:
    """A random encoder whose weights are all large enough to matter, biases and norms too."""
    kind, options = CONFIGS[family]
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(kind(**(options | changes))).eval()
    _randomise(model)
    return model


def _randomise(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith("weight") and "Gemma" not in type(model).__name__
            parameter.normal_(1.0 if is_scale else 0.0, 0.2)


def write_config(folder: Path, family: str) -> None:
    """The `config.json` alone."""
    kind, options = CONFIGS[family]
    kind(**options).save_pretrained(folder)


def write_encoder(folder: Path, family: str, **changes) -> torch.nn.Module:
    """Writes a plain transformers folder with a tokenizer; returns the torch model."""
    model = torch_encoder(family, **changes)
    model.save_pretrained(folder)
    (write_letters if family.startswith("qwen2") else write_tokenizer)(folder)
    return model


def write_cross_encoder(folder: Path, family: str, *, num_labels: int = 1) -> torch.nn.Module:
    """The same with a head for pairs of sentences, and a tokenizer that tells the two apart if the family does."""
    kind, options = CONFIGS[family]
    torch.manual_seed(0)
    config = kind(**options, num_labels=num_labels)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    _randomise(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    if getattr(model.config, "type_vocab_size", 0) == 2:
        edit_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    return model


def edit_json(path: Path, **changes) -> None:
    """Changes values in a file of a model; "removed" takes a key out."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "removed"}))


def loading_report(folder: Path, kind=transformers.AutoModel) -> list[str]:
    """Names of tensors that transformers misses in a folder, does not expect, or expects in another shape."""
    _, report = kind.from_pretrained(folder, output_loading_info=True)
    return [name for key in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in report[key]]


def random_sequences(count: int = 11, seed: int = 0, longest: int = 30) -> list[np.ndarray]:
    """Token ids of sentences of many lengths, the longest among them; none is a special id."""
    rng = np.random.default_rng(seed)
    lengths = [longest, 1, *rng.integers(2, longest, count - 2)]
    return [rng.integers(6, VOCAB_SIZE, length) for length in lengths]


def padded(sequences: list[np.ndarray], length: int = 32) -> Tokens:
    """One sentence a group."""
    return packed(sequences, groups=len(sequences), rows=1, length=length)


def packed(sequences: list[np.ndarray], groups: int, rows: int, length: int = 32) -> Tokens:
    """Sentences one behind the other, in order, an equal number in each group."""
    per_group = len(sequences) // groups
    ids, position = np.zeros((2, groups, rows, length), np.int32)
    owner, first = np.full_like(ids, -1), np.zeros((groups, per_group), np.int32)
    for index, sequence in enumerate(sequences):
        group, number = divmod(index, per_group)
        if not number:
            slot = 0
        if slot % length + len(sequence) > length:
            slot = (slot // length + 1) * length
        row, column = divmod(slot, length)
        region = (group, row, slice(column, column + len(sequence)))
        ids[region], owner[region], position[region] = sequence, number, np.arange(len(sequence))
        first[group, number] = slot
        slot += len(sequence)
    return Tokens(ids, owner, position, first)


def divided(sequences: list[np.ndarray], groups: int, length: int = 32, parts: int = 2) -> Tokens:
    """Sentences packed into whole rows and divided ones."""
    sentences = packing.ragged([sequence.astype(np.int32) for sequence in sequences])
    lengths = sentences.lengths.reshape(groups, -1)
    rows, halved = packing.rows_needed(lengths, length, parts)
    shape = packing.Shape(rows, length, halved, parts)
    tokens = packing.filled(sentences, packing.first_slots(lengths, shape), shape, pad_id=0)
    assert tokens.parts is not None and rows > halved, "rows of both kinds"
    return tokens


def torch_states(model: torch.nn.Module, sequence: np.ndarray) -> torch.Tensor:
    """Hidden states [layers + 1, tokens, width] of one sentence without padding."""
    with torch.no_grad():
        output = model(input_ids=torch.as_tensor(sequence)[None], output_hidden_states=True)
    return torch.cat(output.hidden_states)


def hidden_states(definition, params, tokens):
    """Token vectors of the embeddings and of every layer, first to last."""
    return vectors_and_states(definition, params, tokens)[1]


@partial(jax.jit, static_argnums=0, static_argnames=("compute_dtype", "remat"))
def jitted_embed(definition, params, tokens, **options):
    return vectors_and_states(definition, params, tokens, **options)[0]


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def small_encoder():
    """A definition with everything switched on, and its parameters."""
    architecture = Architecture(
        family="mpnet", vocab_size=99, hidden_size=16, layers=3, heads=2, intermediate_size=24, max_positions=40,
        embedding_size=8, token_types=2, relative_buckets=32, pooler=True,
    )  # fmt: skip
    dense = (Dense(in_features=16, out_features=12), Dense(in_features=12, out_features=8, activation="identity"))
    mean = Pooling(tokens="mean")
    definition = EncoderDefinition(architecture=architecture, pooling=mean, dense=dense)
    return definition, random_params(definition, seed=0)


def with_pooling(definition, pooling):
    pooling = Pooling.parse(pooling)
    return EncoderDefinition(architecture=definition.architecture, pooling=pooling)
