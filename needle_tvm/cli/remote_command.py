"""The commands `tracker` and `server`, for measuring candidates on other machines."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from needle_tvm.errors import UsageError
from needle_tvm.process.command_line import OK, positive
from needle_tvm.process.threads import configure_tvm_threads, thread_environment
from needle_tvm.target import host as machine
from needle_tvm.tune.remote import protocol
from needle_tvm.words import printable

_LOCAL = "127.0.0.1"


def add_parser(subparsers: Any) -> None:
    """Add both commands to a parser's subparsers."""
    about = "run the tracker that servers register at and tuning asks for servers"
    note = f"{about}. Security: {protocol.SECURITY}."
    tracker = subparsers.add_parser("tracker", help=about, description=note, allow_abbrev=False)
    _add_address(tracker, 9190, "9190")
    tracker.set_defaults(command=_tracker)

    about = "run a server that measures candidates on this machine"
    note = f"{about}. Security: {protocol.SECURITY}."
    server = subparsers.add_parser("server", help=about, description=note, allow_abbrev=False)
    server.add_argument("--tracker", required=True, metavar="HOST:PORT", help="where to register")
    server.add_argument(
        "--key", required=True, help="the kind of machine; tuning asks for servers by it"
    )
    server.add_argument(
        "--threads", type=positive, metavar="N", help="threads of a kernel (default: all cores)"
    )
    _add_address(server, 0, "any free one")
    server.set_defaults(command=_server)


def _add_address(parser: argparse.ArgumentParser, port: int, shown: str) -> None:
    text = f"address to listen on (default {_LOCAL}: only this machine reaches it)"
    parser.add_argument("--host", default=_LOCAL, help=text)
    text = f"port to listen on (default: {shown})"
    parser.add_argument("--port", type=_port, default=port, help=text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 0 to 65535")
    return int(text)


def _say(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def _announce(what: str, host: str, port: int, more: str = "") -> None:
    _say(f"{what} listening on {protocol.show_address(host, port)}{more}")
    if not protocol.is_loopback(host):
        _say(f"security: {protocol.SECURITY}")


def _tracker(options: argparse.Namespace) -> int:
    from needle_tvm.tune.remote import tracker

    with protocol.listen(options.host, options.port) as listener:
        _announce("tracker", *listener.getsockname()[:2])
        tracker.run(listener)
    return OK


def _server(options: argparse.Namespace) -> int:
    address = protocol.parse_address(options.tracker)
    protocol.check_key(options.key)
    if protocol.is_loopback(options.host) and not protocol.is_loopback(address[0]):
        raise UsageError(
            f"--host {options.host}: only this machine reaches it, and the tracker "
            f"{options.tracker} may send others: give the address they reach this machine by"
        )
    with protocol.listen(options.host, options.port) as listener:
        threads = configure_tvm_threads(options.threads)
        os.environ.update(thread_environment(threads))  # TVM reads it when it is imported
        from needle_tvm._tvm.names import host_cpu
        from needle_tvm.tune.remote.server import Server

        about = {"cpu": host_cpu(), **machine.describe(threads)}
        host, port = listener.getsockname()[:2]
        more = f": key {options.key}, threads {threads}, mcpu {about['cpu']}"
        _announce("server", host, port, more)
        Server(listener, address, options.key, about=about, report=_say).run()
