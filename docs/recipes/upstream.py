"""An upstream that speaks the protocols of docs/recipes.md: `python3 docs/recipes/upstream.py 8000`.

The request says what the answer costs: `x-tokens: 300` in place of 120 tokens, `x-status: 401`, `x-wait-ms: 50`. WebSockets
are echoed, and `/events/` has no end.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.headers.get("upgrade") == "websocket":
            return self.echo()
        if self.path.startswith("/events/"):
            return self.endless()
        self.answer("text/plain", b"x" * int(self.headers.get("x-tokens", 120)))

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            asked = json.loads(body or b"{}")
        except ValueError:
            asked = {}
        tokens = int(self.headers.get("x-tokens", 120))
        streams = isinstance(asked, dict) and asked.get("stream")
        if self.path == "/v1/chat/completions":
            usage = {"usage": {"total_tokens": tokens}}
            word = {"choices": [{"delta": {"content": "word"}}]}
            self.events([word, word, usage, "[DONE]"]) if streams else self.json(usage)
        elif self.path == "/v1/messages":
            output = {"output_tokens": tokens}
            start = {"type": "message_start", "message": {"usage": {"input_tokens": 20, "output_tokens": 1}}}
            end = {"type": "message_delta", "usage": output}
            self.events([start, end, {"type": "message_stop"}]) if streams else self.json({"usage": {"input_tokens": 20, **output}})
        elif self.path == "/mcp":
            self.json({"jsonrpc": "2.0", "id": asked.get("id"), "result": {}})
        else:
            self.json({}, {"x-graphql-cost": str(tokens)})

    def json(self, value, headers=None):
        self.answer("application/json", json.dumps(value).encode(), headers)

    def events(self, events):
        data = (event if isinstance(event, str) else json.dumps(event) for event in events)
        self.answer("text/event-stream", "".join(f"data: {event}\n\n" for event in data).encode())

    def echo(self):
        """What a WebSocket sends comes back as it is, until it is closed."""
        self.close_connection = True
        self.send_response(101)
        self.send_header("connection", "upgrade")
        self.send_header("upgrade", "websocket")
        self.end_headers()
        while data := self.connection.recv(4096):
            self.connection.sendall(data)

    def endless(self):
        """Events until the client has gone."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"data: {}\n\n")
                time.sleep(0.1)
        except OSError:
            pass

    def answer(self, media, body, headers=None):
        time.sleep(int(self.headers.get("x-wait-ms", 0)) / 1000)
        self.send_response(int(self.headers.get("x-status", 200)))
        for name, value in {"content-type": media, "content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8000), Upstream)
    print(server.server_port, flush=True)
    server.serve_forever()
