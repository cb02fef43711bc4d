"""What both sides have: the run, and frames as the content of messages."""

from flwr.app import ConfigRecord, Context, RecordDict

from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.runs.configuration import config_from_mapping
from decomfl_lab.runs.run import Run


def run_of(context: Context) -> tuple[Run, DeComFLFederation, bytes]:
    """The run at round 0 that the app's configuration names, its federation in this process, and its identity."""
    values = {name.replace("-", "_"): value for name, value in context.run_config.items() if name != "out"}
    run = Run(config_from_mapping(values, "the app's configuration"))
    assert isinstance(run.federation, DeComFLFederation)
    return run, run.federation, run.config.identity(run.federation.observer.digest())


def content_of(frame: bytes) -> RecordDict:
    """The content of a message that carries a frame."""
    return RecordDict({"decomfl": ConfigRecord({"frame": frame})})


def frame_of(content: RecordDict) -> bytes:
    """The frame that a message carries."""
    frame = content["decomfl"]["frame"]
    assert isinstance(frame, bytes)
    return frame
