"""Writes JSON schemas for kubeconform: Kubernetes' own from kubernetes-validate, the custom resources' from their
definitions in Go modules. Every object is closed, so that a misspelt field is an error.

    schemas.py TARGET KUBERNETES_SCHEMAS MODULE...
"""

import json
import pathlib
import sys

import yaml


def kubernetes(source: pathlib.Path, target: pathlib.Path) -> None:
    """kubernetes-validate's files have absolute ids; kubeconform wants references to files beside one another."""
    for file in source.glob("*.json"):
        schema = json.loads(file.read_text())
        schema.pop("$id", None)
        text = json.dumps(schema).replace('"/api/_definitions.json', '"_definitions.json')
        (target / file.name).write_text(text)


def close(schema: object) -> object:
    """Refuses unknown fields, as `kubectl apply --validate=strict` does, and spells int-or-string as JSON Schema."""
    if isinstance(schema, list):
        return [close(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: close(value) for name, value in schema.items()}
    if closed.get("x-kubernetes-int-or-string") is True:
        closed.pop("type", None)
        closed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    known = isinstance(closed.get("properties"), dict) and closed.get("type") == "object"
    if known and "additionalProperties" not in closed and not closed.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    return closed


def definitions(module: pathlib.Path) -> list[dict]:
    """Every CustomResourceDefinition in a module's YAML files."""
    found = []
    for file in sorted(module.rglob("*.yaml")):
        if "CustomResourceDefinition" not in (text := file.read_text()) or "{{" in text.split("kind:")[0]:
            continue
        try:
            documents = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        except yaml.YAMLError:
            continue  # A template, or a test's broken file.
        found += [entry for entry in documents if isinstance(entry, dict) and entry.get("kind") == "CustomResourceDefinition"]
    return found


def custom(module: pathlib.Path, target: pathlib.Path) -> int:
    count = 0
    for definition in definitions(module):
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = close(version["schema"]["openAPIV3Schema"])
            # The names of these are not in the definition.
            schema["properties"].update(apiVersion={"type": "string"}, kind={"type": "string"}, metadata={"type": "object"})
            name = f'{spec["group"]}_{spec["names"]["kind"].lower()}_{version["name"]}.json'
            (target / name).write_text(json.dumps(schema))
            count += 1
    return count


def main() -> None:
    target, source, *modules = map(pathlib.Path, sys.argv[1:])
    target.mkdir(parents=True)
    kubernetes(source, target)
    for module in modules:
        if not custom(module, target):
            sys.exit(f"schemas.py: {module} has no CustomResourceDefinition")


main()
