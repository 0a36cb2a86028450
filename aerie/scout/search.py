"""One category searched: listed, merged, looked into, scored, and what was not found said."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aerie.config import ScoutSettings
from aerie.contracts import VERSIONS
from aerie.errors import DataError
from aerie.files import write_sealed
from aerie.progress import Progress
from aerie.prompts.adapters import adapters
from aerie.scout.adapters import fit
from aerie.scout.categories import SUGGESTED, Category
from aerie.scout.client import Client, unanswered
from aerie.scout.details import Details, details_of
from aerie.scout.listing import Listed
from aerie.scout.score import score

# Look-ups wait for the Hub, not for a core; more at a time would only meet its limits sooner.
_AT_ONCE = 4


@dataclass(frozen=True)
class Scouting:
    """All that a search of one category needs. `mix` maps ids to names of entries of the mix."""

    category: Category
    settings: ScoutSettings
    mix: Mapping[str, str]
    cache: Path
    client: Client


def scout(scouting: Scouting, out: Path) -> dict[str, Any]:
    """Search a category and write what was found to `out`; also what was searched in vain.

    A search or a dataset that fails becomes a finding. Where the Hub does not answer at all the
    category is written as failed, so that the others and the report go on.
    """
    searched: list[dict[str, Any]] = []
    findings: list[str] = []
    candidates: list[dict[str, Any]] = []
    failure: dict[str, Any] | None = None
    listed = 0
    try:
        found = _list(scouting, searched, findings)
        listed = len(found)
        candidates = _look_into(scouting, found, findings)
    except DataError as error:
        failure = {"what": error.what, "saw": str(error.saw), "remedy": error.remedy}
    category = scouting.category
    content = {
        "artifact": "scout",
        "contract": VERSIONS["scout"],
        "category": {"key": category.key, "name": category.name, "purpose": category.purpose},
        "endpoint": scouting.client.endpoint,
        "settings": scouting.settings.model_dump(mode="json"),
        "mix": dict(scouting.mix),
        "status": "failed" if failure else "searched",
        "failure": failure,
        "searches": searched,
        "listed": listed,
        "candidates": candidates,
        "findings": findings,
    }
    write_sealed(out, content)
    return content


def known_ids(category: Category) -> list[str]:
    """Ids that are looked up by name: suggested ones, and those that Aerie has an adapter of."""
    suggested = [id for each in SUGGESTED if each.category == category.key for id in each.ids]
    own = [id for id, each in adapters().items() if each.category == category.name]
    return list(dict.fromkeys([*suggested, *category.known, *own]))


def _list(
    scouting: Scouting, searched: list[dict[str, Any]], findings: list[str]
) -> dict[str, Listed]:
    """Everything that the searches name, merged by id."""
    found: dict[str, Listed] = {}
    failure = None
    queries = list(_queries(scouting))
    endpoint = scouting.client.endpoint
    with Progress(f"{scouting.category.name}: searches", len(queries), "searches") as progress:
        for label, wanted, query in queries:
            entry: dict[str, Any] = {"search": label, "found": 0, "failure": None}
            searched.append(entry)
            try:
                listed = scouting.client.search(label, **query)
            except DataError as error:
                failure, entry["failure"] = error, str(error.saw)
                findings.append(f"{label} on {endpoint} failed: {error.saw}")
                if unanswered(error):
                    findings.append(f"after {label} nothing else was searched: no answer came")
                    break
            else:
                if wanted:
                    listed = [each for each in listed if each.id.lower() == wanted.lower()]
                entry["found"] = len(listed)
                _merge(found, listed)
                if not listed:
                    findings.append(f"{label} on {endpoint} found nothing")
            progress.advance(note=label)
    if failure and all(entry["failure"] for entry in searched):
        raise failure
    if not found:
        words = ", ".join(label for label, _, _ in queries)
        findings.append(f"the category is empty: {words} on {endpoint} named no dataset")
    return found


def _queries(scouting: Scouting) -> Iterable[tuple[str, str | None, dict[str, Any]]]:
    """What is asked: a label for people, the id that is wanted (None: any), the client's query."""
    category, limit = scouting.category, scouting.settings.listed
    for id in known_ids(category):
        author, name = id.split("/", 1)
        yield f"id {id}", id, {"author": author, "search": name, "limit": limit}
    for word in category.searches:
        yield f'name "{word}"', None, {"search": word, "limit": limit}
    for tags in category.tags:
        yield f"tags {' + '.join(tags)}", None, {"filter": list(tags), "limit": limit}


def _merge(found: dict[str, Listed], listed: Iterable[Listed]) -> None:
    for each in listed:
        before = found.get(each.id)
        by = dict.fromkeys([*(before.found_by if before else ()), *each.found_by])
        found[each.id] = replace(each, found_by=tuple(by))


def _look_into(
    scouting: Scouting, found: dict[str, Listed], findings: list[str]
) -> list[dict[str, Any]]:
    """The most promising datasets with their details, best first."""
    chosen = _choose(scouting, found)
    candidates: list[dict[str, Any]] = []
    if not chosen:
        return candidates

    def details(each: Listed) -> Details | DataError:
        try:
            return details_of(each, scouting.client, scouting.cache)
        except DataError as error:
            return error

    title = f"{scouting.category.name}: datasets"
    with Progress(title, len(chosen), "datasets") as progress, ThreadPoolExecutor(_AT_ONCE) as pool:
        for listed, read in zip(chosen, pool.map(details, chosen), strict=True):
            if isinstance(read, DataError):
                findings.append(f"{listed.id} was listed and could not be read: {read.saw}")
                read = Details(notes=(f"not read: {read.saw}",))
            candidates.append(_candidate(scouting, listed, read))
            progress.advance(note=listed.id)
    return sorted(candidates, key=lambda each: (-each["score"]["value"], each["id"]))


def _choose(scouting: Scouting, found: dict[str, Listed]) -> list[Listed]:
    """Those that are known by id, then the best by what the listing alone says."""
    known = set(known_ids(scouting.category)) | set(scouting.mix)
    ranked = sorted(
        found.values(),
        key=lambda each: (each.id not in known, -_score(scouting, each, None)[1].value, each.id),
    )
    must = sum(each.id in known for each in ranked)
    return ranked[: max(scouting.settings.candidates, must)]


def _score(scouting: Scouting, listed: Listed, details: Details | None) -> Any:
    fits = fit(listed.id, details.columns if details else ())
    settings = scouting.settings
    weights = settings.weights.model_dump()
    return fits, score(listed, details, fits, scouting.category, settings.traffic, weights)


def _candidate(scouting: Scouting, listed: Listed, details: Details) -> dict[str, Any]:
    fits, scored = _score(scouting, listed, details)
    return {
        "id": listed.id,
        "url": f"{scouting.client.endpoint}/datasets/{listed.id}",
        "revision": listed.revision,
        "found_by": list(listed.found_by),
        "description": listed.description[:300],
        "downloads": listed.downloads,
        "likes": listed.likes,
        "gated": listed.gated,
        "last_change": listed.last_change,
        "languages": list(listed.tagged("language")),
        "in_mix": scouting.mix.get(listed.id),
        "adapter": asdict(fits),
        **{key: value for key, value in asdict(details).items() if key not in ("blocked", "notes")},
        "columns": list(details.columns),
        "score": {
            "value": scored.value,
            "criteria": scored.criteria,
            "reasons": scored.reasons(),
        },
        "unverified": _unverified(listed, details),
    }


def _unverified(listed: Listed, details: Details) -> list[str]:
    """What a person has to find out before this dataset is used."""
    doubts = []
    if details.licence == "unknown":
        doubts.append("licence: none is stated")
    elif details.licence.startswith("other"):
        doubts.append(f"licence: {details.licence}, to be read on its page")
    if details.rows is None:
        doubts.append("rows: unknown")
    elif details.rows_from in ("tag", "estimate"):
        doubts.append(f"rows: {_SOURCES[details.rows_from]}")
    if not details.columns and not details.notes:
        doubts.append("columns: unknown")
    if details.bytes is None:
        doubts.append("bytes: unknown")
    if listed.gated != "no":
        doubts.append("access: gated, the terms have to be accepted")
    return [*doubts, *details.notes]


_SOURCES = {"tag": "only the order of magnitude, by a tag", "estimate": "scaled from one footer"}
