"""What Django reads of a request, behind gunicorn."""
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import re_path

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="echo", USE_TZ=True)


def echo(request):
    scheme, *token = request.headers.get("Authorization", "").split(None, 1) or [""]
    return JsonResponse({
        "cookie": request.COOKIES.get("session"),
        "header": request.headers.get("X-Api-Key", "").strip(),
        "query": request.GET.get("account_id"),
        "token": token[0].strip() if token and scheme.lower() == "bearer" else None,
    })


urlpatterns = [re_path("", echo)]
application = get_wsgi_application()
