"""Zip files to the byte: members that are copied as they are, and members that are made.

``zipfile`` reads (it knows prefixes, comments and zip64), and what it would write depends on
the Python that runs it; so this writes by itself. Format: PKWARE's APPNOTE.TXT 6.3.10.
"""

from __future__ import annotations

import stat
import struct
import zlib
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipInfo

#: Signature, and all fields of fixed size: of a member, of its entry, of the directory's end.
_LOCAL, _ENTRY, _END = "<4s5H3L2H", "<4s4B4H3L5H2L", "<4s4H2LH"
_END_64, _LOCATOR = "<4sQ2H2L4Q", "<4sLQL"
_UTF8, _DESCRIPTOR = 0x800, 0x8
_ZIP64, _FULL = 0x0001, 0xFFFFFFFF
_CHUNK = 1 << 20
#: The first moment that the format can tell.
EPOCH = (1980, 1, 1, 0, 0, 0)


def raw_name(info: ZipInfo) -> bytes:
    """A member's name as it stands in the archive."""
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")


def made(name: str, data: bytes, like: ZipInfo | None = None) -> tuple[ZipInfo, bytes]:
    """A member with its packed bytes, a plain file of mode 644; time and mode ``like`` one."""
    info = ZipInfo(name, like.date_time if like else EPOCH)
    info.create_system = 3  # Unix: the attributes hold a mode
    info.external_attr = like.external_attr if like else (stat.S_IFREG | 0o644) << 16
    info.flag_bits = 0 if name.isascii() else _UTF8
    info.CRC, info.file_size = zlib.crc32(data), len(data)
    packer = zlib.compressobj(9, wbits=-15)  # without zlib's own head and end
    packed = packer.compress(data) + packer.flush()
    info.compress_type = ZIP_DEFLATED if len(packed) < len(data) else ZIP_STORED
    packed = packed if info.compress_type == ZIP_DEFLATED else data
    info.compress_size = len(packed)
    return info, packed


class Writer:
    """Writes an archive to a stream from where it stands. Raises OSError."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._directory: list[bytes] = []

    def add(self, name: str, data: bytes, like: ZipInfo | None = None) -> None:
        """A member that is made here."""
        info, packed = made(name, data, like)
        raw = name.encode()
        head = struct.pack(
            _LOCAL,
            b"PK\3\4",
            info.extract_version,
            info.flag_bits,
            info.compress_type,
            *_dos_time(info),
            info.CRC,
            info.compress_size,
            info.file_size,
            len(raw),
            0,
        )
        self._enter(info, raw)
        self._stream.write(head + raw + packed)

    def copy(self, source: BinaryIO, info: ZipInfo, name: bytes | None = None) -> None:
        """A member of another archive, its packed bytes as they are, by another ``name``.

        Raises BadZipFile where the archive does not hold what its directory says.
        """
        old = raw_name(info)
        name = old if name is None else name
        source.seek(info.header_offset)
        head = source.read(struct.calcsize(_LOCAL))
        if len(head) < struct.calcsize(_LOCAL) or not head.startswith(b"PK\3\4"):
            raise BadZipFile(f"no member at the place of {info.orig_filename}")
        *fields, length, extra = struct.unpack(_LOCAL, head)
        if source.read(length) != old:
            raise BadZipFile(f"another member at the place of {info.orig_filename}")
        self._enter(info, name)
        self._stream.write(struct.pack(_LOCAL, *fields, len(name), extra) + name)
        self._pass(source, extra + info.compress_size)
        if info.flag_bits & _DESCRIPTOR:
            self._stream.write(_descriptor(source, info))

    def _pass(self, source: BinaryIO, count: int) -> None:
        while count:
            piece = source.read(min(count, _CHUNK))
            if not piece:
                raise BadZipFile("it ends within a member")
            self._stream.write(piece)
            count -= len(piece)

    def _enter(self, info: ZipInfo, name: bytes) -> None:
        """The entry of the member that is written next."""
        large = [info.file_size, info.compress_size, self._stream.tell()]
        told = [min(value, _FULL) for value in large]
        beyond = [value for value in large if value >= _FULL]
        extra = _without_zip64(info.extra)
        version = info.extract_version
        if beyond:
            extra = struct.pack("<2H", _ZIP64, 8 * len(beyond)) + (
                struct.pack(f"<{len(beyond)}Q", *beyond) + extra
            )
            version = max(version, 45)
        entry = struct.pack(
            _ENTRY,
            b"PK\1\2",
            max(info.create_version, version),
            info.create_system,
            version,
            info.reserved,
            info.flag_bits,
            info.compress_type,
            *_dos_time(info),
            info.CRC,
            told[1],
            told[0],
            len(name),
            len(extra),
            len(info.comment),
            0,
            info.internal_attr,
            info.external_attr,
            told[2],
        )
        self._directory.append(entry + name + extra + info.comment)

    def finish(self, comment: bytes = b"") -> None:
        """Write the directory and its end."""
        start = self._stream.tell()
        directory = b"".join(self._directory)
        self._stream.write(directory)
        count, size = len(self._directory), len(directory)
        if count >= 0xFFFF or start >= _FULL or size >= _FULL:
            sizes = (count, count, size, start)
            self._stream.write(struct.pack(_END_64, b"PK\6\6", 44, 45, 45, 0, 0, *sizes))
            self._stream.write(struct.pack(_LOCATOR, b"PK\6\7", 0, start + size, 1))
        count, size, start = min(count, 0xFFFF), min(size, _FULL), min(start, _FULL)
        self._stream.write(
            struct.pack(_END, b"PK\5\6", 0, 0, count, count, size, start, len(comment)) + comment
        )


def _descriptor(source: BinaryIO, info: ZipInfo) -> bytes:
    """The data descriptor behind a member: with a signature or not, of 32 or 64 bits."""
    start = source.tell()
    found = source.read(24)
    source.seek(start)
    for mark in (b"PK\7\x08", b""):
        for sizes in ("2L", "2Q"):
            if max(info.compress_size, info.file_size) > _FULL and sizes == "2L":
                continue
            told = mark + struct.pack(f"<L{sizes}", info.CRC, info.compress_size, info.file_size)
            if found.startswith(told):
                return told
    raise BadZipFile(f"no data descriptor behind {info.orig_filename}")


def _without_zip64(extra: bytes) -> bytes:
    """The extra fields but for the one that holds sizes and offset, which is written anew."""
    kept, place = b"", 0
    while place + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, place)
        if kind != _ZIP64:
            kept += extra[place : place + 4 + size]
        place += 4 + size
    return kept + extra[place:]


def _dos_time(info: ZipInfo) -> tuple[int, int]:
    year, month, day, hour, minute, second = info.date_time
    return hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day
