"""A double of TensorFlow Serving's program: its command line, folder of versions, and REST API.

The program itself cannot be installed on a machine without its image. This one is our server for
development, with the versions in ``--model_base_path`` instead of those in a store.
"""

import os
import sys
import threading
import time
from argparse import ArgumentParser
from pathlib import Path

from aerotrain.serving.development import DevelopmentServer, Loaded, Models, NotFoundError


class FolderModels(Models):
    """The greatest version in a folder, as ``file_system_poll_wait_seconds`` says."""

    def __init__(self, name: str, folder: Path, poll: float) -> None:
        self._name, self._versions = name, folder
        self._newest: Loaded | None = None
        threading.Thread(target=self._watch, args=(poll,), daemon=True).start()

    def _watch(self, poll: float) -> None:
        while True:
            numbers = [int(each.name) for each in self._versions.glob("[0-9]*")]
            newest = max(numbers, default=0)
            if newest and (self._newest is None or newest != self._newest.version):
                self._newest = Loaded.of(self._versions / str(newest))
            time.sleep(poll)

    def get(self, name: str, version: int | None = None) -> Loaded:
        newest = self._newest
        if newest is None or name != self._name or version not in (None, newest.version):
            raise NotFoundError(f"there is no model {name}, version {version}")
        return newest


def main() -> None:
    parser = ArgumentParser("tensorflow_model_server")
    parser.add_argument("--port", type=int)
    parser.add_argument("--rest_api_port", type=int)
    parser.add_argument("--model_name")
    parser.add_argument("--model_base_path", type=Path)
    parser.add_argument("--file_system_poll_wait_seconds", type=float, default=1.0)
    parser.add_argument("--host", default=os.environ.get("MODEL_SERVER_HOST", "127.0.0.1"))
    given = parser.parse_args()
    models = FolderModels(
        given.model_name, given.model_base_path, given.file_system_poll_wait_seconds
    )
    with DevelopmentServer(models, given.rest_api_port, given.host) as server:
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
