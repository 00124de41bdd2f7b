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
compressed.py  windows beside compressed entries: DeepSeek V4
mamba.py       Mamba and Mamba 2, alone or beside attention
linear.py      linear attention and its kin: GDN, KDA, lightning, short convolutions, RG-LRU, RWKV, xLSTM
unplanned.py   architectures whose state is not known exactly, and which are refused
mixed.py       which layer is recurrent, by the names that files give them
state_forms.py the tensors of each form of recurrent state
encoder.py     cross attention to an encoder: Whisper, BART, T5, Llama 3.2 Vision
mtp.py         the MTP layers of a checkpoint
state.py       everything that a layer can keep, as one type
catalog.json   facts of well-known checkpoints;  defaults.json  what the config classes fill in
"""

from poolplan.models import compressed, decoder, encoder, hybrid, latent, linear, mamba, sparse, unplanned, window
from poolplan.models.config import ConfigReader
from poolplan.models.registry import register_model, registered_models
from poolplan.models.spec import ModelSpec
from poolplan.models.state import State

__all__ = ["ConfigReader", "ModelSpec", "State", "register_model", "registered_models"]

del (
    compressed,
    decoder,
    encoder,
    hybrid,
    latent,
    linear,
    mamba,
    sparse,
    unplanned,
    window,
)  # imported for the families that they register
