"""An encoder as a function of padded token ids of any batch size and length, for forms that JAX traces."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Float, Integer

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import Array, Params, Tokens
from jaxdistill.encoders.sentence import vectors_and_states


def function_of(model: SentenceModel) -> Callable[..., dict[str, Array]]:
    """A function of `(input_ids, attention_mask[, token_type_ids])`, int32 [b, l], that returns `running.outputs` by name.

    Linear layers after pooling are part of `last_hidden_state`, as in ONNX.
    """
    definition, params = model.definition, {path: jnp.asarray(value) for path, value in model.params.items()}

    def apply(
        input_ids: Integer[Array, "b l"],
        attention_mask: Integer[Array, "b l"],
        token_type_ids: Integer[Array, "b l"] | None = None,
    ) -> dict[str, Array]:
        tokens = Tokens(
            ids=input_ids[:, None],
            owner=jnp.where(attention_mask > 0, 0, -1)[:, None],
            position=jnp.maximum(jnp.cumsum(attention_mask, axis=-1) - 1, 0)[:, None],
            first=jnp.argmax(attention_mask, axis=-1).astype(jnp.int32)[:, None],
            types=None if token_type_ids is None else token_type_ids[:, None],
        )
        vectors, states = vectors_and_states(definition, params, tokens)
        if definition.reads_pairs:
            return {"logits": vectors[:, 0]}
        return {"last_hidden_state": _on_tokens(model, params, states[-1][:, 0]), "sentence_embedding": vectors[:, 0]}

    return apply


def _on_tokens(model: SentenceModel, params: Params, states: Float[Array, "b l d"]) -> Float[Array, "b l e"]:
    if model.definition.dense_on_tokens:
        for index, part in enumerate(model.definition.dense):
            states = jnp.matmul(states, params[f"dense/{index}/kernel"])
            bias = params.get(f"dense/{index}/bias")
            states = states if bias is None else states + jnp.reshape(bias, (1, 1, part.out_features))
    return states
