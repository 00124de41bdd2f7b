"""The commands of `poolplan` and their options. What they print is in `report.py` and `tables.py`."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from poolplan._core import __version__
from poolplan.cli.size import parse_size
from poolplan.configurators import HostPoolConfigurator, RuntimeSpec, create_memory_pool_configurator
from poolplan.configurators.runtime import CHOICES
from poolplan.errors import InsufficientMemoryError, InvalidOptionError, MemoryQueryError, PoolPlanError
from poolplan.memory import DeviceMemory, HostMemory
from poolplan.models import ModelSpec
from poolplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poolplan._core import MemoryPoolConfig, MemoryPoolConfigurator
    from poolplan.configurators import HostPoolConfig

_BAD_INPUT, _TOO_LITTLE_MEMORY = 2, 3
_HOST_OPTIONS = {"hicache_size", "hicache_ratio", "host_available"}
_NO_HOST_LIMIT = 2**63 - 1


def run(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name and return the exit code: 0, 2 for bad input, 3 for too little memory."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            command_line.main(list(arguments), prog_name="poolplan", standalone_mode=False, obj=caught)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (PoolPlanError, click.ClickException) as error:
        return _fail(error, as_json="--json" in arguments)
    except click.Abort:
        return _BAD_INPUT
    return 0


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__)
def command_line() -> None:
    """Exact sizes of the memory pools of LLM serving runtimes."""


def _runtime_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `RuntimeSpec` (those named, or all) to a command."""
    chosen = [option for option in fields(RuntimeSpec) if not names or option.name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(chosen):
            command = click.option(*_flags(option.name), option.name, **_click_type(option))(command)
        return command

    return decorate


def _flags(name: str) -> list[str]:
    flag = name.replace("_", "-")
    if flag.startswith("count-"):
        flag = flag.removeprefix("count-")
        return [f"--{flag}/--no-{flag}"]
    return [f"--{flag}"]


def _click_type(option: Any) -> dict[str, Any]:
    """How click reads one option: numbers as numbers, and the exact text of everything else."""
    attributes: dict[str, Any] = {"help": option.metadata["help"], "default": option.default, "show_default": True}
    if option.type == "bool":
        return attributes | {"is_flag": True}
    if option.name in CHOICES:
        return attributes | {"type": click.Choice(CHOICES[option.name]), "show_default": option.default is not None}
    if option.type.startswith("int"):
        return attributes | {"type": int, "show_default": option.default is not None}
    if option.default is None:
        return attributes | {"type": str, "show_default": False}
    return attributes | {"type": str, "default": str(option.default)}


@command_line.command(short_help="Plan the pools of a model.")
@click.argument("model")
@click.option(
    "--available",
    metavar="SIZE",
    help="The budget: 60GiB, 80GB, 1.5T or a number of bytes; `device` for all that this machine's device has free.",
)
@click.option("--draft", "drafts", multiple=True, metavar="MODEL", help="A draft model beside it; may be given again.")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="INPUT+OUTPUT",
    help="Count how many such requests fit.",
)
@click.option("--hicache-size", metavar="SIZE", help="Host pools too (HiCache): the bytes of all of them together.")
@click.option("--hicache-ratio", metavar="RATIO", help="Host pools too: host slots for each device slot.")
@click.option(
    "--host-available",
    metavar="SIZE",
    help="What the host pools of a rank may take at most; `host` for what this machine has, less 10 GiB.",
)
@_runtime_options()
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.pass_obj
def plan(
    caught: list[warnings.WarningMessage],
    model: str,
    available: str | None,
    drafts: tuple[str, ...],
    workloads: tuple[str, ...],
    hicache_size: str | None,
    hicache_ratio: str | None,
    host_available: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Plan the pools of MODEL: a name from the catalog, a folder, a config.json or a Hub id.

    Without --available, plan for --max-total-tokens and say what that takes.
    """
    from poolplan.cli.report import context_length_of, plan_report

    runtime = RuntimeSpec(**options)
    spec = ModelSpec.from_pretrained(model)
    for draft in drafts:
        spec = spec.with_draft(ModelSpec.from_pretrained(draft))
    configurator = create_memory_pool_configurator(spec, runtime)
    if available is not None:
        device = available.strip() == "device"
        budget = DeviceMemory.query().headroom_bytes if device else parse_size(available, "available")
        config = configurator.calculate_pool_sizes(budget)
    elif runtime.max_total_tokens is not None:
        config = configurator.calculate_pool_sizes_from_max_tokens(runtime.max_total_tokens)
    else:
        raise InvalidOptionError("available", "None", "pass a budget such as --available 60GiB, or --max-total-tokens")
    host = _plan_host(configurator, config, hicache_size, hicache_ratio, host_available)
    parsed = [Workload.parse(text) for text in workloads]
    request_tokens = runtime.request_tokens or context_length_of(configurator)
    report = plan_report(configurator, config, request_tokens, parsed, host)
    if as_json:
        _print_json(report, caught)
        return
    _print_warnings(caught)
    from poolplan.cli.tables import print_plan

    print_plan(report)


def _plan_host(
    configurator: MemoryPoolConfigurator,
    config: MemoryPoolConfig,
    hicache_size: str | None,
    hicache_ratio: str | None,
    host_available: str | None,
) -> HostPoolConfig | None:
    """Plan the host pools, where one of their options asks for them."""
    if hicache_size is None and hicache_ratio is None and host_available is None:
        return None
    size = None if hicache_size is None else parse_size(hicache_size, "hicache_size")
    if host_available is None:
        available = _NO_HOST_LIMIT if size is None else size
    elif host_available.strip() == "host":
        available = HostMemory.query().budget_bytes()
    else:
        available = parse_size(host_available, "host_available")
    host = HostPoolConfigurator(
        configurator=configurator, config=config, hicache_size=size, hicache_ratio=hicache_ratio
    )
    try:
        plan = host.calculate_pool_sizes(available)
    except InsufficientMemoryError as error:
        short = "host_available" if size is None or available < size else "hicache_size"
        alternatives = error.alternatives or {short: str(error.required_bytes)}
        raise InsufficientMemoryError(
            str(error), error.available_bytes, error.required_bytes, list(alternatives.items())
        ) from error
    return replace(plan, available_bytes=plan.total_bytes) if available == _NO_HOST_LIMIT else plan


@command_line.command(short_help="Show the memory that this machine has for pools.")
@click.option("--device", metavar="NAME", help="A device as PyTorch names it, such as cuda:1; by default the current.")
@click.option("--ranks-on-host", type=int, default=1, show_default=True, help="Ranks that share the host's memory.")
@click.option("--reserve", metavar="SIZE", default="10GiB", show_default=True, help="What the host keeps for all else.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.pass_obj
def memory(
    caught: list[warnings.WarningMessage], device: str | None, ranks_on_host: int, reserve: str, as_json: bool
) -> None:
    """Show what the device and the host have left, what binds, and what host pools may take.

    Nothing is allocated. Without PyTorch, or a device of its, only the host's memory is shown, unless --device asks.
    """
    from poolplan.cli.report import memory_report

    try:
        on_device, why_not = DeviceMemory.query(device), None
    except MemoryQueryError as error:
        if device is not None:
            raise
        on_device, why_not = None, str(error)
    host = HostMemory.query()
    budget = host.budget_bytes(reserve_bytes=parse_size(reserve, "reserve"), ranks_on_host=ranks_on_host)
    report = memory_report(on_device, why_not, host, budget)
    if as_json:
        _print_json(report, caught)
        return
    _print_warnings(caught)
    from poolplan.cli.tables import print_memory

    print_memory(report)


@command_line.command(short_help="Show what each layer of a model keeps.")
@click.argument("model")
@_runtime_options(
    "tp_size",
    "kv_cache_dtype",
    "v_cache_dtype",
    "mamba_ssm_dtype",
    "mamba_conv_dtype",
    "dsa_prefill_backend",
    "dsa_decode_backend",
)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
@click.pass_obj
def layers(caught: list[warnings.WarningMessage], model: str, as_json: bool, **options: Any) -> None:
    """Show what each layer of MODEL keeps for the tokens it has seen, and its bytes a slot on one rank."""
    from poolplan.cli.report import layers_report

    report = layers_report(ModelSpec.from_pretrained(model), RuntimeSpec(**options))
    if as_json:
        _print_json(report, caught)
        return
    _print_warnings(caught)
    from poolplan.cli.tables import print_layers

    print_layers(report)


def _print_json(report: dict[str, Any], caught: list[warnings.WarningMessage]) -> None:
    click.echo(json.dumps(report | {"warnings": [str(warning.message) for warning in caught]}, default=str))


def _print_warnings(caught: list[warnings.WarningMessage]) -> None:
    for warning in caught:
        click.secho("warning: ", fg="yellow", nl=False, err=True)
        click.echo(str(warning.message), err=True)


def _fail(error: PoolPlanError | click.ClickException, *, as_json: bool) -> int:
    """Show the error in one line, and return its exit code."""
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    message = " ".join(message.split())
    code = _TOO_LITTLE_MEMORY if isinstance(error, InsufficientMemoryError) else _BAD_INPUT
    if as_json:
        data: dict[str, Any] = {"type": type(error).__name__, "message": message, "exit_code": code}
        for name in (
            "option",
            "value",
            "allowed",
            "key",
            "available_bytes",
            "required_bytes",
            "missing_bytes",
            "alternatives",
        ):
            if hasattr(error, name):
                data[name] = getattr(error, name)
        click.echo(json.dumps({"error": data}, default=str))
        return code
    click.secho("error: ", fg="red", nl=False, err=True)
    click.echo(message, err=True)
    for hint in _hints(error):
        click.secho("hint: ", fg="green", nl=False, err=True)
        click.echo(hint, err=True)
    return code


def _hints(error: Exception) -> list[str]:
    """What to type instead, for the errors that know it."""
    if not isinstance(error, InsufficientMemoryError):
        return []
    options = {"available": str(error.required_bytes), **error.alternatives}
    if _HOST_OPTIONS & options.keys():  # the device's memory is not what is short
        del options["available"]
    return [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
