"""What a plugin has of its host: its API, and a front door's listening sockets."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc

from plugin import Process
from protocol import host, message_class

CHUNK = 32 << 10  # bytes in a message of Connect

CHANNEL = [
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Host:
    """HostService and EventService (sdk/proto/pannier/plugin/v1), for a plugin that has no events of its own."""

    def __init__(self) -> None:
        # The process keeps these sockets and serves copies, so that the host can have them at any time. They never
        # block, in any process: another one may accept a connection first.
        names = os.environ.pop("PANNIER_PLUGIN_LISTENERS", "")
        self.listeners = {n: socket.socket(fileno=fd) for fd, n in enumerate(filter(None, names.split(",")), start=3)}
        for listener in self.listeners.values():
            listener.set_inheritable(False)
            listener.setblocking(False)

    async def start(self, process: Process) -> None:
        """Makes a channel to the host. gRPC dials a socket here, and what comes there goes through Connect."""
        self._process, self._loop = process, asyncio.get_running_loop()
        self._dialled: asyncio.Queue = asyncio.Queue()
        self._path = os.path.join(os.environ["PLUGIN_UNIX_SOCKET_DIR"], "host.sock")
        await asyncio.start_unix_server(lambda *ends: self._dialled.put_nowait(ends), self._path)
        self._channel = grpc.aio.insecure_channel(f"unix:{self._path}", CHANNEL)

    async def close(self) -> None:
        """Ends the connections to the host."""
        os.unlink(self._path)
        await self._channel.close()
        self._dialled.put_nowait(None)

    def call(self, method: Any, fields: dict[str, Any], timeout: float) -> Any:
        """Calls a method of the host's API, from a thread. While no host runs, it waits. Errors: grpc.RpcError."""
        request, response = message_class(method.input_type), message_class(method.output_type)
        path = f"/{method.containing_service.full_name}/{method.name}"

        async def run() -> Any:
            call = self._channel.unary_unary(path, request.SerializeToString, response.FromString)
            return await call(request(**fields), timeout=timeout, wait_for_ready=True)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    async def connect(self, messages: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        ends = await self._dialled.get()
        if ends is None:  # the process ends; there may be more streams
            self._dialled.put_nowait(None)
            return
        reader, writer = ends

        async def receive() -> None:
            async for message in messages:
                writer.write(message.data)
                await writer.drain()
            writer.close()

        receiving = asyncio.create_task(receive())
        try:
            while data := await reader.read(CHUNK):
                await context.write(host.ConnectResponse(data=data))
        finally:
            receiving.cancel()
            writer.close()

    async def hand_over(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        with socket.socket(socket.AF_UNIX) as there:
            there.connect("\0" + request.socket)
            socket.send_fds(there, [request.nonce], [listener.fileno() for listener in self.listeners.values()])
        return host.HandOverResponse(names=self.listeners)

    async def events(self, messages: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        await context.send_initial_metadata(())
        await self._process.wait()
