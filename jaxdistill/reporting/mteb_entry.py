"""Drafts the `ModelMeta` with which a student enters MTEB's registry: MTEB reads no cards.

Fields of mteb 2.26. `None` stands for what a run does not know.
"""

from collections.abc import Iterable
from typing import Any

from jaxdistill.checkpoints.licences import licence_metadata
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.checkpoints.static import TABLE
from jaxdistill.reporting.model_card import Facts, base_models, hub_datasets

LANGUAGES = {
    "ar": "ara-Arab", "bg": "bul-Cyrl", "cs": "ces-Latn", "da": "dan-Latn", "de": "deu-Latn", "el": "ell-Grek", "en": "eng-Latn",
    "es": "spa-Latn", "fa": "fas-Arab", "fi": "fin-Latn", "fr": "fra-Latn", "he": "heb-Hebr", "hi": "hin-Deva", "hu": "hun-Latn",
    "id": "ind-Latn", "it": "ita-Latn", "ja": "jpn-Jpan", "ko": "kor-Hang", "nl": "nld-Latn", "no": "nor-Latn", "pl": "pol-Latn",
    "pt": "por-Latn", "ro": "ron-Latn", "ru": "rus-Cyrl", "sv": "swe-Latn", "th": "tha-Thai", "tr": "tur-Latn", "uk": "ukr-Cyrl",
    "vi": "vie-Latn", "zh": "zho-Hans",
}  # fmt: skip
"""Maps languages of cards to MTEB's names, which have a script."""
FRAMEWORKS = {"onnx": "ONNX", "openvino": "OpenVINO", "gguf": "GGUF"}
"""Maps forms to MTEB's names of frameworks."""


def mteb_entry(model: SentenceModel, facts: Facts, *, hub_name: str, forms: Iterable[str] = ()) -> dict[str, Any]:
    """Arguments of `ModelMeta`, without `loader`.

    Args:
      hub_name: its name on the hub, `OWNER/NAME`; empty if it is not there.
      forms: forms for other runtimes that its folder has.
    """
    definition, origin = model.definition, facts.origin
    parameters = model.parameter_count
    words = parameters if definition.architecture.is_static else model.params[TABLE].size
    name = hub_name or f"OWNER/{facts.name}"
    languages = [LANGUAGES.get(one, "") for one in origin.languages.split(", ")]
    text = hub_datasets(facts)
    public = len(text) == len(facts.training.data.split(", "))
    width = None if definition.reads_pairs else definition.embedding_width
    licence = licence_metadata(origin.known_licence)
    bases = base_models(origin)
    return {
        "name": name,
        "revision": None,
        "release_date": None,
        "languages": languages if all(languages) else None,
        "n_parameters": parameters,
        "n_embedding_parameters": words,
        "memory_usage_mb": round(4 * parameters / 2**20),
        "max_tokens": None if definition.architecture.is_static else model.max_length,
        "embed_dim": [*map(int, facts.index.dims.split(",")), width] if facts.index.dims else width,
        "license": licence.get("license_link", licence["license"] or None),
        "open_weights": True,
        "public_training_code": None,
        "public_training_data": ", ".join(f"https://huggingface.co/datasets/{one}" for one in text) if public else None,
        "framework": [
            "Sentence Transformers",
            "PyTorch",
            "safetensors",
            *(FRAMEWORKS[one] for one in FRAMEWORKS if one in forms),
        ],
        "reference": f"https://huggingface.co/{name}",
        "similarity_fn_name": None if definition.reads_pairs else definition.similarity,
        "use_instructions": any(model.role_prompts.values()),
        "training_datasets": None,
        "adapted_from": next((one for one in bases if one in origin.student), bases[0] if bases else None),
        "model_type": ["cross-encoder" if definition.reads_pairs else "dense"],
        # MTEB makes small vectors by itself, and centres none.
        **({"output_dtypes": ["float32", facts.index.vectors]} if facts.index.vectors in ("int8", "binary") else {}),
    }
