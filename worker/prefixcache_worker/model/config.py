"""What a decoder's shape is, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionShape, AttentionWindow
from prefixcache_worker.model.rope import Rope

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder of the llama family: RMSNorm, rotary positions, grouped-query attention, gated MLP.

    The families differ in these fields only.
    """

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    context_length: int
    rms_norm_eps: float
    rope: Rope
    local_rope: Rope | None = None
    """What layers with a window turn by, where that is something else."""
    windows: tuple[AttentionWindow | None, ...] = ()
    """One for each layer, or none at all where every layer reads everything."""
    score_scale: float | None = None
    """What attention scores are multiplied by; None: head_dim ** -0.5."""
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    """What embeddings are multiplied by before the first layer."""
    norm_offset: float = 0.0
    """What the file leaves out of every norm weight: Gemma stores how far it is from 1."""
    rope_interleaved: bool = False
    """The file's Q and K rows pair element 2i with 2i + 1; otherwise i with i + head_dim / 2."""
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    """Attention and MLP are normed once more before they join the residual."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def attention_shape(self) -> AttentionShape:
        return AttentionShape(
            num_layers=self.num_layers,
            num_query_heads=self.num_query_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            windows=self.windows,
            score_scale=self.score_scale,
        )

    def checked(self, source: str) -> ModelConfig:
        """Itself, or ConfigError, naming the file `source`, if its numbers contradict each other."""
        assert len(self.windows) in (0, self.num_layers)
        if self.num_query_heads % self.num_kv_heads:
            raise ConfigError(
                f"{source}: {self.num_query_heads} query heads do not divide among {self.num_kv_heads} "
                "KV heads; the file is damaged, fetch it again."
            )
        if self.head_dim % 2:
            raise ConfigError(
                f"{source}: head_dim {self.head_dim} is odd; rotary positions need an even one."
            )
        return self
