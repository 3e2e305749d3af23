"""Checks that every public header compiles alone.

usage: check_headers.py ROOT SCRATCH COMPILER

Parses files in the folder SCRATCH that include every header below ROOT/include. A file holds a chain: each
header of it is included, at whatever depth, by the next one. So the text of each is parsed after the headers
that it includes itself, and no others, as if it were alone; and three headers cost little more than one.
Standard headers take most of such a parse, so all of them are precompiled and always there; a table says
which of them a header, or one that it includes, must name.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]

# Which headers declare a name of std; any of them will do.
DECLARED_IN = {
    "algorithm": "min max sort lower_bound upper_bound binary_search copy copy_n fill all_of any_of none_of "
    "find_if count_if",
    "array": "array",
    "atomic": "atomic atomic_ref atomic_flag memory_order memory_order_relaxed memory_order_acquire "
    "memory_order_release "
    "memory_order_seq_cst memory_order_acq_rel",
    "bit": "bit_width bit_ceil bit_floor countr_zero countl_zero popcount has_single_bit endian bit_cast",
    "chrono": "chrono",
    "compare": "strong_ordering weak_ordering partial_ordering",
    "concepts": "same_as convertible_to derived_from invocable integral constructible_from",
    "condition_variable": "condition_variable condition_variable_any",
    "cstddef": "size_t ptrdiff_t byte nullptr_t max_align_t",
    "cstdint": "uint8_t uint16_t uint32_t uint64_t int8_t int16_t int32_t int64_t uintptr_t intptr_t",
    "cstring": "memcpy memset memcmp strlen",
    "deque": "deque",
    "functional": "function hash less",
    "initializer_list": "initializer_list",
    "limits": "numeric_limits",
    "map": "map multimap",
    "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared enable_shared_from_this",
    "mutex": "mutex recursive_mutex lock_guard unique_lock once_flag call_once",
    "optional": "optional nullopt nullopt_t",
    "ostream": "ostream",
    "set": "set multiset",
    "shared_mutex": "shared_mutex shared_lock",
    "span": "span",
    "stop_token": "stop_token stop_source stop_callback",
    "string": "string to_string",
    "string_view": "string_view",
    "thread": "thread jthread",
    "tuple": "tuple",
    "type_traits": "is_same_v is_trivially_copyable_v enable_if_t decay_t remove_cvref_t conditional_t "
    "is_base_of_v",
    "typeindex": "type_index",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "move forward exchange pair swap in_place_t",
    "variant": "variant monostate visit",
    "vector": "vector",
}
# Declared by several headers, or by what these include according to the standard.
ALSO_IN = {
    "size_t": "cstdio cstring cstdlib", "string_view": "string",
    "hash": "string string_view memory optional variant",
    "byte": "span", "swap": "algorithm", "pair": "map unordered_map", "lock_guard": "shared_mutex",
    "memcpy": "string.h", "chrono": "thread condition_variable", "stop_token": "thread condition_variable",
    "move": "algorithm",
}
NEEDS = {name: {header, *ALSO_IN.get(name, "").split()} for header, names in DECLARED_IN.items()
         for name in names.split()}

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
STD_NAME = re.compile(r"(?<![\w:])std::(\w+)")


class Tree:
    """The public headers, by the name under which they are included."""

    def __init__(self, root):
        self.root = root
        folder = root / "include"
        self.texts = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.h"))}
        self.includes = {name: INCLUDE.findall(text) for name, text in self.texts.items()}

    def standard(self):
        return sorted({name for names in self.includes.values() for name in names if "/" not in name
                       and "." not in name})

    def reached(self, header):
        """What the header includes, directly or through other public headers."""
        seen, todo = set(), [header]
        while todo:
            for name in self.includes.get(todo.pop(), []):
                if name not in seen:
                    seen.add(name)
                    todo.append(name)
        return seen

    def chains(self):
        """The public headers in as few lists as possible, each header reached by all that follow it in its
        list: a matching of every header with one that it reaches (Dilworth, Fulkerson)."""
        reached = {name: sorted(self.reached(name) & self.texts.keys() - {name}) for name in self.texts}
        next_of = {}

        def match(header, seen):
            for name in reached[header]:
                if name not in seen:
                    seen.add(name)
                    if name not in next_of or match(next_of[name], seen):
                        next_of[name] = header
                        return True
            return False

        for header in reached:
            match(header, set())
        chains = []
        for header in sorted(reached.keys() - set(next_of.values())):
            chain = [header]
            while chain[-1] in next_of:
                chain.append(next_of[chain[-1]])
            chains.append(chain)
        in_circles = self.texts.keys() - {name for chain in chains for name in chain}
        return chains + [[name] for name in sorted(in_circles)]

    def undeclared(self, header):
        """Names of std that the header uses, with headers that would declare them, where it reaches none."""
        reached = self.reached(header)
        used = set(STD_NAME.findall(COMMENT.sub("", self.texts[header])))
        return [(name, sorted(NEEDS[name])) for name in sorted(used & NEEDS.keys())
                if not NEEDS[name] & reached]


def precompile(tree, scratch, compiler):
    """Returns the flags that bring the standard library, or an error text."""
    header = scratch / "standard.h"
    header.write_text("".join(f"#include <{name}>\n" for name in tree.standard()))
    command = [compiler, *FLAGS, "-x", "c++-header", header, "-o", f"{header}.gch"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return ["-include", str(header)], result.stderr if result.returncode else ""


def parse_chain(chain, scratch, command):
    """Returns what the compiler says against the headers, or an empty text."""
    source = scratch / (chain[-1].replace("/", "__") + ".cc")
    source.write_text("".join(f'#include "{name}"\n' for name in chain))
    result = subprocess.run([*command, source], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return ""
    blamed = [name for name in chain if f"include/{name}:" in result.stderr] or chain[-1:]
    return f"include/{', include/'.join(blamed)}: does not compile alone:\n{result.stderr}"


def check(root, scratch, compiler):
    scratch.mkdir(parents=True, exist_ok=True)
    tree = Tree(root)
    if not tree.texts:
        return [f"{root / 'include'}: holds no header"]
    problems = [
        f"include/{name}: std::{used} needs #include <{'> or <'.join(headers)}>"
        for name in tree.texts
        for used, headers in tree.undeclared(name)
    ]
    standard, error = precompile(tree, scratch, compiler)
    if error:
        return [error]
    command = [compiler, *FLAGS, "-fsyntax-only", *standard, "-I", str(root / "include")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(lambda chain: parse_chain(chain, scratch, command), tree.chains())
        return problems + [text for text in said if text]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    root, scratch = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    problems = check(root, scratch, sys.argv[3])
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
