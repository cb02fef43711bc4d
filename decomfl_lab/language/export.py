"""What was trained, for other programs: a file of weights, or a language model's folder."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from safetensors.torch import save
from torch import nn

from decomfl_lab.errors import InputError, require
from decomfl_lab.language.adapters import merge_
from decomfl_lab.language.causal_model import Verbalized, load_causal
from decomfl_lab.storage.files import write_atomically

SUFFIX = ".safetensors"


def save_weights(module: nn.Module, path: Path) -> None:
    """Write the module's state dict, buffers too, as safetensors; InputError if the file cannot be written."""
    tensors = {name: tensor.cpu().clone().contiguous() for name, tensor in module.state_dict().items()}
    write_atomically(path, save(tensors))


def export(model: nn.Module, out: Path, source: str) -> None:
    """Write a model to ``out``.

    A path that ends in .safetensors becomes a file of weights by parameter name, which ``load_state_dict`` of the same
    module takes. Of a language model any other path becomes a folder of model, configuration and tokenizer that
    transformers' ``from_pretrained`` reads. What lora added is merged into its weights. ``source`` is what a language
    model was loaded from, and empty for another model. InputError if ``out`` has another form, is there already as a
    folder, or cannot be written. Nothing is written in part.
    """
    if isinstance(model, Verbalized):
        merge_(model.module)
        model = model.module
    if out.suffix == SUFFIX:
        save_weights(model, out)
        return
    require(bool(source), "out", f"end in {SUFFIX} for a model that is no language model", str(out))
    require(not out.exists(), "out", "be a folder that does not exist yet", str(out))
    try:
        beside = Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise InputError(f"out must be in a folder that can be written, got {out} ({error.strerror})") from None
    try:
        model.save_pretrained(beside)  # type: ignore[operator]
        load_causal(source).tokenizer.save(beside)
        beside.chmod(0o755)  # a temporary folder is closed to others
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
