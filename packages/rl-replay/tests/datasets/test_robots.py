"""Data sets of robots: LeRobot, written with PyArrow, and RLDS, written with the library of protocol buffers."""

from __future__ import annotations

import io
import json
import struct
import sys

import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, ContractError, MissingExtraError, RLError
from rl.replay import SliceSampler
from rl.replay.datasets import LeRobotExperienceReplay, OpenXExperienceReplay, load_dataset

Image = pytest.importorskip("PIL.Image")
LENGTHS = (4, 1, 6)


def png(array):
    out = io.BytesIO()
    Image.fromarray(array).save(out, format="PNG")
    return out.getvalue()


# -- LeRobot


def columns(lengths=LENGTHS):
    rng, total = np.random.default_rng(0), sum(lengths)
    frames = np.concatenate([np.arange(length) for length in lengths])
    episode = np.repeat(np.arange(len(lengths)), lengths)
    return {
        "observation.state": rng.normal(size=(total, 3)).astype(np.float32),
        "observation.images.top": rng.integers(0, 255, (total, 4, 5, 3), dtype=np.uint8),
        "action": rng.normal(size=(total, 2)).astype(np.float32),
        "timestamp": frames.astype(np.float32) / 10,
        "frame_index": frames,
        "episode_index": episode,
        "index": np.arange(total),
        "task_index": episode % 2,
        "next.reward": rng.normal(size=total).astype(np.float32),
        "next.done": np.isin(np.arange(total), np.cumsum(lengths)[:-1] - 1),  # the last episode was cut off
    }


def lerobot(folder, data, version="v3.0", lengths=LENGTHS, **features):
    """Write the files of LeRobot; one for all episodes with v3.0, one for each with v2.1."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (folder / "meta").mkdir(parents=True)
    (folder / "data" / "chunk-000").mkdir(parents=True)
    described = {
        name: {"dtype": "image" if "images" in name else str(array.dtype), "shape": list(array.shape[1:]) or [1]}
        for name, array in data.items()
    }
    info = {"codebase_version": version, "total_frames": len(data["action"]), "features": {**described, **features}}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    arrays = {
        name: pa.array([{"bytes": png(one), "path": None} for one in array])
        if "images" in name
        else pa.array(list(array))
        for name, array in data.items()
    }
    table = pa.table(arrays)
    tasks = ["pick", "place"]
    if version == "v3.0":
        parquet.write_table(table, folder / "data" / "chunk-000" / "file-000.parquet")
        parquet.write_table(pa.table({"task_index": [0, 1], "task": tasks}), folder / "meta" / "tasks.parquet")
        return folder
    at = 0
    for number, length in enumerate(lengths):
        path = folder / "data" / "chunk-000" / f"episode_{number:06d}.parquet"
        parquet.write_table(table.slice(at, length), path)
        at += length
    lines = [json.dumps({"task_index": number, "task": task}) for number, task in enumerate(tasks)]
    (folder / "meta" / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("chunk", [1, 1 << 23])
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_rows_are_those_of_lerobot(tmp_path, monkeypatch, version, chunk):
    monkeypatch.setattr("rl.replay.datasets._lerobot._CHUNK", chunk)  # 1: a row at a time
    data = columns()
    buffer = LeRobotExperienceReplay(lerobot(tmp_path / "set", data, version), 12, root=tmp_path)
    rows, ends = buffer[:], set((np.cumsum(LENGTHS) - 1).tolist())
    assert rows.shape == (11,)
    for row in range(11):
        after = row if row in ends else row + 1
        found = rows[row]
        np.testing.assert_array_equal(found["observation", "state"], data["observation.state"][row])
        np.testing.assert_array_equal(found["next", "observation", "state"], data["observation.state"][after])
        picture = np.moveaxis(data["observation.images.top"], -1, 1)
        np.testing.assert_array_equal(found["observation", "image", "top"], picture[row])
        np.testing.assert_array_equal(found["next", "observation", "image", "top"], picture[after])
        np.testing.assert_array_equal(found["action"], data["action"][row])
        assert found["next", "reward"].item() == data["next.reward"][row]
        assert found["next", "terminated"].item() == (row in ends and row != 10)
        assert found["next", "truncated"].item() == (row == 10)
        assert found["next", "done"].item() == (row in ends)
    assert rows["episode"].tolist() == data["episode_index"].tolist()
    assert rows["frame"].tolist() == data["frame_index"].tolist()
    assert buffer.texts["task"] == ["pick", "place"]
    assert rows["task"].tolist() == data["task_index"].tolist()
    parts = load_dataset(f"lerobot:{tmp_path / 'set'}", batch_size=6, sampler=SliceSampler(slice_len=3), root=tmp_path)
    sample = parts.sample().reshape(2, 3)
    assert (sample["frame"].diff() == 1).all()
    assert parts.texts["task"] == ["pick", "place"]


def test_other_data_of_lerobot_are_refused_and_leave_nothing(tmp_path, monkeypatch):
    rows = tmp_path / "rows"
    video = lerobot(
        tmp_path / "video", columns(), **{"observation.images.side": {"dtype": "video", "shape": [4, 5, 3]}}
    )
    with pytest.raises(ArgumentError, match=r"has the videos observation\.images\.side.*video=False leaves them out"):
        LeRobotExperienceReplay(video, root=rows)
    assert "side" not in LeRobotExperienceReplay(video, video=False, root=tmp_path).data["observation", "image"].keys()
    with pytest.raises(RLError, match=r"v1\.6"):
        LeRobotExperienceReplay(lerobot(tmp_path / "old", columns(), "v1.6"), root=rows)
    few = lerobot(tmp_path / "few", columns())
    info = json.loads((few / "meta" / "info.json").read_text())
    (few / "meta" / "info.json").write_text(json.dumps({**info, "total_frames": 12}))
    with pytest.raises(ContractError, match="states 12 rows, and has 11"):
        LeRobotExperienceReplay(few, root=rows)
    file = few / "data" / "chunk-000" / "file-000.parquet"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(RLError, match=r"cannot read .*file-000\.parquet"):
        LeRobotExperienceReplay(few, root=rows)
    (few / "meta" / "info.json").write_text("{}")
    with pytest.raises(RLError, match="takes folders of LeRobot"):
        LeRobotExperienceReplay(few, root=rows)
    pictures = lerobot(tmp_path / "set", columns())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"rl-replay\[lerobot\]"):
        LeRobotExperienceReplay(pictures, root=rows)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"rl-replay\[lerobot\]"):
        LeRobotExperienceReplay(few, root=rows)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match="pip install huggingface_hub"):
        LeRobotExperienceReplay("lerobot/pusht", root=rows, download=True)
    assert not [path for path in rows.rglob("*") if path.is_file()]


# -- RLDS


def messages():
    """The message types of `tf.train.Example`, from the library of protocol buffers."""
    pb = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = pb.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name, *fields):
        made = file.message_type.add(name=name)
        for number, (field, kind, repeated, type_name) in enumerate(fields, start=1):
            made.field.add(
                name=field, number=number, type=kind, label=3 if repeated else 1, type_name=type_name or None
            )
        return made

    message("BytesList", ("value", 12, True, ""))
    message("FloatList", ("value", 2, True, ""))
    message("Int64List", ("value", 3, True, ""))
    feature = message(
        "Feature", ("b", 11, False, ".t.BytesList"), ("f", 11, False, ".t.FloatList"), ("i", 11, False, ".t.Int64List")
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", 11, True, ".t.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=11, label=1, type_name=".t.Feature")
    message("Example", ("features", 11, False, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def masked(data):
    """CRC-32C by long division, as the format defines it."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 * (value & 1))
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def episode(length, number):
    rng = np.random.default_rng(number)
    last = np.arange(length) == length - 1
    return {
        "observation/image": rng.integers(0, 255, (length, 4, 5, 3), dtype=np.uint8),
        "observation/state": rng.normal(size=(length, 3)).astype(np.float32),
        "action": rng.normal(size=(length, 2)).astype(np.float32),
        "gripper": rng.integers(-3, 3, length),
        "reward": rng.normal(size=length).astype(np.float32),
        "is_first": np.arange(length) == 0,
        "is_last": last,
        "is_terminal": last & (number % 2 == 0),
        "language_instruction": [f"do {number % 2}".encode()] * length,
    }


def rlds(folder, episodes, shards=2):
    folder.mkdir(parents=True)
    example_class = messages()

    def tensor(dtype, *shape):
        return {"tensor": {"shape": {"dimensions": [str(size) for size in shape]} if shape else {}, "dtype": dtype}}

    def group(**features):
        return {"featuresDict": {"features": features}}

    picture = {"image": {"shape": {"dimensions": ["4", "5", "3"]}, "dtype": "uint8", "encodingFormat": "png"}}
    steps = group(
        observation=group(image=picture, state=tensor("float32", 3)),
        action=tensor("float32", 2),
        gripper=tensor("int64"),
        reward=tensor("float32"),
        is_first=tensor("bool"),
        is_last=tensor("bool"),
        is_terminal=tensor("bool"),
        language_instruction={"text": {}},
    )
    described = group(steps={"sequence": {"feature": steps, "length": "-1"}}, episode_metadata=group())
    (folder / "features.json").write_text(json.dumps(described))
    parts = [episodes[shard::shards] for shard in range(shards)]
    split = {"name": "train", "shardLengths": [str(len(part)) for part in parts]}
    (folder / "dataset_info.json").write_text(json.dumps({"name": "arm", "version": "0.1.0", "splits": [split]}))
    for shard, part in enumerate(parts):
        with (folder / f"arm-train.tfrecord-{shard:05d}-of-{shards:05d}").open("wb") as file:
            for one in part:
                example = example_class()
                for name, values in one.items():
                    feature = example.features.feature[f"steps/{name}"]
                    if "image" in name:
                        feature.b.value.extend(png(picture) for picture in values)
                    elif isinstance(values, list):
                        feature.b.value.extend(values)
                    elif values.dtype.kind == "f":
                        feature.f.value.extend(values.reshape(-1).tolist())
                    else:
                        feature.i.value.extend(values.astype(np.int64).tolist())
                data = example.SerializeToString()
                head = struct.pack("<Q", len(data))
                file.write(head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data)))
    return folder


def test_rows_are_those_of_rlds(tmp_path):
    lengths = (4, 2, 300)  # the last message has lengths of several bytes
    episodes = [episode(length, number) for number, length in enumerate(lengths)]
    buffer = OpenXExperienceReplay(rlds(tmp_path / "set", episodes, shards=1), 16, root=tmp_path)
    rows, at = buffer[:], 0
    assert len(rows) == sum(lengths) - 3
    for number, one in enumerate(episodes):
        steps = lengths[number] - 1
        part = rows[at : at + steps]
        picture = np.moveaxis(one["observation/image"], -1, 1)
        np.testing.assert_array_equal(part["observation", "image"], picture[:-1])
        np.testing.assert_array_equal(part["next", "observation", "image"], picture[1:])
        np.testing.assert_array_equal(part["observation", "state"], one["observation/state"][:-1])
        np.testing.assert_array_equal(part["next", "observation", "state"], one["observation/state"][1:])
        np.testing.assert_array_equal(part["action"], one["action"][:-1])
        np.testing.assert_array_equal(part["gripper"], one["gripper"][:-1])
        np.testing.assert_array_equal(part["next", "reward"][:, 0], one["reward"][:-1])
        assert part["next", "done"][:, 0].tolist() == [False] * (steps - 1) + [True]
        assert part["next", "terminated"].any().item() == (number % 2 == 0)
        assert part["next", "truncated"].any().item() == (number % 2 == 1)
        words = [buffer.texts["language_instruction"][place] for place in part["language_instruction"].tolist()]
        assert words == [f"do {number % 2}"] * steps
        assert (part["episode"] == number).all()
        at += steps
    again = load_dataset(f"openx:{tmp_path / 'set'}", batch_size=16, root=tmp_path)
    assert again.texts == {"language_instruction": ["do 0", "do 1"]}
    assert torch.equal(again[:]["action"], rows["action"])


def test_other_data_of_rlds_are_refused_and_leave_nothing(tmp_path):
    folder, rows = rlds(tmp_path / "set", [episode(4, 0), episode(3, 1)]), tmp_path / "rows"
    with pytest.raises(RLError, match="has no part 'test', but train"):
        OpenXExperienceReplay(folder, split="test", root=rows)
    shard = folder / "arm-train.tfrecord-00001-of-00002"
    whole = shard.read_bytes()
    for damaged, text in (
        (whole[:-1], "ends within a record"),
        (whole[:7], "within the length"),
        (b"no file of records", "checksum of a length differs"),
    ):
        shard.write_bytes(damaged)
        with pytest.raises(RLError, match=rf"cannot read .*00001-of-00002: .*{text}"):
            OpenXExperienceReplay(folder, root=rows)
    shard.unlink()
    with pytest.raises(RLError, match="lacks arm-train"):
        OpenXExperienceReplay(folder, root=rows)
    shard.write_bytes(whole)
    features = json.loads((folder / "features.json").read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    steps["action"]["tensor"]["shape"]["dimensions"] = ["7"]
    (folder / "features.json").write_text(json.dumps(features))
    with pytest.raises(RLError, match=r"episode 0 in .* does not fit features\.json"):
        OpenXExperienceReplay(folder, root=rows)
    (folder / "features.json").write_text("{}")
    with pytest.raises(RLError, match="describes no steps"):
        OpenXExperienceReplay(folder, root=rows)
    assert not [path for path in rows.rglob("*") if path.is_file()]
