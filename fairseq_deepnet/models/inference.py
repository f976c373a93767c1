"""What a model does when fairseq says that it will only generate from now on."""

from typing import Any

import torch
from fairseq.models import BaseFairseqModel


class Inference(BaseFairseqModel):
    """Honours --bf16, which fairseq-generate and fairseq-interactive take and then forget."""

    def prepare_for_inference_(self, cfg: Any) -> None:
        """fairseq's call after loading; cfg is the whole configuration of the command."""
        if cfg.common.bf16:
            self.to(dtype=torch.bfloat16)
        super().prepare_for_inference_(cfg)
