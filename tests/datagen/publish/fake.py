"""Servers that speak as much of the Hub's and of Kaggle's protocol as their clients need for an upload."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Json = Any


class Server:
    """A server on a real socket; a subclass answers its requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        """The method and the path of each request."""
        self.tokens: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def do_PUT(self) -> None:
                self._answer()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                # A proxy gets whole addresses.
                path = urlsplit(self.path).path
                outer.requests.append(f"{self.command} {path}")
                outer.tokens.add((self.headers.get("authorization") or "").removeprefix("Bearer "))
                status, answer = outer.answer(self.command, path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Json]:
        """Return the status and the JSON of an answer."""
        raise NotImplementedError

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Hub(Server):
    """The Hugging Face Hub."""

    def __init__(self) -> None:
        super().__init__()
        self.repositories: dict[str, dict[str, bytes]] = {}
        """The files of each dataset."""
        self.private: dict[str, bool] = {}
        self.status = 200
        """The status of the answer to the creation of a dataset, if it is an error."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Json]:
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        found = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(/.*)?", path)
        if found is None or found[1] not in self.repositories:
            return 404, {"error": "Repository not found"}
        files, rest = self.repositories[found[1]], found[2] or ""
        if rest.startswith("/preupload/"):
            asked = json.loads(body)["files"]
            return 200, {
                "files": [
                    {"path": item["path"], "uploadMode": "regular", "shouldIgnore": False} for item in asked
                ]
            }
        if rest.startswith("/commit/"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
            address = f"{self.url}/datasets/{found[1]}/commit/1"
            return 200, {"success": True, "commitOid": "1" * 40, "commitUrl": address, "hookOutput": ""}
        if rest.startswith("/tree/"):
            return 200, [
                {"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in files.items()
            ]
        siblings = [{"rfilename": name} for name in files]
        return 200, {"id": found[1], "sha": "1" * 40, "siblings": siblings, "private": False, "tags": []}

    def _create(self, asked: Json) -> tuple[int, Json]:
        path = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if self.status != 200:
            return self.status, {"error": "no, said the Hub"}
        if path in self.repositories:
            return 409, {
                "error": "You already created this dataset repo",
                "url": f"{self.url}/datasets/{path}",
            }
        self.repositories[path] = {".gitattributes": b""}
        self.private[path] = bool(asked.get("private")) or asked.get("visibility") == "private"
        return 200, {"url": f"{self.url}/datasets/{path}", "id": "1", "name": path}


class Kaggle(Server):
    """Kaggle, as a proxy: its client takes no other address than those of its own list, such as http://localhost."""

    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}
        """The files that were uploaded, by name."""
        self.created: list[Json] = []
        self.versions: list[Json] = []
        self.known: set[str] = set()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Json]:
        if path.startswith("/upload/"):
            self.blobs[path.removeprefix("/upload/")] = body
            return 200, {}
        asked = json.loads(body) if body else {}
        name = path.rpartition("/")[2]
        if name == "StartBlobUpload":
            return 200, {"token": asked["name"], "createUrl": f"http://localhost/upload/{asked['name']}"}
        if name == "GetDatasetStatus":
            path = f"{asked['ownerSlug']}/{asked['datasetSlug']}"
            return (200, {"status": "READY"}) if path in self.known else (404, {"message": "not found"})
        if name == "CreateDataset":
            self.created.append(asked)
            return 200, {"ref": "r", "url": "u", "status": "ok", "error": ""}
        if name == "CreateDatasetVersion":
            self.versions.append(asked)
            return 200, {"ref": "r", "url": "u", "status": "ok", "error": ""}
        if name == "IntrospectToken":
            return 200, {"active": True, "username": "me"}
        return 404, {"message": f"no such method: {path}"}
