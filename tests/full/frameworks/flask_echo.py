"""What Flask reads of a request, behind Werkzeug's own server."""
import sys

from flask import Flask, request

app = Flask(__name__)


@app.get("/<path>")
def echo(path):
    return {
        "cookie": request.cookies.get("session"),
        "header": request.headers.get("X-Api-Key"),
        "query": request.args.get("account_id"),
        "token": request.authorization and request.authorization.token,
    }


app.run(port=int(sys.argv[1]))
