"""ELECTRA: replaced token detection, with a generator that is a masked language model (Clark et al., ICLR 2020).

Both networks are transformers' own, ``ElectraForMaskedLM`` and ``ElectraForPreTraining``; here they are one program.
"""

from probattn.models.electra.program import (
    Corrupted,
    ElectraProgram,
    corrupt,
    draw_masked,
    masked_number,
    tie_embeddings,
)

__all__ = ["Corrupted", "ElectraProgram", "corrupt", "draw_masked", "masked_number", "tie_embeddings"]
