"""Families of checkpoints: one file each, named by the `model_type` of `config.json`, with `-` written as `_`.

A family's file has two functions: `architecture(config)` reads a `config.json`, `config(architecture)` writes a plain encoder's.
The table `NAMES` maps our layers to the checkpoint's (see `tensor_names`); the tuple `PREFIXES` lists prefixes that task
models add to these names. If the family's cross-encoders can be read, `PAIR_HEAD` names the tensors of their head.

These heads follow Hugging Face's `...ForSequenceClassification` with one label: BERT has a linear layer on its pooler; others
have a dense layer, an activation and a linear layer. In training, dropout at the hidden states' rate precedes each of these
layers (DistilBERT's own rate is 0.2, before the last layer only).
"""

import dataclasses
import importlib
import pkgutil
from types import ModuleType

from jaxdistill.core import InputError, plugins
from jaxdistill.encoders.architecture import Architecture, Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.hugging_face import PairHead, Part, tensor_names

SAME = {"camembert": "roberta", "xlm-roberta": "roberta", "new": "gte", "qwen2": "qwen3", "eurobert": "llama"}
"""Maps a `model_type` to the one whose file reads it; checkpoints of `new` are GTE's with Python code, which is never run."""


def family(model_type: str) -> ModuleType:
    """The module that reads and writes checkpoints of `model_type`; raises `InputError` for an unknown one."""
    if model_type in plugins.families:
        return plugins.families[model_type]
    if str(model_type).replace("_", "-") not in model_types():
        raise InputError(
            f"model_type {model_type!r:.80} is not a family that can be read; known are {', '.join(model_types())}. "
            "As a teacher it may run on torch: the kind sentence_transformers, or sentence_transformers:MODEL as a cross-encoder."
        )
    return importlib.import_module(f"{__name__}.{SAME.get(model_type, model_type).replace('-', '_')}")


def model_types() -> list[str]:
    """The model types that can be read, sorted, with `_` written as `-`."""
    files = {module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)}
    return sorted(files | SAME.keys() | plugins.families.keys())


def pair_head(model_type: str) -> PairHead:
    """The head of a family's cross-encoders; raises `InputError` if they cannot be read."""
    head = getattr(family(model_type), "PAIR_HEAD", None)
    if head is None:
        raise InputError(f"cross-encoders of the family {model_type} cannot be read.")
    return head


def cross_definition(architecture: Architecture) -> EncoderDefinition:
    """The definition of a cross-encoder: `architecture` and its family's head, whose hidden layer may be BERT's pooler."""
    head = pair_head(architecture.family)
    width = architecture.hidden_size
    hidden = Dense(in_features=width, out_features=width, activation=head.activation, drops=head.drops_input)
    output = Dense(in_features=width, out_features=1, activation="identity", drops=True)
    return EncoderDefinition(
        architecture=dataclasses.replace(architecture, pooler=not head.hidden),
        pooling=Pooling(tokens="cls" if head.hidden else "pooler"),
        dense=(hidden, output) if head.hidden else (output,),
        reads_pairs=True,
    )


def head_names(architecture: Architecture) -> dict[str, str | Part]:
    """Maps a cross-encoder head's parameters to the checkpoint's tensor names."""
    head = pair_head(architecture.family)
    names = [name for name in (head.hidden, head.output) if name]
    table = {f"dense/{index}": name for index, name in enumerate(names)}
    return tensor_names(table, [f"{module}/{leaf}" for module in table for leaf in ("kernel", "bias")])
