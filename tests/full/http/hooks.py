"""What schemathesis cannot know of the sidecar's HTTP: lists whose entries are refused one by one, and what our errors
consist of."""

import schemathesis
from schemathesis.specs.openapi.checks import negative_data_rejection

LIMITS = ["per-key", "everyone"]
# The document's example, whose key the test uses first.
LISTS = ["decisions", "settles", "resets"]
# Where the request is not at fault, no field is.
NO_FIELD = {409, 429, 500, 503}


def entries(case):
    """The list in the body of a request, if it is one."""
    body = case.body if isinstance(case.body, dict) else {}
    for name in LISTS:
        if isinstance(body.get(name), list):
            return body[name]
    return []


def is_positive(case):
    return case.meta is not None and case.meta.generation.mode.is_positive


def is_one_verdict(case):
    """Whether the verdict of the one decision is the status."""
    return bool(case.query) and "denied" in case.query


@schemathesis.hook
def filter_case(context, case):
    """With `?denied=429` a valid request has one decision, which no schema can say."""
    return not (is_positive(case) and is_one_verdict(case) and len(entries(case)) != 1)


def valid_override(case):
    """Makes an override one that the policy can have: no schema can say which limits and windows there are, nor that an end
    is to come."""
    case.body["limit"] = "everyone"
    if "key" in case.body:
        case.body["key"] = case.body["key"][:100]
    for field in ("reason", "by"):
        if case.body.get(field):
            case.body[field] = "".join(c for c in case.body[field] if c.isprintable())[:30]
    if case.method.upper() == "PUT":
        allowances = [{"quota": 7}, {"unlimited": True}, {"blocked": True}, {"windows": [{"quota": 7, "per": "1s"}]}]
        for field in ("quota", "burst", "windows", "unlimited", "blocked", "until"):
            case.body.pop(field, None)
        case.body.update({"unlimited": True} if "all_keys" in case.body else allowances[len(str(case.body)) % 4])


@schemathesis.hook
def before_call(context, case, kwargs):
    """Gives half of the valid entries limits that the policy has, since a generator never guesses one; and where the verdict
    is the status, gives all of them limits, keys and costs that can be admitted."""
    if not is_positive(case):
        return
    if case.path == "/v1/overrides" and isinstance(case.body, dict):
        valid_override(case)
        return
    for number, entry in enumerate(entries(case)):
        for place, check in enumerate(entry.get("checks", [entry])):
            if is_one_verdict(case):
                check.update(limit=LIMITS[place % 2], key=f"{place}{check['key'][:100]}", cost=check.get("cost", 1) % 2)
            elif len(check.get("key", "")) % 2 == 0:
                check["limit"] = LIMITS[number % 2]


def has_list_for_object(value):
    """Whether a list may stand where an object belongs, which is read field by field."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return any(isinstance(value, list) and isinstance(part, list) or has_list_for_object(part) for part in parts)


@schemathesis.check
def invalid_entries_are_refused(ctx, response, case):
    """An invalid request is refused, or the entry that is invalid has an error of its own that names the field."""
    if isinstance(case.body, list) or has_list_for_object(case.body):
        return
    if response.status_code == 200 and response.headers["content-type"][0].startswith("application/json"):
        answer = response.json()
        outcomes = answer.get("verdicts") or answer.get("outcomes") or []
        errors = [outcome for outcome in outcomes if outcome["outcome"] == "error"]
        if errors:
            for error in errors:
                assert "[" in error["field"], f"an entry's error names no field: {error}"
            return
    negative_data_rejection(ctx, response, case)


@schemathesis.check
def errors_are_problem_details(ctx, response, case):
    """Every error is `application/problem+json` with a code, and names the field that is wrong."""
    if response.status_code < 400:
        return
    if case.method.upper() == "HEAD":
        return
    kind = response.headers.get("content-type", ["nothing"])[0]
    assert kind == "application/problem+json", f"an error is {kind}"
    problem = response.json()
    assert problem["status"] == response.status_code, problem
    assert problem["code"] and problem["title"] and problem["detail"], problem
    assert problem.get("field") or response.status_code in NO_FIELD, f"an error names no field: {problem}"
