"""The page: a table of the volumes, as ../volumes-page has it."""

import html
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

import grpc

from door import Door
from plugin import PluginError, log
from protocol import load, package

load("api.binpb")
api = package("pannier/host/v1/volume.proto")

LIST_VOLUMES = api.VolumeService.methods_by_name["ListVolumes"]


class Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds for a request, and so for the drain of an idle connection

    def do_GET(self) -> None:
        try:
            volumes = self.server.door.volumes()
        except grpc.RpcError as err:
            log.warning("the volumes could not be read: %s", err.details())
            self.send_error(HTTPStatus.BAD_GATEWAY, "The volumes cannot be read now; the agent's log says why.")
            return
        rows = "".join(f"<tr><td>{html.escape(v.spec.id)}<td>{html.escape(v.spec.plugin_id)}\n" for v in volumes)
        page = f"<!DOCTYPE html>\n<title>Volumes</title>\n<table>\n{rows}</table>\n".encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, text: str, *args: Any) -> None:
        log.debug(text, *args)


class Page(Door):
    handler = Handler

    def volumes(self) -> Any:
        """Lists the volumes that the plugin's policy shows, of all namespaces."""
        return self.call(LIST_VOLUMES, {"namespace": "*"}, timeout=10).volumes

    def ready(self, request: Any) -> None:
        """Is called before this process takes over from another one: the API must answer."""
        try:
            self.volumes()
        except grpc.RpcError as err:
            raise PluginError(err.code(), err.details()) from err
