"""From a `config.json` to a `ModelSpec` with one entry a layer: one small module a family.

spec.py        `ModelSpec`, and where it can come from
config.py      typed reading of the keys of a `config.json`
registry.py    `register_model`, and the guard against state that a family does not know
heads.py       KV heads and head dimensions of one layer, under every name they have
decoder.py     plain decoders: MHA, GQA, MQA
window.py      layers with sliding windows and chunks
hybrid.py      window layers with heads of their own
latent.py      MLA
sparse.py      sparse attention with index keys: DSA, MiniMax M3
catalog.json   facts of well-known checkpoints;  defaults.json  what the config classes fill in
"""

from poolplan.models import decoder, hybrid, latent, sparse, window
from poolplan.models.config import ConfigReader
from poolplan.models.registry import register_model, registered_models
from poolplan.models.spec import ModelSpec

__all__ = ["ConfigReader", "ModelSpec", "register_model", "registered_models"]

del decoder, hybrid, latent, sparse, window  # imported for the families that they register
