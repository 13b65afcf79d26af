"""What Starlette reads of a request, with FastAPI's HTTPBearer, behind uvicorn."""
import sys

import uvicorn
from fastapi import FastAPI, Request
from fastapi.security import HTTPBearer

app = FastAPI()
bearer = HTTPBearer(auto_error=False)


@app.get("/{path:path}")
async def echo(request: Request):
    token = await bearer(request)
    return {
        "cookie": request.cookies.get("session"),
        "header": request.headers.get("x-api-key"),
        "query": request.query_params.get("account_id"),
        "token": token and token.credentials,
    }


uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
