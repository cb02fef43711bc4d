"""Fine-tuning of language models: Table 2, sizes, pretrained models."""
