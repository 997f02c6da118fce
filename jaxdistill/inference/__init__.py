"""Models ready for use: vectors of sentences, and scores of pairs."""

from jaxdistill.inference.embed import Embedder as Embedder
from jaxdistill.inference.embed import load as load
