"""Tools: functions with a JSON schema, calls in text, a task with tools, Python in a limited process, MCP."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from traceback import format_exception_only
from typing import Any, Literal, Protocol, TextIO, Union, cast, final, get_args, get_origin, get_type_hints

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError
from rl.llm.tasks import Problem, Reply, Task

__all__ = [
    "CallParser",
    "JSONCallParser",
    "MCPTools",
    "PythonInterpreter",
    "Tool",
    "ToolCall",
    "ToolRegistry",
    "ToolTask",
    "XMLBlockParser",
    "tool_of",
]

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


@dataclass(frozen=True)
class Tool:
    """A tool that a policy may call.

    Attributes:
        name: Name.
        description: What it does, for the policy.
        parameters: JSON schema of the arguments.
        function: Function that is called with the arguments by name.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]

    def describe(self) -> dict[str, Any]:
        """Return the description as chat templates read it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def tool_of(function: Callable[..., Any]) -> Tool:
    """Return a function as a tool: schema from its signature, texts from its docstring.

    Args:
        function: Function whose parameters are annotated.

    Raises:
        ArgumentError: If a parameter has no annotation, or one without a schema.

    Example:
        >>> def add(a: int, b: int = 0) -> int:
        ...     '''Add two numbers.
        ...
        ...     Args:
        ...         a: First number.
        ...     '''
        ...     return a + b
        >>> tool = tool_of(add)
        >>> tool.parameters["properties"]
        {'a': {'type': 'integer', 'description': 'First number.'}, 'b': {'type': 'integer'}}
        >>> tool.description, tool.parameters["required"]
        ('Add two numbers.', ['a'])
    """
    name = getattr(function, "__name__", type(function).__name__)
    hints = get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    text = inspect.getdoc(function) or ""
    properties: dict[str, Any] = {}
    required: list[str] = []
    for one in inspect.signature(function).parameters.values():
        if one.name not in hints or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise ArgumentError(f"tool_of: each parameter of {name} must have a name and an annotation, got {one}")
        described = re.search(rf"^\s+{re.escape(one.name)}(?: \(.*?\))?:\s*(.+)$", text, re.MULTILINE)
        properties[one.name] = _schema(hints[one.name], name)
        if described is not None:
            properties[one.name]["description"] = described.group(1)
        if one.default is one.empty:
            required.append(one.name)
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(name, text.split("\n\n")[0].replace("\n", " "), schema, function)


def _schema(hint: Any, owner: str) -> dict[str, Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, owner) for one in inner]}
    if hint is list or origin is list:
        return {"type": "array", **({"items": _schema(inner[0], owner)} if inner else {})}
    if hint is dict or origin is dict:
        return {"type": "object"}
    raise ArgumentError(f"tool_of: annotations of {owner} must be types of JSON, got {hint}")


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool in a text.

    Attributes:
        name: Name of the tool; empty if the text has a call that cannot be read.
        arguments: Arguments by name.
        error: Why the call cannot be read; empty if it can.
    """

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


class CallParser(Protocol):
    """Object that finds calls in a text."""

    def __call__(self, text: str) -> list[ToolCall]:
        """Return the calls of a text, in order."""
        ...


@final
class JSONCallParser:
    """Parser of ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, the form of Hermes and Qwen.

    Example:
        >>> JSONCallParser()('Let me see. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
        [ToolCall(name='add', arguments={'a': 1}, error='')]
    """

    def __call__(self, text: str) -> list[ToolCall]:
        found: list[ToolCall] = []
        for body in re.findall(r"<tool_call>((?:(?!<tool_call>).)*?)</tool_call>", text, re.DOTALL):
            call = _json(body)
            if isinstance(call, dict) and isinstance(call.get("name"), str):
                found.append(_call(call["name"], call.get("arguments", {})))
            else:
                found.append(ToolCall("", {}, 'a call must be {"name": ..., "arguments": {...}}'))
        return found


@final
class XMLBlockParser:
    """Parser of ``<tool name="...">{...}</tool>``, the form of TorchRL.

    Example:
        >>> XMLBlockParser()('<tool name="add">{"a": 1}</tool>')
        [ToolCall(name='add', arguments={'a': 1}, error='')]
    """

    def __call__(self, text: str) -> list[ToolCall]:
        blocks = re.findall(r'<tool\s+name="([^"<>]+)"[^<>]*>((?:(?!<tool\s).)*?)</tool>', text, re.DOTALL)
        return [_call(name, _json(body) if body.strip() else {}) for name, body in blocks]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call(name: str, arguments: Any) -> ToolCall:
    if isinstance(arguments, dict):
        return ToolCall(name, arguments)
    return ToolCall(name, {}, "arguments must be a JSON object")


@final
class ToolRegistry:
    """Tools by name, which are called with what a policy wrote; every failure is a text for the policy.

    Args:
        tools: Functions or tools.
        max_chars: Largest number of characters of a result; the rest is cut.

    Raises:
        ArgumentError: If two tools have one name.

    Example:
        >>> def double(x: int) -> int:
        ...     '''Double a number.'''
        ...     return 2 * x
        >>> registry = ToolRegistry([double])
        >>> registry.call(ToolCall("double", {"x": 4})), registry.call(ToolCall("double", {"x": "4"}))
        ('8', 'error: x must be integer')
    """

    def __init__(self, tools: Sequence[Tool | Callable[..., Any]], *, max_chars: int = 4096) -> None:
        made = [one if isinstance(one, Tool) else tool_of(one) for one in tools]
        self.tools = {one.name: one for one in made}
        if len(self.tools) < len(made):
            raise ArgumentError(f"ToolRegistry: tools must have different names, got {[one.name for one in made]}")
        self.max_chars = as_integer(max_chars, "ToolRegistry", "max_chars", least=1)

    def describe(self) -> list[dict[str, Any]]:
        """Return the descriptions of all tools, for ``ChatTemplate(tools=)``."""
        return [one.describe() for one in self.tools.values()]

    def call(self, call: ToolCall) -> str:
        """Return the result of a call as text, or an error."""
        if call.error:
            return f"error: {call.error}"
        if call.name not in self.tools:
            return f"error: there is no tool {call.name}; there are {', '.join(self.tools)}"
        tool = self.tools[call.name]
        wrong = _wrong(tool.parameters, call.arguments)
        if wrong:
            return f"error: {wrong}"
        try:
            result = tool.function(**call.arguments)
            text = result if isinstance(result, str) else json.dumps(result, default=str)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the policy reads it
            text = f"error: {format_exception_only(error)[-1].strip()}"  # also of an error without a text
        return text if len(text) <= self.max_chars else f"{text[: self.max_chars]} ... (cut)"


def _wrong(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return what is wrong with arguments; empty if nothing is."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in arguments:
            return f"{name} is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument {name}"
        if not _fits(properties[name], value):
            return f"{name} must be {properties[name].get('type', properties[name].get('enum', 'of another type'))}"
    return ""


_PYTHON_TYPES: Mapping[str, Any] = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(_fits(one, value) for one in schema["anyOf"])
    kind = str(schema.get("type"))
    if kind in ("integer", "number"):
        return not isinstance(value, bool) and isinstance(value, int if kind == "integer" else (int, float))
    if kind == "array" and isinstance(value, list):
        return all(_fits(schema.get("items", {}), one) for one in value)
    return kind not in _PYTHON_TYPES or isinstance(value, _PYTHON_TYPES[kind])


class ToolTask(Task):
    """Task whose policy may call tools before it answers: each turn with calls is followed by their results.

    The answer is the first turn without a call, and is given to the task alone. A dialogue that calls tools in each of
    its turns is truncated, with the reward 0. In `train_llm` the chat template shows the tools to the policy; a class
    of one's own, whose constructor passes task and tools, is a task of ``rl train``.

    Args:
        task: Task of one turn.
        tools: Tools.
        parser: Parser of calls; that of JSON if None.
        max_turns: Largest number of turns, the answer included.
        max_tokens: Largest number of tokens of a turn.

    Example:
        >>> from rl.llm import ArithmeticTask
        >>> def add(a: int, b: int) -> int:
        ...     '''Add.'''
        ...     return a + b
        >>> task = ToolTask(ArithmeticTask(), ToolRegistry([add]))
        >>> problem = Problem(({"role": "user", "content": "1+2"},), "3")
        >>> call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
        >>> task.reply(problem, [call]).messages
        ({'role': 'tool', 'content': '3'},)
        >>> task.reply(problem, [call, "3"]).reward
        1.0
    """

    def __init__(
        self,
        task: Task,
        tools: ToolRegistry,
        *,
        parser: CallParser | None = None,
        max_turns: int = 4,
        max_tokens: int = 128,
    ) -> None:
        self.task, self.tools = task, tools
        self.parser: CallParser = JSONCallParser() if parser is None else parser
        self.max_turns = as_integer(max_turns, "ToolTask", "max_turns", least=1)
        self.max_tokens = as_integer(max_tokens, "ToolTask", "max_tokens", least=1)
        self.alphabet = "".join(map(chr, range(32, 127))) + "\n"

    def sample(self, rng: random.Random) -> Problem:
        return self.task.sample(rng)

    def reply(self, problem: Problem, answers: Sequence[str]) -> Reply:
        calls = self.parser(answers[-1])
        if not calls:
            return self.task.reply(problem, answers[-1:])
        return Reply(0.0, tuple({"role": "tool", "content": self.tools.call(one)} for one in calls))


_LIMITS = """
import builtins, os, resource, sys
memory, seconds, size, folder = {memory}, {seconds}, {size}, {folder!r}
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
DENIED = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.kill", "ctypes.",
          "ftplib.", "http.", "urllib.", "smtplib.")
WRITES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown",
          "os.truncate", "shutil.")
def inside(path):
    return isinstance(path, int) or os.path.realpath(os.fspath(path)).startswith(folder + os.sep)
def check(event, arguments, inside=inside, DENIED=DENIED, WRITES=WRITES):
    if event.startswith(DENIED):
        raise PermissionError(event + " is not allowed")
    if event == "open":
        path, mode, flags = arguments
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        writes = (flags or 0) & writing or any(c in (mode or "") for c in "wax+")
        if writes and not inside(path):
            raise PermissionError("files outside of the working folder are not written")
    if event.startswith(WRITES) and not all(inside(one) for one in arguments if isinstance(one, (str, bytes))):
        raise PermissionError(event + " is not allowed outside of the working folder")
sys.addaudithook(check)
del resource
exec(compile(sys.stdin.read(), "<code>", "exec"), {{"__name__": "__main__"}})
"""


@final
class PythonInterpreter:
    """Tool that runs Python in a process of its own, with limits of time, memory and files, without a network.

    Each call is a new process in a new folder, which is deleted afterwards. The limits are those of the operating
    system (Linux and macOS); network, further processes, and writing outside of the folder are rejected by an audit
    hook. That keeps the code of a policy from doing harm by accident. It is no sandbox against code that means harm:
    use a container for that.

    Args:
        seconds: Number of seconds after which a call is ended.
        memory_mb: Largest memory, MiB.
        file_mb: Largest file, MiB.
        max_chars: Largest number of characters of the output; its end is kept.

    Example:
        >>> PythonInterpreter()("print(6 * 7)").strip()
        '42'
    """

    __name__ = "python"

    def __init__(self, *, seconds: float = 5.0, memory_mb: int = 512, file_mb: int = 1, max_chars: int = 4096) -> None:
        self.seconds = as_number(seconds, "PythonInterpreter", "seconds", above=0)
        self.memory_mb = as_integer(memory_mb, "PythonInterpreter", "memory_mb", least=64)
        self.file_mb = as_integer(file_mb, "PythonInterpreter", "file_mb", least=0)
        self.max_chars = as_integer(max_chars, "PythonInterpreter", "max_chars", least=1)

    def __call__(self, code: str) -> str:
        """Run Python code and return what it prints.

        Args:
            code: Python code.
        """
        with tempfile.TemporaryDirectory() as name:
            folder = str(Path(name).resolve())
            limits = _LIMITS.format(
                memory=self.memory_mb << 20, seconds=int(self.seconds) + 1, size=self.file_mb << 20, folder=folder
            )
            # Without the environment of this process, its modules, and its group: children are ended with it.
            command = [sys.executable, "-I", "-S", "-B", "-c", limits]
            text: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
            with tempfile.TemporaryFile("w+", **text) as source:
                source.write(code)
                source.seek(0)
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env={},
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    **text,
                )
            timer = threading.Timer(self.seconds, process.kill)
            timer.start()
            with process:  # which waits for its end
                output, stream = "", cast("TextIO", process.stdout)
                while part := stream.read(self.max_chars):  # all of it may be more than this process has memory for
                    output = (output + part)[-self.max_chars :]
            timer.cancel()
            if process.returncode == -signal.SIGKILL:
                return f"error: the code ran longer than {self.seconds:g} seconds"
        return output


@final
class MCPTools:
    """Tools of a server of the Model Context Protocol, through a session of the ``mcp`` package.

    Needs rl-llm[mcp] for a real session, such as ``lambda: mcp.Client("https://...")``. The session's coroutines run in
    a thread with its own event loop.

    Args:
        connect: Function that returns an asynchronous context manager of a session with ``list_tools()`` and
            ``call_tool(name, arguments)``.
        seconds: Number of seconds after which a call fails.
    """

    def __init__(self, connect: Callable[[], Any], *, seconds: float = 30.0) -> None:
        self.seconds = as_number(seconds, "MCPTools", "seconds", above=0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="MCPTools", daemon=True)
        self._thread.start()
        self._stop: Any = None
        self._session: Any = None
        self._ready = threading.Event()
        self._owner = asyncio.run_coroutine_threadsafe(self._hold(connect), self._loop)
        self._ready.wait(self.seconds)
        if self._session is None:
            error = self._owner.exception(self.seconds) if self._ready.is_set() else None
            self.close()
            raise ArgumentError(f"MCPTools: the session was not opened: {error or 'no answer in time'}")

    async def _hold(self, connect: Callable[[], Any]) -> None:
        """Open and close the session in one task, as its context manager requires."""
        self._stop = asyncio.Event()
        try:
            async with connect() as session:
                self._session = session
                self._ready.set()
                await self._stop.wait()
        finally:
            self._ready.set()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(self.seconds)

    def tools(self) -> list[Tool]:
        """Return the tools of the server."""
        listed = self._run(self._session.list_tools()).tools
        return [Tool(one.name, one.description or "", one.input_schema, self._function(one.name)) for one in listed]

    def _function(self, name: str) -> Callable[..., str]:
        def call(**arguments: Any) -> str:
            result = self._run(self._session.call_tool(name, arguments))
            text = "\n".join(one.text for one in result.content if hasattr(one, "text"))
            return f"error: {text}" if result.is_error else text

        return call

    def close(self) -> None:
        """Close the session and end the thread. May be called twice."""
        if not self._thread.is_alive():
            return
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        wait([self._owner], self.seconds)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self.seconds)
        self._loop.close()
