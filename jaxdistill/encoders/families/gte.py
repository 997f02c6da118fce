"""GTE v1.5, multilingual GTE and arctic-embed-m-v2: BERT with rotary positions and a gated feed-forward network."""

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.families import bert
from jaxdistill.encoders.families.bert import config as config

PREFIXES = ("new.", "gte.")
NAMES = bert.EMBEDDINGS | {
    "layers/*/attention/query": hugging_face.Part("encoder.layer.*.attention.qkv_proj", 0, 3),
    "layers/*/attention/key": hugging_face.Part("encoder.layer.*.attention.qkv_proj", 1, 3),
    "layers/*/attention/value": hugging_face.Part("encoder.layer.*.attention.qkv_proj", 2, 3),
    "layers/*/attention/output": "encoder.layer.*.attention.o_proj",
    "layers/*/attention/norm": "encoder.layer.*.attn_ln",
    "layers/*/intermediate": hugging_face.Part("encoder.layer.*.mlp.up_gate_proj", 0, 2),
    "layers/*/gate": hugging_face.Part("encoder.layer.*.mlp.up_gate_proj", 1, 2),
    "layers/*/output": "encoder.layer.*.mlp.down_proj",
    "layers/*/norm": "encoder.layer.*.mlp_ln",
}


def architecture(config: hugging_face.Settings) -> Architecture:
    """Reads a `config.json` of `gte`, or of the older `new`, whose checkpoints include their own code."""
    hugging_face.refuse_others(config, {"position_embedding_type": ("rope",), "logn_attention_scale": (False,)})
    sizes = hugging_face.head_sizes(config)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "ntk" and not config.get("rope_parameters"):
        # GTE's own code: a factor f multiplies the base by f, and divides the frequencies by f^(2 / head width).
        hugging_face.refuse_others(scaling, {"mixed_b": ()})
        factor = float(scaling["factor"])
        head_width = sizes["head_size"] or config["hidden_size"] // config["num_attention_heads"]
        kind = LayerKind(theta=factor * float(config.get("rope_theta", 10_000.0)), divisor=factor ** (2 / head_width))
    else:
        kind = hugging_face.rotary(config, 160_000.0)
    # `bert` would refuse `rope` as `position_embedding_type`, which is checked above.
    return bert.architecture(
        {"type_vocab_size": 1} | config | {"position_embedding_type": None},
        family="gte",
        position_table=False,
        kinds=(kind,) * config["num_hidden_layers"],
        gated=True,
        intermediate_bias=False,
        **sizes,
    )
