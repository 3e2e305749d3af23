"""Reads and damages what our tiers left on disk, by the formats in docs/formats/.

Only for files that no process has open.
"""
import pathlib
import struct

TABLE = 69632  # of a G3 file
HEADER = 256
PAGE = 4096


class G3File:
    """The filled blocks of a G3 file and where their bytes lie."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        data = self.path.read_bytes()
        assert data[:8] == b"ASHLARG3", f"{path} is no G3 file"
        planes, = struct.unpack_from("<I", data, 12)
        self.filled, self.bytes = [], 0
        for number in range((len(data) - TABLE) // HEADER):
            at = TABLE + number * HEADER
            if data[at:at + 4] == b"Gblk" and struct.unpack_from("<I", data, at + 4)[0] == number:
                self.filled.append(number)
                self.bytes, = struct.unpack_from("<Q", data, at + 72)
        assert self.filled, f"{path} has no blocks"
        self.unit = self.bytes // planes
        blocks = len(data) // (self.bytes + HEADER)
        while TABLE + self.table_bytes(blocks) + blocks * self.bytes > len(data):
            blocks -= 1
        self.base = TABLE + self.table_bytes(blocks)

    @staticmethod
    def table_bytes(blocks):
        return -(-blocks * HEADER // PAGE) * PAGE

    def units(self):
        """Offsets of the parts of blocks that hold anything: one per block and plane."""
        data = self.path.read_bytes()
        found = []
        for at in range(self.base, len(data) - self.unit + 1, self.unit):
            if any(data[at:at + self.unit]):
                found.append(at)
        assert len(found) >= len(self.filled), f"{len(found)} parts for {len(self.filled)} blocks"
        return found

    def flip(self, offsets):
        """Inverts one byte in the middle of each part."""
        with self.path.open("r+b") as file:
            for at in offsets:
                file.seek(at + self.unit // 2)
                byte = file.read(1)
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 0xff]))

    def rotate(self):
        """Every part gets the bytes of the next one: sound bytes under another block's header."""
        offsets = self.units()
        data = self.path.read_bytes()
        with self.path.open("r+b") as file:
            for at, other in zip(offsets, offsets[1:] + offsets[:1]):
                file.seek(at)
                file.write(data[other:other + self.unit])

    def truncate(self):
        """The file ends in the middle of the filled blocks."""
        offsets = self.units()
        with self.path.open("r+b") as file:
            file.truncate(offsets[len(offsets) // 2] + self.unit // 2)


def filled_blocks(folder):
    """How many blocks the G3 files in a folder have. May be asked while they are written."""
    try:
        return sum(len(G3File(path).filled) for path in folder.glob("g3.*"))
    except (OSError, AssertionError, struct.error):
        return 0


def flip_object(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0xff
    path.write_bytes(data)


def truncate_object(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def swap_objects(one, other):
    """Each gets the other's name."""
    aside = one.with_name(one.name + ".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
