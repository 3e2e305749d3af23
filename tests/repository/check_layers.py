"""Checks that includes follow the layer order of tools/layers.txt.

usage: check_layers.py ROOT

Rules, over the #include lines of ROOT/include/ashlar and ROOT/src:
  order    a layer includes itself and layers with a smaller number, nothing on its own row or above
  leaf     src/backend/X includes itself, its owning layer and what is below; no layer includes a leaf
  any      a folder marked `any` includes every layer; no layer includes it
  public   a public header includes no private one
  path     an include in quotes starts with a layer's folder
  room     a room includes itself and the rooms that its line names, their public faces among them, and no
           header that joins rooms (one directly in the layer's folder, or a public one without a room); a
           face is held to the same rule as its room; a layer that has rooms keeps every source in one of
           them or directly in its folder
  known    every folder is in tools/layers.txt, and so is every header that it names
"""

import pathlib
import re
import sys

SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(ashlar/[^>]+)>)')


class Order:
    """What tools/layers.txt says."""

    def __init__(self, path):
        self.number = {}  # layer -> row
        self.anywhere = set()
        self.owner = {}  # leaf -> layer
        self.rooms = {}  # (layer, room) -> rooms that it may include, itself among them
        self.faces = {}  # (layer, public header) -> room
        for at, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] == "any" and len(words) == 2:
                self.anywhere.add(words[1])
            elif words[0] == "backend" and len(words) == 3:
                self.owner[words[1]] = words[2]
            elif words[0] in ("room", "face") and len(words) > 1 and "/" in words[1]:
                layer, room = words[1].split("/", 1)
                if words[0] == "room":
                    self.rooms[layer, room] = {room, *words[2:]}
                else:
                    self.faces.update({(layer, header): room for header in words[2:]})
            elif words[0].isdigit() and len(words) == 2:
                self.number[words[1]] = int(words[0])
            else:
                sys.exit(f"{path}:{at}: cannot be read: {line}")
        for leaf, owner in self.owner.items():
            if owner not in self.number:
                sys.exit(f"{path}: leaf {leaf} names {owner}, which is no layer")
        for (layer, room), others in self.rooms.items():
            for other in others:
                if layer not in self.number or (layer, other) not in self.rooms:
                    sys.exit(f"{path}: room {layer}/{room} names {layer}/{other}, which is no room")
        for (layer, header), room in self.faces.items():
            if (layer, room) not in self.rooms:
                sys.exit(f"{path}: face {header} names {layer}/{room}, which is no room")

    def place(self, parts):
        """The folder a path below include/ashlar or src belongs to; None when it is unknown."""
        if parts[0] == "backend":
            return ("backend", parts[1]) if len(parts) > 2 and parts[1] in self.owner else None
        if parts[0] in self.number:
            return ("layer", parts[0])
        if parts[0] in self.anywhere:
            return ("any", parts[0])
        return None

    def has_rooms(self, layer):
        return any(own == layer for own, _ in self.rooms)

    def room(self, parts):
        """The room of a private file or of a public header below its layer's folder; None without one."""
        if len(parts) > 2 and (parts[0], parts[1]) in self.rooms:
            return parts[1]
        return self.faces.get((parts[0], "/".join(parts[1:])))

    def room_refusal(self, source, target):
        """Why a file may not include another of the same layer; None when it may. Both are parts of paths."""
        own, other = self.room(source), self.room(target)
        if own is None or other in self.rooms[source[0], own]:
            return None
        if other is None:
            return f"room: {source[0]}/{own} may not include a header that joins the rooms of {source[0]}"
        return f"room: {source[0]}/{own} may not include {source[0]}/{other}"

    def refusal(self, source, target):
        """Why source may not include target; None when it may."""
        if source == target or source[0] == "any" and target[0] != "backend":
            return None
        if target[0] == "backend":
            return f"leaf: nothing outside it may include backend/{target[1]}"
        if target[0] == "any":
            return f"any: {target[1]} is for tests and programs only"
        row = self.number[target[1]]
        if source[0] == "backend":
            owner = self.owner[source[1]]
            if target[1] == owner or row < self.number[owner]:
                return None
            own = f"leaf: backend/{source[1]} belongs to {owner} (row {self.number[owner]})"
            return f"{own}; {target[1]} is on row {row}"
        own = self.number[source[1]]
        if row < own:
            return None
        return f"order: {source[1]} is on row {own}, {target[1]} on row {row}"


def check_file(path, shown, order, own, public):
    """Yields one line per broken rule. own: the parts of its path; ashlar.h has only one."""
    source = order.place(own) if len(own) > 1 else None
    for at, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        parts = pathlib.PurePosixPath(match[1] or match[2]).parts
        where = f"{shown}:{at}: includes {'/'.join(parts)}"
        of_public = parts[0] == "ashlar"
        inner = parts[1:] if of_public else parts
        target = order.place(inner) if len(inner) > 1 else None
        if target is None:
            yield f"{where}; path: name it by a layer's folder, third-party headers in <>"
        elif public and not of_public:
            yield f"{where}; public: a public header may not include a private one"
        elif source is not None and (refusal := order.refusal(source, target)):
            yield f"{where}; {refusal}"
        elif own[0] == inner[0] and (refusal := order.room_refusal(own, inner)):
            yield f"{where}; {refusal}"


def check(root):
    order = Order(root / "tools" / "layers.txt")
    problems = []
    for base, public in ((root / "include" / "ashlar", True), (root / "src", False)):
        for path in sorted(base.rglob("*")) if base.is_dir() else []:
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            parts = path.relative_to(base).parts
            shown = path.relative_to(root)
            source = order.place(parts) if len(parts) > 1 else None
            if source is None and (len(parts) > 1 or not public):
                problems.append(f"{shown}:1: known: its folder is not in tools/layers.txt")
                continue
            if not public and len(parts) > 2 and order.has_rooms(parts[0]) and parts[:2] not in order.rooms:
                problems.append(f"{shown}:1: known: its room is not in tools/layers.txt")
            problems.extend(check_file(path, shown, order, parts, public))
    for layer, header in order.faces:
        if not (root / "include" / "ashlar" / layer / header).is_file():
            problems.append(f"tools/layers.txt:1: known: there is no include/ashlar/{layer}/{header}")
    return problems


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = check(pathlib.Path(sys.argv[1]).resolve())
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
