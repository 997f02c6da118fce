"""Finds a model's files: a folder, also in a bucket, `package:NAME/PATH` inside an installed package, or a hub name."""

import os
import textwrap
from pathlib import Path

from jaxdistill.core import InputError, error_line
from jaxdistill.files import buckets, is_remote
from jaxdistill.paths import fetched_folder, in_package

HUB_FILES = ("README.md", "*.json", "*.txt", "*.model", "*.safetensors", "pytorch_model*.bin")
HUB_FILES += ("*/config.json", "*/model.safetensors", "*/pytorch_model.bin", "*/tokenizer.json")
"""The model card, configuration, tokenizer and weights, also of a sentence-transformers model's modules; no code."""
HUB_IGNORED = ("onnx/*", "openvino/*", "tf_model*", "flax_model*", "rust_model*")


def locate(spec: str) -> Path:
    """The folder with the files of the model `spec`; files in buckets and on the hub are downloaded."""
    if spec.startswith("package:"):
        folder = in_package(spec)
        if not folder.is_dir():
            raise InputError(f"model {spec} is not a folder of that package.")
        return folder
    if is_remote(spec):
        return buckets.fetched_folder(spec, fetched_folder(), HUB_FILES)
    folder = Path(os.path.expanduser(spec))
    if spec and folder.is_dir():
        return folder
    if folder.is_file():
        raise InputError(f"model {spec} is a file; give its folder.")
    if not spec or spec.startswith((".", "/", "~")) or spec.count("/") > 1 or spec.endswith("/"):
        raise InputError(
            f"model folder {spec!r} does not exist; give a folder, package:NAME/PATH, or a hub name ORG/MODEL."
        )
    return _from_hub(spec)


def _from_hub(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.snapshot_download(name, allow_patterns=[*HUB_FILES], ignore_patterns=[*HUB_IGNORED])
        )
    except Exception as error:  # every library below it raises its own error without a network
        reason = textwrap.shorten(error_line(error), 200, placeholder=" ...")
        raise InputError(
            f"model {name!r} is not a local folder and cannot be downloaded from the hub ({type(error).__name__}: {reason});"
            " give a local folder, or set HF_HOME to a cache that holds it, with HF_HUB_OFFLINE=1 without network."
        ) from None
