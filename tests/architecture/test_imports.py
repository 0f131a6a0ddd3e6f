"""No import cycle; light installs stay light; our names collide with nothing installed."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib import metadata

import pytest

from tests.architecture.tree import PACKAGES, ROOT, Source, sources

HEAVY = ("torch", "fastapi", "celery", "sqlalchemy", "psycopg", "msgspec", "structlog", "obstore")

LIGHT_MODULES = ("venusrl", "venusrl.env", "venusrl.models", "venusrl.client", "venusrl.cli")


def top_level_imports(source: Source, modules: frozenset[str]) -> Iterator[str]:
    """Modules of ours that importing this one imports; those inside functions come later."""
    for node in source.tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            yield from sorted(inner) or ([node.module] if node.module in modules else [])


def graph() -> Mapping[str, set[str]]:
    modules = frozenset(source.module for source in sources())
    return {
        source.module: set(top_level_imports(source, modules)) - {source.module}
        for source in sources()
    }


def test_modules_form_no_import_cycle() -> None:
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]), pytrace=False)


def test_no_installed_distribution_ships_a_top_level_name_of_ours() -> None:
    shipped = metadata.packages_distributions()
    ours = {"venusrl"}
    taken = {name: shipped[name] for name in PACKAGES if set(shipped.get(name, [])) - ours}
    assert taken == {}


def test_importing_the_light_part_loads_nothing_of_the_server() -> None:
    present = [name for name in LIGHT_MODULES if (ROOT / name.replace(".", "/")).exists()
               or (ROOT / f"{name.replace('.', '/')}.py").exists()]  # fmt: skip
    code = f"""
import sys
for name in {present!r}:
    __import__(name)
heavy = {(*HEAVY, *sorted(set(PACKAGES) - {"venusrl"}))!r}
print(sorted(set(heavy) & {{name.partition(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_environment_kit_needs_the_standard_library_only() -> None:
    code = """
import sys
before = set(sys.modules)
import venusrl.env
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - {"venusrl"}
print(sorted(loaded - set(sys.stdlib_module_names)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
