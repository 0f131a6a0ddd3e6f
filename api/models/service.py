"""Verbs of models. Nothing of a model is read here: a chore does, in a process of its own."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from api.auth.caller import Caller, ProjectCaller
from api.gateway import Gateway
from api.problems import Finding, conflict, invalid, not_found
from api.system.registry import info_of
from api.system.registry import models as builtin
from api.uploads import Form, Plan
from domain.errors import PayloadUnreadable
from domain.model_files import DESCRIPTION_FILES, INDEX_FILE, SHARD, SHARDS_MAX, WEIGHTS_FILE
from infra.names import IMPORT_MODEL, model_path
from stores import checkpoints
from stores import models as store
from stores.environments import Owner
from stores.models import NewModel
from stores.paging import PageRequest
from stores.unit_of_work import AsyncConnection
from venusrl.models.checkpoints import BaseModelInfo, File
from venusrl.models.common import Page
from venusrl.models.models import FromHub, ModelCreate, ModelInfo

CHECKPOINT_PREFIX: Final = "ckpt_"
"""A base with this prefix is a checkpoint, used as a model."""

NAME: Final = re.compile(r"[a-z][a-z0-9._-]{0,62}")


def upload_plan(gateway: Gateway) -> Plan:
    """What a model upload may hold."""
    whole = (*DESCRIPTION_FILES, WEIGHTS_FILE, INDEX_FILE)
    names = re.compile("|".join([*map(re.escape, whole), SHARD.pattern]))
    limit = gateway.settings.limits.asset_bytes
    return Plan(names, len(whole) + SHARDS_MAX, limit, frozenset({"name"}), "The model")


def builtin_info(model: BaseModelInfo) -> ModelInfo:
    """Wire form of a built-in model."""
    return ModelInfo(
        name=model.name,
        ref=model.name,
        source={"type": "builtin"},
        context_tokens=model.context_tokens,
        parameters=model.parameters,
        trainable=model.trainable,
    )


def model_of(row: Any) -> ModelInfo:
    """Wire form of a model row; where its files lie stays inside."""
    columns = {name: value for name, value in row._mapping.items() if name != "files"}
    files = [File(name=one["name"], size=one["size"], sha256=one["sha"]) for one in row.files]
    return ModelInfo.model_validate({**columns, "files": files})


async def page(connection: AsyncConnection, caller: Caller, wanted: PageRequest) -> Page[ModelInfo]:
    """Built-in models by name, then those of the caller's project by id; the other way round too."""
    own = sorted(builtin())
    first = own[::-1] if wanted.descending else own
    if wanted.descending:
        return await _page_down(connection, caller, wanted, first)
    after = wanted.after
    if after in first or after is None:
        rest = first[first.index(after) + 1 :] if after is not None else first
        shown = [builtin_info(builtin()[name]) for name in rest[: wanted.limit]]
        left = wanted.limit - len(shown)
        rows, has_more = await _rows(connection, caller, PageRequest(max(left, 1)))
        if left == 0:
            more = len(rest) > wanted.limit or bool(rows)
            return Page[ModelInfo](data=shown, has_more=more, next=shown[-1].name if more else None)
        data = shown + [model_of(row) for row in rows]
        return Page[ModelInfo](data=data, has_more=has_more, next=rows[-1].id if has_more else None)
    rows, has_more = await _rows(connection, caller, wanted)
    data = [model_of(row) for row in rows]
    return Page[ModelInfo](data=data, has_more=has_more, next=rows[-1].id if has_more else None)


async def _page_down(
    connection: AsyncConnection, caller: Caller, wanted: PageRequest, names: Sequence[str]
) -> Page[ModelInfo]:
    rows: Sequence[Any] = ()
    has_more = False
    rest = list(names)
    if wanted.after in names:
        rest = rest[rest.index(str(wanted.after)) + 1 :]
    else:
        rows, has_more = await _rows(connection, caller, wanted)
    data = [model_of(row) for row in rows]
    if has_more:
        return Page[ModelInfo](data=data, has_more=True, next=rows[-1].id)
    left = wanted.limit - len(data)
    data += [builtin_info(builtin()[name]) for name in rest[:left]]
    more = len(rest) > left
    last = data[-1].id or data[-1].name if data else None
    return Page[ModelInfo](data=data, has_more=more, next=last if more else None)


async def _rows(
    connection: AsyncConnection, caller: Caller, wanted: PageRequest
) -> tuple[Sequence[Any], bool]:
    if caller.project_id is None:
        return (), False
    found = await store.page(connection, caller.project_id, wanted)
    return found.rows, found.has_more


async def need(
    connection: AsyncConnection, project_id: str, named: str, *, lock: bool = False
) -> Any:
    """A model of the project by id, name or reference. Raises 404."""
    row = await store.find(connection, project_id, named, lock=lock)
    if row is None:
        known = [*builtin(), *await store.refs(connection, project_id)]
        raise not_found("model", named, known)
    return row


def check_upload(form: Form) -> str:
    """The name of an uploaded model. Raises 422 for a bad name or a missing file."""
    name = form.fields.get("name", "")
    findings = []
    if not NAME.fullmatch(name):
        message = "A model's name starts with a letter and has at most 63 of a-z 0-9 . _ -"
        findings.append(Finding("/name", "bad_name", message))
    findings += [
        Finding(f"/{file}", "missing_file", "The upload lacks this file.")
        for file in (*DESCRIPTION_FILES, WEIGHTS_FILE)
        if file not in form.files and not (file == WEIGHTS_FILE and INDEX_FILE in form.files)
    ]
    if findings:
        raise invalid(findings, "The upload is no model.")
    return name


async def store_upload(gateway: Gateway, model_id: str, form: Form) -> list[dict[str, Any]]:
    """Write the files under the new model's id."""
    stored = []
    for name, one in sorted(form.files.items()):
        blob = await gateway.blobs.create_from(model_path(model_id, name), one.path, one.sha)
        stored.append({"name": name, "size": one.size, "sha": one.sha, "uri": blob.uri})
    return stored


async def remove(gateway: Gateway, model_id: str, names: Iterable[str]) -> None:
    """Delete the objects of a model that no row names any more."""
    for name in sorted({*DESCRIPTION_FILES, WEIGHTS_FILE, *names}):
        await gateway.blobs.delete(model_path(model_id, name))


async def create(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, new: NewModel
) -> dict[str, Any]:
    """Insert the model and the operation that imports it. Raises 409 for a name that is taken."""
    if new.name in builtin():
        raise conflict(f"{new.name!r} is the name of a built-in model.", "name_taken")
    owner = Owner(caller.organization_id, caller.project_id)
    row = await store.create(connection, owner, new)
    if row is None:
        detail = f"The project has a model {new.name!r} already, or one of {new.ref}."
        raise conflict(detail, "name_taken")
    await checkpoints.start_operation(
        connection, caller.project_id, gateway.ids.new("op"), IMPORT_MODEL, {"model_id": row.id}
    )
    return model_of(row).model_dump(mode="json")


async def create_from(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: ModelCreate
) -> dict[str, Any]:
    """A model from a checkpoint of the project or from a hub revision."""
    source = body.source
    id = gateway.ids.new("mdl")
    ref = f"upload:{id}"
    if isinstance(source, FromHub):
        ref = f"hf:{source.repo}@{source.revision}"
    else:
        row = await checkpoints.find(connection, caller.project_id, source.checkpoint, lock=True)
        if row is None:
            raise invalid([_unknown_checkpoint(source.checkpoint)])
        if row.state != "ready":
            raise conflict(f"The checkpoint is {row.state}.", "checkpoint_not_ready")
    new = NewModel(id, body.name, ref, source.model_dump(mode="json"))
    return await create(connection, gateway, caller, new)


def _unknown_checkpoint(checkpoint: str) -> Finding:
    message = f"There is no checkpoint {checkpoint!r} in this project."
    return Finding("/source/checkpoint", "unknown_checkpoint", message)


async def delete(connection: AsyncConnection, caller: ProjectCaller, named: str) -> Any:
    """Delete a model and return its row. Raises 404, or 409 while a job needs it."""
    row = await need(connection, caller.project_id, named, lock=True)
    job = await store.job_using(connection, caller.project_id, row.ref)
    if job is not None:
        raise conflict(f"The job {job} starts from this model and has not ended.", "in_use")
    await store.delete(connection, caller.project_id, row.id)
    return row


async def bases(
    connection: AsyncConnection, gateway: Gateway, project_id: str, wanted: object
) -> Mapping[str, BaseModelInfo]:
    """What `model.base` of a spec may say: built-in models, and the one it names, if it is ready.

    The named one stays until the transaction ends.
    """
    known = dict(builtin())
    if not isinstance(wanted, str) or wanted in known or "\x00" in wanted:
        return known
    if wanted.startswith(CHECKPOINT_PREFIX):
        found = await _checkpoint_base(connection, gateway, project_id, wanted)
    else:
        found = await _model_base(connection, gateway, project_id, wanted)
    return known if found is None else {**known, wanted: found}


async def _model_base(
    connection: AsyncConnection, gateway: Gateway, project_id: str, wanted: str
) -> BaseModelInfo | None:
    row = await store.find_base(connection, project_id, wanted)
    return await _described(gateway, row, wanted)


async def _checkpoint_base(
    connection: AsyncConnection, gateway: Gateway, project_id: str, wanted: str
) -> BaseModelInfo | None:
    """A ready checkpoint, by the configuration among its files."""
    row = await checkpoints.find(connection, project_id, wanted, lock=True)
    return await _described(gateway, row, wanted)


async def _described(gateway: Gateway, row: Any, wanted: str) -> BaseModelInfo | None:
    """What the descriptions among a ready row's files say; None when they say nothing."""
    if row is None or row.state != "ready":
        return None
    files = {one["name"]: one for one in row.files}
    try:
        config, chat = [
            json.loads(await gateway.blobs.read(files[name]["uri"], files[name]["sha"]))
            for name in ("config.json", "chat.json")
        ]
        return info_of(wanted, config, chat)
    except (PayloadUnreadable, ValueError, KeyError, TypeError):
        return None


async def known_refs(connection: AsyncConnection, project_id: str) -> list[str]:
    """Names and references of the project's models, for near names."""
    return await store.refs(connection, project_id)
