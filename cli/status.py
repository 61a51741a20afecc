"""``aliquot node status``: what is prepared on this node, for whom. Changes nothing."""

import json
from pathlib import Path
from typing import Any

import click

from cli.options import TABLE_OR_JSON, driver_name, kubelet_folders, mps_socket


@click.command()
@driver_name
@kubelet_folders
@mps_socket
@TABLE_OR_JSON
def status(driver_name: str, plugin_dir: Path | None, output: str, **folders: Any) -> None:
    """Show the claims that are prepared on this node, and the MPS daemons behind shares.

    Reads the plugin's records, running or not, asks the MPS supervisor, and changes nothing. The
    exit status is 1 if the folder cannot be read or a record is damaged.
    """
    from cli import records  # noqa: PLC0415 - keeps --help fast
    from driver.errors import StateError  # noqa: PLC0415

    folder = plugin_dir or folders["kubelet_root"] / "plugins" / driver_name
    try:
        _demand_folder(folder)
        held = records.read(folder / "claims", folders["cdi_dir"], driver_name)
        holder = records.lock_holder(folder / "dra.lock")
    except (OSError, StateError) as error:
        cause = error.__cause__ if isinstance(error, StateError) else error
        if isinstance(cause, PermissionError):
            raise click.ClickException(f"{cause.filename}: no permission; run as root") from error
        raise click.ClickException(str(error)) from error
    found = _as_data(held, folder, holder) | {"mps": _supervisor(folders["mps_socket"])}
    click.echo(json.dumps(found, indent=2) if output == "json" else "\n".join(_as_text(found)))
    if held.damaged:
        click.get_current_context().exit(1)


def _demand_folder(folder: Path) -> None:
    """Raises ``ClickException``; a folder below one that is closed to us is a PermissionError."""
    if not folder.is_dir():
        raise click.ClickException(
            f"no plugin folder {folder}: the plugin has not run on this node, or it uses another "
            "--plugin-dir, --kubelet-root or --driver-name"
        )


def _as_data(held: Any, folder: Path, holder: str | None) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "runningInstance": holder,
        "claims": [_claim(entry) for entry in held.entries],
        "damaged": [{"path": str(one.path), "problem": one.problem} for one in held.damaged],
    }


def _claim(entry: Any) -> dict[str, Any]:
    claim = entry.record.claim
    return {
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "state": entry.record.state.value,
        "since": entry.since.isoformat(timespec="seconds"),
        "bootID": entry.record.boot_id,
        "devices": [
            {
                "request": held.allocation.request,
                "device": held.allocation.device,
                "type": held.type,
                "gpu": held.gpu,
                "adminAccess": held.allocation.admin,
                **_partition(held),
                **_share(held),
            }
            for held in entry.record.held
        ],
        "cdiFile": str(entry.cdi_file),
        "cdiFilePresent": entry.cdi_present,
    }


def _supervisor(socket: Path | None) -> dict[str, Any] | None:
    """None: this node is to have none."""
    from mps.client import MpsClient  # noqa: PLC0415 - keeps --help fast
    from mps.protocol import MpsError  # noqa: PLC0415

    if socket is None:
        return None
    client = MpsClient(socket, timeout_s=2.0)
    try:
        info, cards = client.info(), client.cards()
    except MpsError as error:
        return {"problem": str(error)}
    return {
        "pid": info.pid,
        "problem": "" if info.protocols else info.failure or f"{info.program} does not work",
        "daemons": [
            {
                "gpu": state.spec.gpu,
                "pid": state.pid,
                "running": state.running,
                "failure": state.failure,
                "restarts": state.restarts,
            }
            for state in cards
        ],
    }


def _share(held: Any) -> dict[str, Any]:
    if held.share is None:
        return {}
    share = held.share
    return {
        "share": {
            "memoryBytes": share.memory,
            "computePercent": share.compute_percent,
            "memoryLimit": share.limits.memory,
            "computeLimit": share.limits.compute,
            "interval": None if share.interval is None else share.interval.name.capitalize(),
        }
    }


def _partition(held: Any) -> dict[str, Any]:
    if held.placement is None:
        return {}
    place = held.placement
    return {"profile": held.profile, "placement": {"start": place.start, "size": place.size}}


def _as_text(found: dict[str, Any]) -> list[str]:
    from cli.text import plural, state, table  # noqa: PLC0415

    runs = found["runningInstance"]
    lines = [
        f"plugin folder {found['folder']}",
        f"running: {runs}" if runs else "running: no (nobody holds the instance lock)",
        f"prepared: {plural(len(found['claims']), 'claim')}",
    ]
    lines += _mps_lines(found["mps"])
    if found["claims"]:
        head = ("CLAIM", "UID", "STATE", "DEVICE", "CARD", "SINCE", "CDI FILE")
        lines += ["", *table(head, [row for claim in found["claims"] for row in _rows(claim)])]
    for one in found["damaged"]:
        lines += ["", f"{state('fail')}  damaged: {one['path']}", f"      {one['problem']}"]
    return lines


def _mps_lines(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    if found["problem"]:
        return [f"MPS: {found['problem']}"]
    from cli.text import plural  # noqa: PLC0415

    daemons = found["daemons"]
    lines = [f"MPS: supervisor pid {found['pid']}, {plural(len(daemons), 'control daemon')}"]
    return lines + [
        f"  {each['gpu']}: down, {each['failure']}" for each in daemons if not each["running"]
    ]


def _part(device: dict[str, Any]) -> str:
    """``" 14Gi 25 %"``: what a claim has of a card that others use too."""
    share = device.get("share")
    if share is None:
        return _memory_slices(device)
    size = f" {share['memoryBytes'] / (1 << 30):.4g}Gi" if share["memoryBytes"] else ""
    if device["type"] == "timeslice":
        return f" a turn{size}"
    percent = share["computePercent"]
    return f"{size} {percent} %" if percent else f"{size} no cap"


def _memory_slices(device: dict[str, Any]) -> str:
    """`` [4-7]``: the memory slices of a partition."""
    place = device.get("placement")
    if place is None:
        return ""
    last = place["start"] + place["size"] - 1
    return f" [{place['start']}-{last}]" if place["size"] > 1 else f" [{last}]"


def _rows(claim: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a device; what belongs to the claim stands in the first."""
    present = "present" if claim["cdiFilePresent"] else click.style("missing", fg="red")
    name = f"{claim['namespace']}/{claim['name']}"
    rows: list[tuple[str, ...]] = []
    for i, device in enumerate(claim["devices"] or [{"device": "", "gpu": ""}]):
        cells = (device["device"], device["gpu"] + _part(device))
        whole = (name, claim["uid"], claim["state"], *cells, claim["since"], present)
        rows.append(whole if i == 0 else ("", "", "", *cells, "", ""))
    return rows
