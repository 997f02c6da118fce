"""Builds an ONNX graph with 8-bit weights from an encoder.

Dynamic quantisation, as torch's and ONNX Runtime's: weights are rounded once, inputs of matrix products when the graph
runs. Products are of integers, everything between them is float32. Matrices have one scale per column, tables one per
row, inputs one per token, so that a sentence's vector does not depend on the rest of its batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import InputError, Params
from jaxdistill.encoders.architecture import Dense, EncoderDefinition
from jaxdistill.encoders.attention import relative_buckets

OPSET = 20
"""The first with GELU; ONNX Runtime reads it since 1.17."""
IR_VERSION = 9
"""Version of the file format; newer ones add nothing that is needed here."""
FLOAT, INT64 = 1, 7
"""Of `onnx.TensorProto`; onnx is imported where it is needed, as it need not be installed."""
LARGEST = 127
"""Rounded numbers of tables and of inputs lie in -127 to 127, ..."""
LARGEST_OF_MATRIX = 63
"""... those of matrices in -63 to 63. NOTE: without VNNI instructions, ONNX Runtime sums two products in 16 bits, which
255 * 63 * 2 just fits. Unsigned 8-bit weights would be exact everywhere too, at half the speed with VNNI."""
ZERO = 128
"""Offset of rounded inputs, which are unsigned."""
IDS, MASK, VECTORS = "input_ids", "attention_mask", "sentence_embedding"
ACTIVATIONS = {"gelu": "Gelu", "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "identity": "Identity"}


def rounded(
    weights: Float[np.ndarray, "..."], *, axis: int, largest: int = LARGEST
) -> tuple[Integer[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Whole numbers in -largest to largest and scales, `weights ~ numbers * scales`; those along `axis` share a scale."""
    scales = np.maximum(np.abs(weights).max(axis=axis, keepdims=True), 1e-30).astype(np.float32) / largest
    return np.rint(weights / scales).astype(np.int8), scales


POOLINGS = ("cls", "pooler", "mean", "max")
"""Poolings that the graph supports."""


class _Graph:
    """Nodes and constants of a graph that is being written; values are known by name."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Appends a node; returns the name of its output."""
        return self.several(kind, *inputs, outputs=1, **attributes)[0]

    def several(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Appends a node; returns the names of its outputs."""
        from onnx import helper

        names = [f"{kind}_{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def constant(self, value) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def axes(self, *axes: int) -> str:
        return self.constant(np.array(axes, np.int64))

    def table(self, table: Float[np.ndarray, "rows d"], rows: str) -> str:
        """Rows of a table."""
        numbers, scales = rounded(table, axis=1)
        found = self("Cast", self("Gather", self.constant(numbers), rows), to=FLOAT)
        return self("Mul", found, self("Gather", self.constant(scales), rows))

    def linear(self, x: str, kernel: Float[np.ndarray, "i o"], bias: Float[np.ndarray, " o"] | None) -> str:
        """`x @ kernel + bias` as a product of whole numbers."""
        numbers, scales = rounded(kernel, axis=0, largest=LARGEST_OF_MATRIX)
        largest = self("ReduceMax", self("Abs", x), self.axes(-1), keepdims=1)
        step = self("Max", self("Mul", largest, self.number(1 / LARGEST)), self.number(1e-30))
        zero = self.constant(np.uint8(ZERO))
        levels = self("QuantizeLinear", self("Div", x, step), self.number(1.0), zero)
        product = self("MatMulInteger", levels, self.constant(numbers), zero, self.constant(np.int8(0)))
        product = self("Cast", product, to=FLOAT)
        y = self("Mul", self("Mul", product, step), self.constant(scales[0]))
        return y if bias is None else self("Add", y, self.constant(np.asarray(bias, np.float32)))

    def activation(self, x: str, name: str) -> str:
        if name == "silu":
            return self("Mul", x, self("Sigmoid", x))
        return self("Gelu", x, approximate="tanh") if name == "gelu_tanh" else self(ACTIVATIONS[name], x)


class _Encoder:
    """Writes one encoder's graph; the methods follow `transformer.py`, `pooling.py` and `sentence.py`."""

    def __init__(self, definition: EncoderDefinition, params: Params):
        self.definition, self.architecture = definition, definition.architecture
        self.params = {path: np.asarray(array, np.float32) for path, array in params.items()}
        self.graph = _Graph()

    def vectors(self) -> str:
        """Returns the name of the output."""
        g, definition = self.graph, self.definition
        length = g("Gather", g("Shape", IDS), g.constant(np.int64(1)))
        bias = self.attention_bias(length)
        states = [self.embeddings(length)]
        for index in range(self.architecture.layers):
            states.append(self.layer(states[-1], bias, f"transformer/layers/{index}"))
        x = self.pooled(states)
        for index, dense in enumerate(definition.dense):
            assert isinstance(dense, Dense)  # checked by `quantized_graph`
            x = g.activation(self.linear(x, f"dense/{index}"), dense.activation)
        if not definition.normalize:
            return x
        length = g("ReduceL2", x, g.axes(-1), keepdims=1)
        return g("Div", x, g("Max", length, g.number(1e-12)))

    def linear(self, x: str, path: str) -> str:
        return self.graph.linear(x, self.params[f"{path}/kernel"], self.params.get(f"{path}/bias"))

    def norm(self, x: str, path: str) -> str:
        scale, bias = (self.graph.constant(self.params[f"{path}/{part}"]) for part in ("scale", "bias"))
        return self.graph("LayerNormalization", x, scale, bias, axis=-1, epsilon=self.architecture.layer_norm_eps)

    def embeddings(self, length: str) -> str:
        g, a, path = self.graph, self.architecture, "transformer/embeddings"
        positions = self.params[f"{path}/position/embedding"]
        if a.token_types:
            positions = positions + self.params[f"{path}/token_type/embedding"][0]
        x = g("Add", g.table(self.params[f"{path}/word/embedding"], IDS), g.table(positions, self.places(length)))
        x = self.norm(x, f"{path}/norm")
        return self.linear(x, f"{path}/projection") if a.projects_embeddings else x

    def places(self, length: str) -> str:
        """Rows of the position table, as in `transformer.Embeddings`."""
        g, offset = self.graph, self.architecture.position_offset
        if not offset:
            return g("Range", g.constant(np.int64(0)), length, g.constant(np.int64(1)))
        padding = g.constant(np.int64(offset - 1))
        counted = g("Cast", g("Not", g("Equal", IDS, padding)), to=INT64)
        return g("Add", g("Mul", g("CumSum", counted, g.constant(np.int64(1))), counted), padding)

    def attention_bias(self, length: str) -> str:
        """0 where there is a token, a large negative number where there is padding; MPNet's relative positions."""
        g, a = self.graph, self.architecture
        absent = g("Sub", g.number(1.0), g("Cast", MASK, to=FLOAT))
        mask = g("Unsqueeze", g("Mul", absent, g.number(-1e9)), g.axes(1, 2))
        if not a.relative_buckets:
            return mask
        distances = np.arange(1 - a.longest, a.longest)
        table = self.params["transformer/relative_bias/embedding"][relative_buckets(distances)]
        place = g("Range", g.constant(np.int64(0)), length, g.constant(np.int64(1)))
        distance = g("Sub", g("Unsqueeze", place, g.axes(0)), g("Unsqueeze", place, g.axes(1)))
        distance = g("Add", distance, g.constant(np.int64(a.longest - 1)))
        return g("Add", mask, g("Transpose", g.table(table, distance), perm=[2, 0, 1]))

    def layer(self, x: str, bias: str, path: str) -> str:
        g = self.graph
        x = self.norm(g("Add", x, self.attention(x, bias, f"{path}/attention")), f"{path}/attention/norm")
        hidden = g.activation(self.linear(x, f"{path}/intermediate"), self.architecture.activation)
        return self.norm(g("Add", x, self.linear(hidden, f"{path}/output")), f"{path}/norm")

    def attention(self, x: str, bias: str, path: str) -> str:
        g, heads, width = self.graph, self.architecture.heads, self.architecture.hidden_size
        parts = [f"{path}/{part}" for part in ("query", "key", "value")]
        kernel = np.concatenate([self.params[f"{part}/kernel"] for part in parts], axis=1)
        together = g.linear(x, kernel, np.concatenate([self.params[f"{part}/bias"] for part in parts]))
        by_head = g.axes(0, 0, heads, width // heads)
        query, keys, value = (
            g("Transpose", g("Reshape", part, by_head), perm=perm)
            for part, perm in zip(
                g.several("Split", together, outputs=3, axis=-1, num_outputs=3),
                ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]),
                strict=True,
            )
        )
        scores = g("Mul", g("MatMul", query, keys), g.number((width // heads) ** -0.5))
        weights = g("Softmax", g("Add", scores, bias), axis=-1)
        mixed = g("Transpose", g("MatMul", weights, value), perm=[0, 2, 1, 3])
        return self.linear(g("Reshape", mixed, g.axes(0, 0, width)), f"{path}/output")

    def pooled(self, states: Sequence[str]) -> str:
        g, pooling = self.graph, self.definition.pooling
        chosen = [states[index] for index in pooling.indices(self.architecture.layers)]
        x = chosen[0]
        if len(chosen) > 1:
            combine = {"mean": ("Mean", {}), "max": ("Max", {}), "concat": ("Concat", {"axis": -1})}[pooling.combine]
            x = g(combine[0], *chosen, **combine[1])
        if pooling.tokens in ("cls", "pooler"):
            first = g("Gather", x, g.constant(np.int64(0)), axis=1)
            return g("Tanh", self.linear(first, "transformer/pooler")) if pooling.tokens == "pooler" else first
        mask = g("Unsqueeze", g("Cast", MASK, to=FLOAT), g.axes(2))
        if pooling.tokens == "max":
            absent = g("Mul", g("Sub", g.number(1.0), mask), g.number(-1e9))
            return g("ReduceMax", g("Add", x, absent), g.axes(1), keepdims=0)
        count = g("Max", g("ReduceSum", mask, g.axes(1), keepdims=0), g.number(1.0))
        return g("Div", g("ReduceSum", g("Mul", x, mask), g.axes(1), keepdims=0), count)


def quantized_graph(definition: EncoderDefinition, params: Params):
    """An `onnx.ModelProto`: `input_ids` and `attention_mask`, int64 [b, l], to `sentence_embedding`, float32 [b, e].

    Needs the package onnx. A sentence has at least one token; padding lies behind it.
    """
    from onnx import TensorProto, checker, helper

    if definition.reads_pairs:
        raise InputError(
            "a cross-encoder cannot be quantised: it has no vectors of sentences; use its folder as it is."
        )
    if definition.architecture.is_static:
        raise InputError(
            "a static encoder cannot be quantised: it has no layers, only a table; use its folder as it is."
        )
    if definition.architecture.varies:
        raise InputError(
            f"a {definition.architecture.family} encoder cannot be quantised: its {definition.architecture.varies[0]}"
            " has no place in the graph; BERT, RoBERTa, MPNet, DistilBERT and ELECTRA can be."
        )
    if definition.pooling.tokens not in POOLINGS or not all(isinstance(part, Dense) for part in definition.dense):
        raise InputError(
            f"pooling {definition.pooling} or a LayerNorm behind it has no place in a quantised graph; {', '.join(POOLINGS)}"
            " and dense layers have."
        )
    encoder = _Encoder(definition, params)
    output = encoder.vectors()
    encoder.graph.nodes.append(helper.make_node("Identity", [output], [VECTORS]))
    tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "l"]) for name in (IDS, MASK)]
    vectors = helper.make_tensor_value_info(VECTORS, TensorProto.FLOAT, ["b", definition.embedding_width])
    graph = helper.make_graph(
        encoder.graph.nodes, "sentence_encoder", tokens, [vectors], initializer=encoder.graph.constants
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="jaxdistill"
    )
    checker.check_model(model)
    return model
