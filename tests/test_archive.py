"""Zip files to the byte: copied members stay as they are, whoever wrote them."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest

from fixes import archive
from fixes.archive import Writer

BIG = b"x" * 5000 + bytes(range(256)) * 20


class Pipe(io.BytesIO):
    """What cannot be gone back in, so that zipfile writes data descriptors."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


def source(kind: str) -> bytes:
    stream = Pipe() if "pipe" in kind else io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for number, method in enumerate(
            (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
        ):
            info = zipfile.ZipInfo(f"größe-{number}/a.so", (2024, 2, 29, 23, 59, 58))
            info.compress_type = method
            info.external_attr = 0o100755 << 16
            info.comment = b"of this one"
            info.extra = b"\x99\x99\x02\x00ab"
            with made.open(info, "w", force_zip64="zip64" in kind) as member:
                member.write(BIG)
        made.writestr("empty/", b"")
        made.comment = b"of all"
    return stream.getvalue()


def copied(data: bytes, names: dict[str, bytes] | None = None) -> bytes:
    stream = io.BytesIO()
    writer = Writer(stream)
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        for info in old.infolist():
            writer.copy(io.BytesIO(data), info, (names or {}).get(info.filename))
        writer.finish(old.comment)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["plain", "pipe", "zip64", "pipe zip64"])
def test_a_copy_is_read_as_the_original(kind: str) -> None:
    data = source(kind)
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(io.BytesIO(copied(data))) as new:
        assert new.testzip() is None and new.comment == old.comment
        for one, other in zip(old.infolist(), new.infolist(), strict=True):
            for key in ("filename", "date_time", "compress_type", "comment", "flag_bits", "CRC"):
                assert getattr(one, key) == getattr(other, key), key
            assert one.external_attr == other.external_attr
            assert old.read(one) == new.read(other)


@pytest.mark.parametrize("kind", ["plain", "pipe", "zip64"])
def test_the_packed_bytes_are_those_of_the_original(kind: str) -> None:
    data = source(kind)
    made = copied(data)
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        start = old.start_dir
    assert made[:start] == data[:start]


def test_a_copy_may_have_another_name() -> None:
    data = copied(source("pipe"), {"größe-1/a.so": b"b.so"})
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        assert made.read("b.so") == BIG and made.testzip() is None
        assert made.namelist()[0] == "größe-0/a.so"


def test_what_the_directory_says_must_be_there() -> None:
    data = bytearray(source("plain"))
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        infos = old.infolist()
    infos[1].header_offset += 1
    with pytest.raises(zipfile.BadZipFile, match="no member at the place"):
        Writer(io.BytesIO()).copy(io.BytesIO(data), infos[1])
    infos[1].header_offset = infos[0].header_offset
    with pytest.raises(zipfile.BadZipFile, match="another member"):
        Writer(io.BytesIO()).copy(io.BytesIO(data), infos[1])
    infos[0].compress_size = len(data)
    with pytest.raises(zipfile.BadZipFile, match="ends within"):
        Writer(io.BytesIO()).copy(io.BytesIO(data), infos[0])
    piped = source("pipe")
    with zipfile.ZipFile(io.BytesIO(piped)) as old:
        first = old.infolist()[0]
    first.CRC ^= 1
    with pytest.raises(zipfile.BadZipFile, match="no data descriptor"):
        Writer(io.BytesIO()).copy(io.BytesIO(piped), first)


def test_a_member_that_is_made_has_no_history() -> None:
    stream = io.BytesIO()
    writer = Writer(stream)
    writer.add("text", BIG)
    writer.add("ä", b"")
    writer.finish()
    with zipfile.ZipFile(stream) as made:
        text, empty = made.infolist()
        assert made.read(text) == BIG and made.read(empty) == b"" and made.testzip() is None
    assert (text.date_time, text.external_attr >> 16) == (archive.EPOCH, 0o100644)
    assert empty.compress_type == zipfile.ZIP_STORED


class Far(io.BytesIO):
    """A stream that says it is 5 GB further on."""

    AHEAD = 5 << 30

    def tell(self) -> int:
        return super().tell() + self.AHEAD


def test_places_beyond_4_gib_are_told_in_zip64() -> None:
    stream = Far()
    writer = Writer(stream)
    writer.add("text", b"text")
    start = stream.tell()
    writer.finish()
    data = stream.getvalue()
    entry = data[start - Far.AHEAD :]
    assert struct.unpack_from("<L", entry, 42) == (0xFFFFFFFF,)
    assert struct.unpack_from("<2HQ", entry, 46 + 4) == (1, 8, Far.AHEAD)
    end = data.index(b"PK\6\6")
    assert struct.unpack_from("<Q", data, end + 48) == (start,)
    assert b"PK\6\7" in data


@pytest.mark.parametrize("count", [65534, 65535])
def test_as_many_members_as_there_are(count: int, tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    with path.open("wb") as stream:
        writer = Writer(stream)
        for number in range(count):
            writer.add(str(number), b"")
        writer.finish()
    with zipfile.ZipFile(path) as made:
        assert len(made.namelist()) == count
    assert (b"PK\6\6" in path.read_bytes()) is (count > 65534)
