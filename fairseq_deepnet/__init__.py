"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555).

Importing it costs nothing. fairseq imports `models/` of a user-dir by itself, and that registers
everything; in Python, `import fairseq_deepnet.models` does.

Three wings, and imports run one way, experiments -> tools -> plugin: the plugin is what fairseq
loads, `tools/` what `deepnet` does for a user, `experiments/` what makes tables and figures.
"""

import logging

# Importing fairseq advises everyone to install tensorboardX, which only its speech tasks need.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
