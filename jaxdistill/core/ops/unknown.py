"""The unknown token of a tokenizer."""

import json

from tokenizers import Tokenizer


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Id of the tokenizer's unknown token; None if it has none (byte-level BPE)."""
    token = getattr(tokenizer.model, "unk_token", None)
    if token is not None:
        return tokenizer.token_to_id(token)
    return json.loads(tokenizer.to_str())["model"].get("unk_id")
