"""fairseq_deepnet: very deep Transformers for fairseq (DeepNet, arXiv 2203.00555).

Importing the package is fast and registers nothing. Importing `fairseq_deepnet.models` registers
everything; fairseq imports it automatically if the package is its --user-dir.

The package has three parts: fairseq loads the plugin, `tools/` implements `deepnet`, and
`experiments/` makes tables and figures. Imports go only from experiments to tools to the plugin.
"""

import logging

# fairseq logs the advice to install tensorboardX, which only its speech tasks need.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
