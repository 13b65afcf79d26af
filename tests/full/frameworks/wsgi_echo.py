"""What the standard library reads of a request, behind gunicorn or, as a program, wsgiref."""
import json
import sys
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs
from wsgiref.simple_server import make_server


def application(environ, start_response):
    try:
        cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get("session")
    except CookieError:
        cookie = None
    scheme, *token = environ.get("HTTP_AUTHORIZATION", "").split(None, 1) or [""]
    start_response("200 OK", [("content-type", "application/json")])
    return [json.dumps({
        "cookie": cookie and cookie.value,
        "header": environ.get("HTTP_X_API_KEY"),
        "query": parse_qs(environ["QUERY_STRING"]).get("account_id", [None])[-1],
        "token": token[0].strip() if token and scheme.lower() == "bearer" else None,
    }).encode()]


if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), application).serve_forever()
