"""Schemas, parsers, calls, dialogues with tools, the limits of the interpreter, and MCP through a fake session."""

import contextlib
import random
import sys
import tracemalloc
from types import SimpleNamespace
from typing import Literal

import pytest

from rl.llm import (
    ArithmeticTask,
    CharTokenizer,
    ChatTemplate,
    JSONCallParser,
    LLMCollector,
    MCPTools,
    PythonInterpreter,
    ScriptedEngine,
    Tool,
    ToolCall,
    ToolRegistry,
    ToolTask,
    XMLBlockParser,
    tool_of,
)


def search(query: str, limit: int = 3, kinds: list[str] | None = None, order: Literal["new", "old"] = "new") -> list:
    """Search the index
    of pages.

    Args:
        query: Words to find.
        limit (int): Number of results.
    """
    return [query, limit]


def test_a_schema_comes_from_the_signature():
    tool = tool_of(search)
    assert tool.description == "Search the index of pages."
    assert tool.parameters["required"] == ["query"]
    assert tool.parameters["properties"] == {
        "query": {"type": "string", "description": "Words to find."},
        "limit": {"type": "integer", "description": "Number of results."},
        "kinds": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "order": {"enum": ["new", "old"]},
    }
    assert tool.describe()["function"]["name"] == "search"
    for bad in (lambda x: x, lambda *x: x):
        with pytest.raises(ValueError, match="each parameter"):
            tool_of(bad)

    def odd(x: object) -> None:
        """Odd."""

    with pytest.raises(ValueError, match="types of JSON"):
        tool_of(odd)


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"query": "a"}, '["a", 3]'),
        ({"query": "a", "limit": 1, "kinds": ["x"], "order": "old"}, '["a", 1]'),
        ({}, "error: query is missing"),
        ({"query": 1}, "error: query must be string"),
        ({"query": "a", "limit": True}, "error: limit must be integer"),
        ({"query": "a", "kinds": [1]}, "error: kinds must be of another type"),
        ({"query": "a", "order": "up"}, "error: order must be ['new', 'old']"),
        ({"query": "a", "page": 1}, "error: there is no argument page"),
    ],
)
def test_arguments_are_checked_before_the_call(arguments, result):
    assert ToolRegistry([search]).call(ToolCall("search", arguments)) == result


def test_failures_are_texts_for_the_policy():
    def fail() -> None:
        """Fail."""
        raise KeyError("x")

    def long() -> str:
        """Write."""
        return "y" * 50

    registry = ToolRegistry([fail, long], max_chars=30)
    assert registry.call(ToolCall("fail", {})) == "error: KeyError: 'x'"
    assert registry.call(ToolCall("long", {})) == f"{30 * 'y'} ... (cut)"
    assert registry.call(ToolCall("other", {})).startswith("error: there is no tool other")
    with pytest.raises(ValueError, match="different names"):
        ToolRegistry([fail, fail])


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        (JSONCallParser(), "no call", []),
        (JSONCallParser(), '<tool_call>{"name": "a"}</tool_call> <tool_call>\n{"name": "b"}\n</tool_call>', ["a", "b"]),
        (JSONCallParser(), "<tool_call>{name: a}</tool_call>", [""]),
        (JSONCallParser(), '<tool_call>{"name": "a"}', []),
        (XMLBlockParser(), '<tool name="a"></tool><tool name="b" tag="1">{"x": 1}</tool>', ["a", "b"]),
        (XMLBlockParser(), '<tool name="a">[1]</tool>', ["a"]),
    ],
)
def test_calls_are_found_in_a_text(parser, text, expected):
    assert [one.name for one in parser(text)] == expected


def test_a_call_that_cannot_be_read_is_answered_with_its_error():
    call = XMLBlockParser()('<tool name="search">[1]</tool>')[0]
    assert ToolRegistry([search]).call(call) == "error: arguments must be a JSON object"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_a_dialogue_with_a_tool_is_tokens_of_the_policy_and_of_the_tool():
    task = ToolTask(ArithmeticTask(), ToolRegistry([add]), max_turns=2)
    tokenizer = CharTokenizer()

    def policy(prompt):
        text = tokenizer.decode(prompt)
        if "tool_call" in text:
            return tokenizer.encode(text.split("</tool_call>")[-1], add_special_tokens=True)
        a, b = text.split("+")
        call = f'<tool_call>{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'
        return tokenizer.encode(call, add_special_tokens=True)

    engine = ScriptedEngine(policy, stop_tokens=[1])
    (group,) = LLMCollector(task, ChatTemplate(tokenizer), engine, groups_per_batch=1, group_size=2).collect()
    for one in group.dialogues:
        assert (one.reward, one.terminated) == (1.0, True)
        assert [part.role for part in one.rollout.segments()] == ["user", "assistant", "tool", "assistant"]
        assert all(version < 0 for role, version in zip(one.roles, one.versions, strict=True) if role == "tool")


def test_a_dialogue_without_an_answer_is_truncated():
    task = ToolTask(ArithmeticTask(), ToolRegistry([add]), max_turns=3)
    tokenizer = CharTokenizer()
    call = tokenizer.encode("<tool_call>{}</tool_call>", add_special_tokens=True)
    engine = ScriptedEngine([call], stop_tokens=[1])
    (group,) = LLMCollector(task, ChatTemplate(tokenizer), engine, groups_per_batch=1, group_size=1).collect()
    (one,) = group.dialogues
    assert (one.truncated, one.terminated, one.reward, len(one.answers)) == (True, False, 0.0, 3)
    assert task.sample(random.Random(0)).answer == ArithmeticTask().sample(random.Random(0)).answer


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits are those of POSIX")


@pytest.fixture(scope="module")
def python():
    return PythonInterpreter(seconds=20)


def test_the_interpreter_returns_output_and_errors(python):
    assert python("print(sum(range(5)))") == "10\n"
    assert "ZeroDivisionError" in python("1/0")
    assert python("import os; print(len(os.environ), open('x', 'w').write('ab'), os.listdir())").endswith("2 ['x']\n")
    assert tool_of(python).parameters["required"] == ["code"]
    assert ToolRegistry([python]).call(ToolCall("python", {"code": "print(1)"})) == "1\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "PermissionError"),
        ("import subprocess; subprocess.run(['true'])", "PermissionError"),
        ("import os; os.fork()", "PermissionError"),
        ("import os; os.system('true')", "PermissionError"),
        ("import ctypes; ctypes.CDLL(None)", "PermissionError"),
        ("open('/tmp/rl-llm-escape', 'w')", "PermissionError"),
        ("import os; os.remove('/etc/passwd')", "PermissionError"),
        ("x = bytearray(2 << 30)", "MemoryError"),
        ("f = open('x', 'wb'); f.write(bytes(2 << 20)); f.flush()", "File too large"),
    ],
)
def test_the_interpreter_refuses_what_is_over_its_limits(python, code, expected):
    assert expected in python(code)


def test_the_interpreter_ends_code_that_does_not_end():
    assert PythonInterpreter(seconds=1)("while True: pass") == "error: the code ran longer than 1 seconds"


def test_output_without_an_end_takes_no_memory_of_this_process():
    tracemalloc.start()
    found = PythonInterpreter(seconds=1)("while True: print('x' * 1000000)")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == "error: the code ran longer than 1 seconds"
    assert peak < 1 << 24  # all of the output is more than a GiB
    assert PythonInterpreter(seconds=20, max_chars=5)("print('x' * 1000000); print('end')") == "\nend\n"


class Session:
    """The part of ``mcp.ClientSession`` that is used."""

    closed = False

    async def list_tools(self):
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        return SimpleNamespace(tools=[SimpleNamespace(name="double", description="Double.", input_schema=schema)])

    async def call_tool(self, name, arguments):
        content = [SimpleNamespace(text=str(2 * arguments["x"]))]
        return SimpleNamespace(content=content, is_error=arguments["x"] < 0)


def test_tools_of_a_server_are_called_through_its_session():
    session = Session()

    @contextlib.asynccontextmanager
    async def connect():
        yield session
        session.closed = True

    client = MCPTools(connect, seconds=10)
    registry = ToolRegistry(client.tools())
    assert registry.call(ToolCall("double", {"x": 4})) == "8"
    assert registry.call(ToolCall("double", {"x": -1})) == "error: -2"
    assert registry.call(ToolCall("double", {})) == "error: x is missing"
    client.close()
    client.close()
    assert session.closed


def test_tools_of_a_server_of_the_mcp_package():
    mcp = pytest.importorskip("mcp")
    from mcp.server import MCPServer

    server = MCPServer("numbers")

    @server.tool()
    def double(x: int) -> int:
        """Double a number."""
        if x < 0:
            raise ValueError("negative")
        return 2 * x

    client = MCPTools(lambda: mcp.Client(server), seconds=10)
    registry = ToolRegistry(client.tools())
    assert registry.tools["double"].description == "Double a number."
    assert registry.call(ToolCall("double", {"x": 4})) == "8"
    assert registry.call(ToolCall("double", {"x": "4"})) == "error: x must be integer"
    failed = registry.call(ToolCall("double", {"x": -1}))
    assert failed.startswith("error: ")
    assert "double" in failed
    client.close()


def test_a_server_that_does_not_answer_is_an_error():
    @contextlib.asynccontextmanager
    async def connect():
        raise OSError("no server")
        yield

    with pytest.raises(ValueError, match="no server"):
        MCPTools(connect, seconds=10)


class Silent(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize("error", [Silent(), SystemExit(3), RecursionError("deep"), ValueError("bad")])
def test_whatever_a_tool_raises_is_a_text(error):
    def fail():
        raise error

    registry = ToolRegistry([Tool("fail", "Fail.", {}, fail), Tool("loop", "Loop.", {}, lambda: loop)])
    loop = []
    loop.append(loop)
    assert registry.call(ToolCall("fail", {})).startswith("error: ")
    assert registry.call(ToolCall("loop", {})) == "error: ValueError: Circular reference detected"
