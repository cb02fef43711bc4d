"""The client: Flower starts a process for every message, so what the client is lies in a file between two of them."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from decomfl_flower.shared import content_of, frame_of, run_of
from decomfl_lab.federations.remote import host_of

app = ClientApp()


@app.query()
def handle(message: Message, context: Context) -> Message:
    """The answer to a frame. A file that is lost, or of another run, costs a hello and the records."""
    i, store = int(context.node_config["client"]), Path(str(context.node_config["store"]))
    _, federation, identity = run_of(context)
    host = host_of(federation, identity, [i])
    store.mkdir(parents=True, exist_ok=True)
    file = store / f"{identity.hex()}-{i}.safetensors"
    if file.exists():
        host.load(file)
    answer = host.handle({i: frame_of(message.content)})[i]
    host.save(file)
    return Message(content_of(answer), reply_to=message)
