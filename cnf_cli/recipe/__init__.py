"""Recipes: one TOML file describes an experiment for all stages."""

from cnf_cli.recipe.build import TABLES, Recipe, build
from cnf_cli.recipe.load import load_recipe
from cnf_cli.recipe.sections import Section

__all__ = ["TABLES", "Recipe", "Section", "build", "load_recipe"]
