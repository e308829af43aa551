"""The storage: volumes are folders below the driver's endpoint. All lasting state is in the file system.

Methods are those of StorageService. They run in threads, several at a time.
"""

import contextlib
import os
import re
import shutil
import socket
import threading
from dataclasses import dataclass
from typing import Any

from grpc import StatusCode

import mounts
from plugin import PluginError
from protocol import storage


@dataclass(frozen=True)
class Config:
    """The plugin's config block. An error says what is wrong in it."""

    mode: str = "0755"

    def __post_init__(self) -> None:
        if not re.fullmatch("0?[0-7]{3}", self.mode):
            raise ValueError(f"mode: {self.mode!r} is not an octal mode such as 0755")


class Dirs:
    config = Config()
    mounting = threading.Lock()  # a call looks at the mounts before it changes them

    def fingerprint(self, request: Any) -> Any:
        """Looks at a driver once. What changes from look to look is reported."""
        answer = storage.FingerprintResponse(healthy=True, provider="python-dirs", version="0.1.0")
        answer.controller.create_delete = True
        answer.node.node_id = socket.gethostname()
        try:
            os.listdir(_root(request.driver))
        except OSError as err:
            answer.healthy, answer.message = False, str(err)
        return answer

    def validate_volume(self, request: Any) -> None:
        _existing(request)
        _check(*request.capabilities)

    def publish(self, request: Any) -> None:
        source = _existing(request)
        _check(request.volume.capability)
        with self.mounting:
            os.makedirs(request.target_path, mode=0o750, exist_ok=True)
            mounts.bind(source, request.target_path, request.read_only)

    def unpublish(self, request: Any) -> None:
        with self.mounting, contextlib.suppress(FileNotFoundError):
            mounts.unmount(request.target_path)
            os.rmdir(request.target_path)

    def create(self, request: Any) -> Any:
        if request.snapshot_id or request.clone_id:
            raise PluginError(StatusCode.INVALID_ARGUMENT, "a folder is made empty: no snapshot and no clone")
        _check(*request.capabilities)
        folder = _folder(request.driver, request.name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        os.chmod(folder, int(self.config.mode, 8))  # whatever the umask is
        return storage.CreateResponse(external_id=request.name)

    def delete(self, request: Any) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(_folder(request.driver, request.volume.external_id))


def _root(driver: Any) -> str:
    return driver.endpoint.removeprefix("unix://")


def _folder(driver: Any, name: str) -> str:
    if name in ("", ".", "..") or "/" in name:
        raise PluginError(StatusCode.INVALID_ARGUMENT, f"{name!r} is not the name of a folder")
    return os.path.join(_root(driver), name)


def _existing(request: Any) -> str:
    folder = _folder(request.driver, request.volume.external_id)
    if not os.path.lexists(folder):
        raise PluginError(StatusCode.NOT_FOUND, f"there is no folder {folder}")
    if os.path.islink(folder) or not os.path.isdir(folder):
        raise PluginError(StatusCode.FAILED_PRECONDITION, f"{folder} is not a folder")
    return folder


def _check(*capabilities: Any) -> None:
    for c in capabilities:
        if c.attachment_mode == storage.ATTACHMENT_MODE_BLOCK_DEVICE:
            raise PluginError(StatusCode.FAILED_PRECONDITION, "a folder is no block device: ask for file-system")
        if c.access_mode >= storage.ACCESS_MODE_MULTI_NODE_READER_ONLY:
            raise PluginError(StatusCode.FAILED_PRECONDITION, "a folder is on one node")
