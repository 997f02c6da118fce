"""ELECTRA's discriminator: BERT with embeddings narrower than its layers and without a pooler."""

from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import bert
from jaxdistill.encoders.hugging_face import PairHead, Settings

PREFIXES = ("electra.",)
NAMES = {key: name for key, name in bert.NAMES.items() if key != "pooler"} | {
    "embeddings/projection": "embeddings_project"
}
PAIR_HEAD = PairHead("classifier.out_proj", "classifier.dense", "gelu")


def architecture(config: Settings) -> Architecture:
    return bert.architecture(config, family="electra", embedding_size=config.get("embedding_size", 128))


def config(architecture: Architecture) -> Settings:
    return bert.config(architecture) | {"embedding_size": architecture.embedding_size}
