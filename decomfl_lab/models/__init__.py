"""Models by name."""

MODEL_NAMES = (
    *("cnn-mnist", "cnn-fashion", "cnn-fashion-10"),
    *("resnet8", "resnet8-bn", "resnet8-half", "resnet8-half-bn", "resnet20", "resnet20-bn"),
    *("mlp", "logistic", "gpt-tiny", "gpt-tiny-tied", "gpt-10m"),
)
"""The keys of ``registry.MODELS``, for help and completion, which load no torch."""
