"""A JSON schema of recipe files, for editors."""

from __future__ import annotations

from typing import Any

from cnf_cli import plugins
from cnf_cli.recipe.build import TABLES


def recipe_schema() -> dict[str, Any]:
    """Every table; where a table chooses a plugin, one alternative per plugin."""
    properties: dict[str, Any] = {"extends": {"type": "string", "description": "relative path of a recipe to build on"}}
    definitions: dict[str, Any] = {}
    for name, (section, family, chooser) in TABLES.items():
        if family is None:
            properties[name] = _flat(section.model_json_schema(ref_template="#/$defs/{model}"), definitions)
            continue
        alternatives = []
        for kind in plugins.kinds(family):
            schema = _flat(plugins.params(family, kind).model_json_schema(ref_template="#/$defs/{model}"), definitions)
            schema["title"] = kind
            schema["properties"][chooser] = {"const": kind, "description": plugins.summary(family, kind)}
            if kind != section.model_fields[chooser].default:
                schema["required"] = [*schema.get("required", []), chooser]
            alternatives.append(schema)
        properties[name] = {"oneOf": alternatives}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cnf recipe",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "$defs": definitions,
    }


def _flat(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    definitions.update(schema.pop("$defs", {}))
    return schema
