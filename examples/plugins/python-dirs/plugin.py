"""What plugins of every kind need: the handshake, TLS, the configuration, the health, and the end of the process."""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from protocol import message_class, plugin

WIRE = 1  # the version of the wire

# Seconds.
FIRST_ATTEND = 60  # how long a new process waits for its host
HEALTH_INTERVAL = 5
HEALTH_REPEAT = 25  # the host wants to hear it every 30 s
POLL_INTERVAL = 30  # where a request names none
FINISH_CALLS = 30  # what calls in flight have when the process ends

MAX_THREADS = 64  # calls that run at a time; others wait

log = logging.getLogger("plugin")


class PluginError(Exception):
    """An error with a gRPC code. All others reach the host as INTERNAL."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Process:
    """Decides when the process ends: when the host asks for it, or when no host has attended it for long."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._hosts = 0
        self._loop = asyncio.get_running_loop()
        self._orphan = self._loop.call_later(FIRST_ATTEND, self.stop, "no host has attended")

    @contextlib.contextmanager
    def attended(self, orphan_timeout: float) -> Iterator[None]:
        """Holds the process while a host attends it, and then for the timeout in seconds; 0: for ever."""
        self._hosts += 1
        self._orphan.cancel()
        try:
            yield
        finally:
            self._hosts -= 1
            if self._hosts == 0 and orphan_timeout > 0:
                self._orphan = self._loop.call_later(orphan_timeout, self.stop, "no host attends")

    def stop(self, why: str) -> None:
        if not self._stopping.is_set():
            log.info("stopping: %s", why)
            self._stopping.set()

    async def wait(self) -> None:
        """Waits until the process has to end."""
        await self._stopping.wait()

    async def pause(self, seconds: float, context: grpc.aio.ServicerContext) -> None:
        """Waits for the next message of a stream, and ends the stream if the process has to end."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the plugin is stopping")


class PluginService:
    """PluginService (sdk/proto/pannier/plugin/v1).

    The implementation may have `config`, a dataclass whose fields are of str, int, bool, list or dict, and `health`, a
    method that returns at once why the process is unhealthy. A driver's health is in its fingerprint.
    """

    def __init__(self, implementation: Any, process: Process, **info: str) -> None:
        self._implementation = implementation
        self._process = process
        self._info = plugin.InfoResponse(**info)

    def info(self, request: Any) -> Any:
        return self._info

    def _parse(self, request: Any) -> Any:
        now = getattr(self._implementation, "config", None)
        try:
            config = json.loads(request.config or b"{}")
            if not isinstance(config, dict):
                raise ValueError("the configuration is not a JSON object")
            types = {field.name: field.type for field in dataclasses.fields(now)} if now else {}
            for key, value in config.items():
                if key not in types:
                    raise ValueError(f"there is no key {key}")
                if not isinstance(value, types[key]):
                    raise ValueError(f"{key}: {value!r} is no {types[key].__name__}")
            return type(now)(**config) if now else None
        except ValueError as err:
            raise PluginError(grpc.StatusCode.INVALID_ARGUMENT, str(err)) from err

    def validate(self, request: Any) -> None:
        self._parse(request)

    def configure(self, request: Any) -> None:
        self._implementation.config = self._parse(request)

    async def stop(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        self._process.stop("the host asked for it")
        return plugin.StopResponse()

    async def attend(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        health: Callable[[], str] = getattr(self._implementation, "health", lambda: "")
        last, sent = None, 0.0
        with self._process.attended(request.orphan_timeout_ms / 1000):
            while True:
                message = health()
                if message != last or time.monotonic() - sent >= HEALTH_REPEAT:
                    last, sent = message, time.monotonic()
                    await context.write(plugin.AttendResponse(healthy=not message, message=message))
                await self._process.pause(HEALTH_INTERVAL, context)


async def _call(method: Callable[[Any], Any], request: Any, context: grpc.aio.ServicerContext) -> Any:
    """Runs a method in a thread. One whose caller has given up runs to its end: the next call must stand that."""
    try:
        return await asyncio.get_running_loop().run_in_executor(None, method, request)
    except PluginError as err:
        await context.abort(err.code, str(err))
    except Exception as err:
        log.exception("%s failed", method.__name__)
        await context.abort(grpc.StatusCode.INTERNAL, f"{type(err).__name__}: {err}")


def _unary(method: Callable[[Any], Any], response: type) -> Callable:
    async def handler(request: Any, context: grpc.aio.ServicerContext) -> Any:
        return await _call(method, request, context) or response()

    return handler


def _stream(method: Callable[[Any], Any], process: Process) -> Callable:
    """Makes a stream of a method that looks once: what it returns is sent when it changes."""

    async def handler(request: Any, context: grpc.aio.ServicerContext) -> None:
        last = None
        while True:
            now = await _call(method, request, context)
            if now != last:
                await context.write(now)
                last = now
            await process.pause(request.interval_ms / 1000 or POLL_INTERVAL, context)

    return handler


def _handlers(service: Any, implementation: Any, process: Process) -> grpc.GenericRpcHandler:
    """Serves what the implementation has of a service, CreateSnapshot as create_snapshot. gRPC answers the rest with
    UNIMPLEMENTED. Functions that are async run in the event loop and do all themselves, others run in threads."""
    handlers = {}
    for rpc in service.methods:
        method = getattr(implementation, re.sub(r"(?<!^)(?=[A-Z])", "_", rpc.name).lower(), None)
        if method is None:
            continue
        request, response = message_class(rpc.input_type), message_class(rpc.output_type)
        make = grpc.unary_stream_rpc_method_handler if rpc.server_streaming else grpc.unary_unary_rpc_method_handler
        if rpc.client_streaming:
            make = grpc.stream_stream_rpc_method_handler
        if not inspect.iscoroutinefunction(method):
            method = _stream(method, process) if rpc.server_streaming else _unary(method, response)
        handlers[rpc.name] = make(method, request.FromString, response.SerializeToString)
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _credentials() -> grpc.ServerCredentials:
    """Reads the bundle that the host made for this process: the plugin's certificate, the host's certificate, and the
    plugin's key. Only this host may make calls."""
    with open(os.environ["PANNIER_PLUGIN_TLS"], "rb") as file:
        blocks = re.findall(rb"(-----BEGIN ([A-Z ]+)-----.*?-----END \2-----\n)", file.read(), re.DOTALL)
    if [kind for _, kind in blocks] != [b"CERTIFICATE", b"CERTIFICATE", b"PRIVATE KEY"]:
        raise ValueError("the TLS bundle does not hold two certificates and a key")
    (own, _), (host, _), (key, _) = blocks
    return grpc.ssl_server_credentials([(key, own)], root_certificates=host, require_client_auth=True)


class _HostFormat(logging.Formatter):
    """A line of JSON in hclog's format, which the host's log understands."""

    def format(self, record: logging.LogRecord) -> str:
        level = "warn" if record.levelno == logging.WARNING else record.levelname.lower()
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return json.dumps({"@level": level, "@message": super().format(record), "@timestamp": when})


async def _serve(implementation: Any, services: tuple[Any, ...], info: dict[str, str]) -> None:
    loop, process = asyncio.get_running_loop(), Process()
    loop.set_default_executor(ThreadPoolExecutor(MAX_THREADS))
    loop.add_signal_handler(signal.SIGTERM, process.stop, "SIGTERM")
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 16 << 20)])
    own = _handlers(plugin.PluginService, PluginService(implementation, process, **info), process)
    server.add_generic_rpc_handlers((own, *(_handlers(service, implementation, process) for service in services)))
    if hasattr(implementation, "start"):
        await implementation.start(process)
    socket = os.path.join(os.environ["PLUGIN_UNIX_SOCKET_DIR"], "plugin.sock")
    server.add_secure_port(f"unix:{socket}", _credentials())
    await server.start()
    # The handshake: the versions of go-plugin and of the wire, the socket, and the protocol.
    print(f"1|{WIRE}|unix|{socket}|grpc|", flush=True)
    await process.wait()
    if hasattr(implementation, "close"):
        await implementation.close()
    await server.stop(FINISH_CALLS)
    os._exit(0)  # asyncio would wait for threads that hang


def serve(implementation: Any, *services: Any, name: str, version: str, kind: str) -> None:
    """Serves an implementation to the host that started the process: of the kind's service, and of those that the
    wire has besides. It may have the methods start(process) and close(), both async."""
    if os.environ.get("PANNIER_PLUGIN") != "a-pannier-carries-things-at-the-side":
        sys.exit(f"{name} {version} is a plugin for pannier ({kind}) and is not run by hand.")
    versions = os.environ.get("PLUGIN_PROTOCOL_VERSIONS", "")
    if str(WIRE) not in versions.split(","):
        sys.exit(f"the host does not speak version {WIRE} of the wire, only {versions}")
    output = logging.StreamHandler()
    output.setFormatter(_HostFormat())
    level = os.environ.get("PANNIER_LOG_LEVEL", "info").upper()
    logging.basicConfig(level=logging.DEBUG if level == "TRACE" else level, handlers=[output])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the host's
    asyncio.run(_serve(implementation, services, {"name": name, "version": version, "kind": kind}))
