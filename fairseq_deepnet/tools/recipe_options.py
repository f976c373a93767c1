"""Options of fairseq that a file may set: what a recipe needs, and nothing that writes elsewhere.

A config or a sweep may come from a stranger. With log-file or tensorboard-logdir, fairseq would
write text that the file chooses to any place, such as a shell's start-up file. So what is allowed
is listed; everything else is for the command line.
"""

from __future__ import annotations

from typing import Final

from fairseq_deepnet.errors import ConfigurationError, did_you_mean

_TRAINING: Final = """
arch task criterion optimizer lr-scheduler seed
residual-scheme scheme-variant init freeze-norms no-decoder-final-norm allow-other-scheme
encoder-layers encoder-embed-dim encoder-ffn-embed-dim encoder-attention-heads encoder-learned-pos
encoder-normalize-before encoder-layerdrop
decoder-layers decoder-embed-dim decoder-ffn-embed-dim decoder-attention-heads decoder-learned-pos
decoder-normalize-before decoder-layerdrop decoder-input-dim decoder-output-dim
share-all-embeddings share-decoder-input-output-embed merge-src-tgt-embed layernorm-embedding
no-scale-embedding no-token-positional-embeddings
dropout attention-dropout activation-dropout relu-dropout activation-fn max-positions
max-source-positions max-target-positions cross-self-attention no-cross-attention
adaptive-input adaptive-input-cutoff adaptive-input-factor adaptive-softmax-cutoff
adaptive-softmax-dropout adaptive-softmax-factor tie-adaptive-proj tie-adaptive-weights
untie-weights-roberta pooler-activation-fn pooler-dropout quant-noise-pq quant-noise-pq-block-size
quant-noise-scalar
checkpoint-activations checkpoint-activations-every offload-activations compile
min-params-to-wrap ddp-backend cpu-offload bucket-cap-mb find-unused-parameters
fp16 bf16 memory-efficient-fp16 memory-efficient-bf16 fp16-adam-stats fp16-no-flatten-grads
fp16-init-scale fp16-scale-window fp16-scale-tolerance min-loss-scale threshold-loss-scale amp
amp-batch-retries amp-init-scale amp-scale-window on-cpu-convert-precision empty-cache-freq
store-ema ema-decay ema-start-update ema-update-freq ema-fp32
monitor monitor-interval on-divergence fallbacks
max-update max-epoch stop-time-hours stop-min-lr update-freq clip-norm sentence-avg
skip-remainder-batch patience label-smoothing report-accuracy ignore-prefix-size
lr min-lr warmup-updates warmup-init-lr warmup-steps hold-steps decay-steps total-num-update
end-learning-rate power phase-ratio init-lr-scale final-lr-scale lr-period-updates lr-shrink
lr-patience lr-threshold t-mult force-anneal
weight-decay adam-betas adam-eps use-old-adam momentum adafactor-eps beta1 clip-threshold decay-rate
relative-step scale-parameter warmup-init
source-lang target-lang lang-pairs langs encoder-langtok decoder-langtok lang-tok-style
sampling-method sampling-temperature virtual-epoch-size virtual-data-size left-pad-source
left-pad-target upsample-primary truncate-source num-batch-buckets
train-subset valid-subset combine-valid-subsets dataset-impl max-tokens batch-size max-tokens-valid
batch-size-valid max-valid-steps required-batch-size-multiple required-seq-len-multiple num-workers
data-buffer-size skip-invalid-size-inputs-valid-test curriculum grouped-shuffling
tokens-per-sample sample-break-mode shorten-method shorten-data-split-list add-bos-token
future-target past-target self-target pad-to-fixed-bsz pad-to-fixed-length mask-prob
leave-unmasked-prob random-token-prob mask-whole-words mask-multiple-length mask-stdev
freq-weighted-replacement
validate-interval validate-interval-updates validate-after-updates fixed-validation-seed
disable-validation best-checkpoint-metric maximize-best-checkpoint-metric eval-bleu eval-bleu-args
eval-bleu-detok eval-bleu-detok-args eval-bleu-print-samples eval-bleu-remove-bpe
eval-tokenized-bleu
save-interval save-interval-updates keep-interval-updates keep-interval-updates-pattern
keep-last-epochs keep-best-checkpoints no-epoch-checkpoints no-last-checkpoints no-save
no-save-optimizer-state restore-file continue-once finetune-from-model reset-dataloader
reset-lr-scheduler reset-meters reset-optimizer
log-interval log-format no-progress-bar
"""
_SCORING: Final = """
beam nbest lenpen unkpen min-len max-len-a max-len-b match-source-len no-repeat-ngram-size
temperature sampling sampling-topk sampling-topp diverse-beam-groups diverse-beam-strength
prefix-size max-tokens batch-size seed
"""

TRAINING: Final = frozenset(_TRAINING.split())
"""Options of fairseq-train, for configs and for the settings of sweeps."""

SCORING: Final = frozenset(_SCORING.split())
"""Options of fairseq-generate, for the scores of sweeps."""


def check(name: str, source: str, allowed: frozenset[str] = TRAINING) -> None:
    """Refuse an option that a file may not set; `source` names the file."""
    if name not in allowed:
        raise ConfigurationError(
            f"{source}: {name} is no option that a file may set{did_you_mean(name, allowed)};"
            " other options of fairseq are for the command line"
        )
