"""`ultraserve ls`: devices of a server or a catalog machine, as neuron-ls lists them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from emulator.errors import ConfigError
from serving.commands.control_connection import add_connection_arguments, connect
from serving.server.control.control_address import ControlAddress
from serving.wire import control_call

if TYPE_CHECKING:
    from serving.telemetry.neuron_tools.device_inventory import DeviceInventory

_DESCRIPTION = (
    "List a running server's devices as neuron-ls does: its tables, its flags, its JSON. With "
    "--system, list those of a system of the catalog; no server is asked then."
)
_EPILOG = (
    "instance-type is the system's name in the catalog, instance-id the word emulated. The "
    "emulator has no PCI, CPU or NUMA places: NA in a table, null in JSON. There is no Neuron "
    "runtime either: its version is NA in both. Connected devices: neighbours in a torus, the "
    "others of the tray where there are switches or a mesh, and then those of the same position in "
    "other racks, which are linked (assumed for switched systems: nobody has shown neuron-ls "
    "there). A lost device is not listed; stderr names it. Processes are those of a server on this "
    "machine that this user may see."
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `ls` command."""
    parser = subparsers.add_parser(
        "ls",
        help="list devices, after neuron-ls: of a running server, or of a system of the catalog",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "-w", "--wide", action="store_true", help="show processes, in a wider format"
    )
    parser.add_argument(
        "-a",
        "--show-all-procs",
        action="store_true",
        help="show processes, those too that only look, such as this one",
    )
    parser.add_argument(
        "-t", "--topology", action="store_true", help="show how the devices are joined"
    )
    parser.add_argument("-j", "--json-output", action="store_true", help="print JSON")
    catalog = parser.add_argument_group("without a server")
    catalog.add_argument("--system", metavar="NAME", help="see `ultraserve describe`")
    catalog.add_argument(
        "--lnc", type=int, metavar="N", help="physical cores that form a logical one"
    )
    catalog.add_argument("--chips", type=int, metavar="N", help="the first ones (default: all)")
    add_connection_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list; returns 0. Raises UltraServeError."""
    _check(args)
    if args.system is None:
        inventory = _of_server(args)
    else:
        from serving.telemetry.neuron_tools.device_inventory import catalog_inventory

        inventory = catalog_inventory(args.system, lnc=args.lnc, chips=args.chips)
    for device, health in inventory.missing.items():
        print(f"device {device} is {health}", file=sys.stderr)
    if args.json_output or args.json:
        from serving.telemetry.neuron_tools.device_table import device_json

        print(json.dumps(device_json(inventory), indent=4))
    else:
        print("\n".join(_lines(args, inventory)))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.topology and (args.wide or args.show_all_procs):
        flag = "wide" if args.wide else "show-all-procs"
        raise ConfigError(flag, "given", "no --topology with it")
    if args.system is None:
        for flag in ("lnc", "chips"):
            if getattr(args, flag) is not None:
                expected = "--system with it; a server has its own"
                raise ConfigError(flag, getattr(args, flag), expected)


def _of_server(args: argparse.Namespace) -> DeviceInventory:
    from serving.telemetry.neuron_tools.device_inventory import server_inventory
    from serving.telemetry.neuron_tools.server_processes import server_processes

    with connect(args) as client:
        state = client.call(control_call.GET_STATE)
        description = client.call(control_call.DESCRIBE_SYSTEM)
    address = ControlAddress.parse(args.address)
    server = server_processes(address.host, address.port)
    using = server.using_devices() if server else ()
    return server_inventory(state, description, {chip.chip: using for chip in state.chips})


def _lines(args: argparse.Namespace, inventory: DeviceInventory) -> list[str]:
    from serving.telemetry.neuron_tools.device_table import (
        header_lines,
        plain_table,
        process_table,
        topology_table,
    )
    from serving.telemetry.neuron_tools.server_processes import this_process
    from serving.telemetry.neuron_tools.topology_drawing import topology_lines

    head = header_lines(inventory)
    if args.topology:
        return [*head, *topology_table(inventory), "", "", *topology_lines(inventory)]
    if args.wide or args.show_all_procs:
        table = process_table(
            inventory, wide=args.wide, everybody=args.show_all_procs, looking=this_process()
        )
        return [*head, *table]
    return [*head, *plain_table(inventory)]
