"""FrontendService (sdk/proto/pannier/plugin/frontend/v1), with an HTTP server on each of the listening sockets."""

import asyncio
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from host import Host
from plugin import PluginError


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for the requests

    def __init__(self, listener: socket.socket, door: "Door") -> None:
        super().__init__(("", 0), door.handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.door = listener, door


class Door(Host):
    """A front door. Each process of the plugin has the same listening sockets, and one at a time accepts."""

    handler: type[BaseHTTPRequestHandler]

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._servers: list[_Server] = []
        self._drained = False

    def serve(self, request: Any) -> None:
        with self._lock:
            if self._drained:
                raise PluginError(grpc.StatusCode.FAILED_PRECONDITION, "the process does not serve any more")
            if not self._servers:
                self._servers = [_Server(listener.dup(), self) for listener in self.listeners.values()]
                for server in self._servers:
                    threading.Thread(target=server.serve_forever, daemon=True).start()

    def drain(self, request: Any) -> None:
        """Stops accepting, closes copies of the sockets, and waits for the requests."""
        with self._lock:
            self._drained = True
            for server in self._servers:
                server.shutdown()
            for server in self._servers:
                server.server_close()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.drain, None)
        await super().close()
