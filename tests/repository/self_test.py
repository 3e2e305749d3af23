"""Proves that each repository check can fail, on small trees made for it.

usage: self_test.py [CheckLayers|CheckSizes|CheckText|CheckUnits|CheckNames|CheckColumns|CheckPaths|
                     CheckGlossary|CheckCounts|CheckReadme|CheckHeaders|CheckBenchmarks|CheckFormat]

CheckHeaders and CheckBenchmarks take COMPILER from the environment, CheckFormat CLANG_FORMAT.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Fixture(unittest.TestCase):
    """A tree in a temporary folder, and the check over it."""

    script = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())

    def run_check(self, *arguments):
        command = [sys.executable, HERE / self.script, self.root, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def assert_passes(self, *arguments):
        self.assertEqual(self.run_check(*arguments), (0, ""))

    def assert_fails(self, expected, *arguments):
        status, output = self.run_check(*arguments)
        self.assertEqual(status, 1, output)
        self.assertIn(expected, output)


class CheckLayers(Fixture):
    script = "check_layers.py"

    def setUp(self):
        super().setUp()
        self.write("tools/layers.txt",
                   "# rows\n0 base\n1 tokens\n3 block\n3 index\nany testing\nbackend zmq index\n")
        self.write("include/ashlar/base/a.h", "#include <vector>\n")
        self.write("src/block/b.cc",
                   '#include "ashlar/base/a.h"\n#include "block/c.h"\n#include "tokens/t.h"\n')

    def test_a_tree_in_order_passes(self):
        self.write("include/ashlar/ashlar.h", '#include "ashlar/base/a.h"\n')
        self.write("src/testing/t.cc", '#include "block/b.h"\n')
        self.write("src/backend/zmq/z.cc",
                   '#include "index/i.h"\n#include "tokens/t.h"\n#include "backend/zmq/z.h"\n')
        self.assert_passes()

    def test_a_higher_layer_is_refused(self):
        self.write("include/ashlar/tokens/t.h", '#pragma once\n\n#include "ashlar/block/b.h"\n')
        self.assert_fails("include/ashlar/tokens/t.h:3: includes ashlar/block/b.h; order: tokens is on row 1")

    def test_a_neighbour_is_refused(self):
        self.write("src/index/i.cc", '  #  include "block/b.h"\n')
        self.assert_fails("src/index/i.cc:1: includes block/b.h; order: index is on row 3, block on row 3")

    def test_angle_brackets_do_not_hide_an_include(self):
        self.write("src/base/a.cc", "#include <ashlar/block/b.h>\n")
        self.assert_fails("src/base/a.cc:1: includes ashlar/block/b.h; order:")

    def test_a_leaf_above_its_owner_is_refused(self):
        self.write("src/backend/zmq/z.cc", '#include "block/b.h"\n')
        self.assert_fails("src/backend/zmq/z.cc:1: includes block/b.h; leaf: backend/zmq belongs to index")

    def test_a_layer_that_includes_a_leaf_is_refused(self):
        self.write("src/index/i.cc", '#include "backend/zmq/z.h"\n')
        self.assert_fails("leaf: nothing outside it may include backend/zmq")

    def test_test_support_in_a_layer_is_refused(self):
        self.write("src/block/d.cc", '#include "ashlar/testing/t.h"\n')
        self.assert_fails("any: testing is for tests and programs only")

    def test_a_private_header_in_a_public_one_is_refused(self):
        self.write("include/ashlar/block/b.h", '#include "block/c.h"\n')
        self.assert_fails("public: a public header may not include a private one")

    def test_an_include_without_a_layer_is_refused(self):
        self.write("src/block/d.cc", '#include "c.h"\n')
        self.assert_fails("src/block/d.cc:1: includes c.h; path:")

    def test_an_unknown_folder_is_refused(self):
        self.write("src/misc/m.cc", "\n")
        self.assert_fails("src/misc/m.cc:1: known:")
        self.write("src/backend/misc/m.cc", "\n")
        self.assert_fails("src/backend/misc/m.cc:1: known:")


    def write_rooms(self):
        self.write("tools/layers.txt",
                   "0 base\n3 block\n3 index\nroom index/common\nroom index/flash common\n"
                   "room index/radix common\nface index/radix radix_tree.h\n")
        self.write("src/block/b.cc", "\n")
        self.write("include/ashlar/index/radix_tree.h", "#pragma once\n")
        self.write("src/index/join.cc", '#include "index/flash/f.h"\n#include "index/radix/r.h"\n')
        self.write("src/index/flash/f.cc", '#include "index/common/c.h"\n#include "index/flash/f.h"\n')

    def test_rooms_in_order_pass(self):
        self.write_rooms()
        self.assert_passes()

    def test_a_room_that_includes_its_neighbour_is_refused(self):
        self.write_rooms()
        self.write("src/index/flash/g.cc", '#include "index/radix/r.h"\n')
        self.assert_fails("src/index/flash/g.cc:1: includes index/radix/r.h; room: index/flash may not "
                          "include index/radix")

    def test_the_face_of_a_neighbour_is_refused(self):
        self.write_rooms()
        self.write("src/index/common/c.cc", '#include "ashlar/index/radix_tree.h"\n')
        self.assert_fails("room: index/common may not include index/radix")

    def test_a_face_is_held_to_the_rule_of_its_room(self):
        self.write_rooms()
        self.write("tools/layers.txt", (self.root / "tools/layers.txt").read_text() +
                   "face index/flash flash_index.h\n")
        self.write("include/ashlar/index/flash_index.h", '#include "ashlar/index/radix_tree.h"\n')
        self.assert_fails("include/ashlar/index/flash_index.h:1: includes ashlar/index/radix_tree.h; room: "
                          "index/flash may not include index/radix")

    def test_a_private_header_that_joins_rooms_is_refused(self):
        self.write_rooms()
        self.write("src/index/flash/g.h", '#include "index/join.h"\n')
        self.assert_fails("src/index/flash/g.h:1: includes index/join.h; room: index/flash may not include a "
                          "header that joins the rooms of index")

    def test_a_public_header_that_joins_rooms_is_refused(self):
        self.write_rooms()
        self.write("include/ashlar/index/radix_tree.h", '#include "ashlar/index/make_index.h"\n')
        self.assert_fails("room: index/radix may not include a header that joins the rooms of index")

    def test_an_unknown_room_is_refused(self):
        self.write_rooms()
        self.write("src/index/attic/a.cc", "\n")
        self.assert_fails("src/index/attic/a.cc:1: known: its room is not in tools/layers.txt")

    def test_a_face_that_is_gone_is_refused(self):
        self.write_rooms()
        (self.root / "include/ashlar/index/radix_tree.h").unlink()
        self.assert_fails("there is no include/ashlar/index/radix_tree.h")


class CheckSizes(Fixture):
    script = "check_sizes.py"

    def setUp(self):
        super().setUp()
        self.write("tools/layers.txt", "0 base\n5 tiers\n6 service\nany testing\nbackend zmq base\n")

    def write_headers(self, folder, count):
        names = [f"ashlar/{folder}/h{at}.h" for at in range(count)]
        for name in names:
            self.write(f"include/{name}", "#pragma once\n")
        self.write(f"examples/{folder}.cc", "".join(f'#include "{name}"\n' for name in names))

    def test_files_within_their_budget_pass(self):
        self.write("src/a.cc", "\n" * 600)
        self.write("tests/a_test.cc", "\n" * 800)
        self.assert_passes()

    def test_a_long_source_is_refused(self):
        self.write("include/a.h", "\n" * 601)
        self.assert_fails("include/a.h:601: 601 lines; the budget is 600")

    def test_a_long_test_is_refused(self):
        self.write("tests/a_test.cc", "\n" * 801)
        self.assert_fails("tests/a_test.cc:801: 801 lines; the budget is 800")

    def test_as_many_headers_as_the_budget_pass(self):
        self.write("include/ashlar/ashlar.h", "\n")
        self.write_headers("base", 53)
        self.write_headers("tiers/detail", 52)
        for part in ("service", "testing", "backend/zmq"):
            self.write_headers(part, 10)
        self.assert_passes()

    def test_the_core_has_one_budget_with_its_first_header(self):
        self.write("include/ashlar/ashlar.h", "\n")
        self.write_headers("base", 54)
        self.write_headers("tiers", 52)
        self.assert_fails("107 public headers in rows 0 to 5; the budget is 106")

    def test_later_rows_test_support_and_leaves_have_one_each(self):
        for part, shown in (("service", "row 6"), ("testing", "testing"), ("backend/zmq", "backend/zmq")):
            self.write_headers(part, 11)
            self.assert_fails(f"11 public headers in {shown}; the budget is 10")

    def test_a_header_without_a_user_is_refused(self):
        self.write("include/ashlar/base/a.h", '#include "ashlar/base/a.h"\n')
        self.write("src/base/a.cc", '#include "ashlar/base/a.h"\n')
        self.write("tests/base/a_test.cc", '#include "ashlar/base/a.h"\n#include "ashlar/testing/t.h"\n')
        self.write("include/ashlar/testing/t.h", "\n")
        self.assert_fails("include/ashlar/base/a.h: no example, program, benchmark, leaf or public header")
        for user in ("apps/x/a.cc", "bench/a.cc", "src/backend/zmq/a.cc", "include/ashlar/base/b.h",
                     "tests/install/consumer/a.cc"):
            self.write("examples/b.cc", '#include "ashlar/base/b.h"\n')
            self.write(user, '#include "ashlar/base/a.h"\n')
            self.assert_passes()
            (self.root / user).unlink()


class CheckText(Fixture):
    script = "check_text.py"

    def test_clean_text_passes(self):
        self.write("a.md", "see src/home/x, ${X}/work, http://host.org/home/ and TCP/root\n")
        self.write("picture.bin", "\0 \n")
        self.assert_passes()

    def test_white_space_at_the_end_is_refused(self):
        self.write("a.md", "one\ntwo \n")
        self.assert_fails("a.md:2: space:")
        self.write("a.md", "one\r\n")
        self.assert_fails("a.md:1: space:")

    def test_a_machine_path_is_refused(self):
        for folder in ("work", "root", "home"):
            self.write("a.txt", f'\nset(X "/{folder}/me/x")\n')
            self.assert_fails("a.txt:2: path:")

    def test_a_registry_is_refused(self):
        self.write("a.lock", '"resolved": "https://registry.' + 'npmjs.org/x"\n')
        self.assert_fails("a.lock:1: registry:")

    def test_only_what_git_would_track_is_read(self):
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.write(".gitignore", "/out/\n")
        self.write("out/a.txt", "bad \n")
        self.assert_passes()
        self.write("new.txt", "bad \n")
        self.assert_fails("new.txt:1: space:")


class CheckNames(Fixture):
    script = "check_names.py"

    def test_names_that_differ_pass(self):
        self.write("include/ashlar/a.h",
                   "namespace a { class A final : public B { struct Inner {}; }; enum E { kE }; }\n")
        self.write("src/b.cc", "namespace a { namespace { struct B { struct Inner {}; }; } int f(const "
                   "struct A& a) {} }\n")
        self.assert_passes()

    def test_what_defines_no_type_does_not_count(self):
        self.write("include/ashlar/a.h",
                   "namespace a { struct A {}; template <class T> struct B { T t; }; }\n")
        self.write("include/ashlar/b.h", "namespace b { struct A; enum class B : int; }\n")
        self.write("src/c.cc", "template <> struct B<int> {};\nstruct A::Inner {};\n// struct A {};\n"
                   'const char* text = "struct A {};";\nvoid f() { struct A { int i; }; }\n')
        self.assert_passes()

    def test_two_types_of_one_name_are_refused(self):
        self.write("include/ashlar/a.h", "namespace a {\nstruct Same {};\n}\n")
        for text in ("class Same {};", "enum class Same : int { kOne };",
                     "template <class T>\nclass Same {};",
                     "namespace { struct alignas(64) Same {}; }", "template <class T> concept Same = true;",
                     "class [[nodiscard]] Same final : public Base {};", 'class CAPABILITY("mutex") Same {};',
                     "using Same = StrongId<struct SameTag, int>;"):
            self.write("src/b.cc", f"namespace b {{\n{text}\n}}\n")
            self.assert_fails("Same: defined 2 times: include/ashlar/a.h:2, src/b.cc:")

    def test_programs_and_benchmarks_are_looked_at(self):
        self.write("src/a.cc", "struct Same {};\n")
        for name in ("apps/x/b.cc", "bench/b.cc"):
            self.write(name, "struct Same {};\n")
            self.assert_fails(f"Same: defined 2 times: src/a.cc:1, {name}:1")
            (self.root / name).unlink()

    def test_variants_of_one_file_count_once(self):
        self.write("src/a.cc", "#if X\nstruct A {};\n#else\nstruct A {};\n#endif\n")
        self.assert_passes()


class CheckColumns(Fixture):
    script = "check_columns.py"

    def test_short_lines_pass(self):
        self.write("src/a.cc", "x" * 110 + "\n" + "é" * 110 + "\n")
        self.write("bench/notes", "x" * 300 + "\n")
        self.assert_passes()

    def test_tables_code_and_single_links_of_markdown_pass(self):
        long = "x " * 100
        self.write("docs/a.md", f"# {long}\n\n| {long} |\n\n```\n{long}\n```\n\n    {long}\n\n    {long}\n\n"
                   f"- [{long}](a.md)\n`{long}`\n")
        self.assert_passes()

    def test_long_prose_of_markdown_is_refused(self):
        for text in ("{}", "- {}", "- a\n  {}", "- a\n\n    {}", "a\n    {}", "see [a](b) {}", "> {}"):
            self.write("docs/a.md", "# A\n\n" + text.format("x " * 60) + "\n")
            self.assert_fails("columns; the limit is 110")

    def test_long_lines_are_refused(self):
        for name in ("src/a.h", "src/a.cu", "a.py", "cmake/a.cmake", "src/CMakeLists.txt", "Makefile",
                     "scripts/a"):
            self.write(name, "\n" + "x" * 111 + "\n")
            self.assert_fails(f"{name}:2: 111 columns; the limit is 110")

    def test_scripts_without_a_suffix_are_looked_at(self):
        self.write("bench/run", "#!/bin/sh\n" + "x" * 111 + "\n")
        self.assert_fails("bench/run:2: 111 columns")


class CheckPaths(Fixture):
    script = "check_paths.py"

    def setUp(self):
        super().setUp()
        self.write("src/a/b.cc", "// See docs/page.md.\n")
        self.write("docs/page.md", "# Page\n\n## What it `does`\n")

    def test_what_exists_passes(self):
        self.write("README.md",
                   "[page](docs/page.md#what-it-does) `src/a/b.cc` `src/a/*.cc` `src/{a,a}/b.cc` "
                   "`b.cc` `a/b.cc` [web](https://example.org/x) `make test`\n```\nsrc/none.cc\n```\n")
        self.assert_passes()

    def test_a_broken_link_is_refused(self):
        self.write("docs/other.md", "\n[page](pages.md)\n")
        self.assert_fails("docs/other.md:2: link: there is no pages.md")

    def test_an_unknown_heading_is_refused(self):
        self.write("docs/other.md", "[page](page.md#cost)\n")
        self.assert_fails("link: there is no heading for page.md#cost")

    def test_a_path_that_is_gone_is_refused(self):
        self.write("docs/other.md", "`src/a/{b,c}.cc`\n")
        self.assert_fails("docs/other.md:1: path: there is no src/a/c.cc")
        self.write("docs/other.md", "")
        self.write("src/a/c.cc", "int a;  // docs/pages.md says why\n")
        self.assert_fails("src/a/c.cc:1: path: there is no docs/pages.md")

    def test_a_source_that_is_gone_is_refused(self):
        self.write("docs/other.md", "`a/c.h`\n")
        self.assert_fails("docs/other.md:1: name: there is no a/c.h")

    def test_a_header_that_a_comment_names_and_is_gone_is_refused(self):
        self.write("include/ashlar/a/d.h", "// ashlar/a/d.h, a/d.h, other/e.h\n")
        self.assert_passes()
        self.write("src/a/c.cc", "int a;  // as a/c.h says\n")
        self.assert_fails("src/a/c.cc:1: header: there is no a/c.h")
        self.write("src/a/c.cc", "// (ashlar/a/e.h)\n")
        self.assert_fails("src/a/c.cc:1: header: there is no ashlar/a/e.h")

    def test_the_changelog_may_name_what_is_gone(self):
        self.write("CHANGELOG.md", "`a/c.h`\n")
        self.assert_passes()
        self.write("CHANGELOG.md", "`src/a/c.h`\n")
        self.assert_fails("CHANGELOG.md:1: path: there is no src/a/c.h")


class CheckGlossary(Fixture):
    script = "check_glossary.py"

    def write_words(self, *words):
        rows = "".join(f"| {word} | meaning |\n" for word in words)
        self.write("docs/glossary.md", f"# Glossary\n\n| word | meaning |\n|---|---|\n{rows}")

    def test_words_in_order_pass(self):
        self.write_words("access", "`Block`", "block size", "cap")
        self.assert_passes()

    def test_a_word_that_is_defined_twice_is_refused(self):
        for word in ("slot", "slot (index)"):
            self.write_words(word, word)
            self.assert_fails(f"docs/glossary.md:6: {word} is defined twice")

    def test_senses_pass_when_each_is_qualified(self):
        self.write_words("slot (block)", "slot (index)", "slot map")
        self.assert_passes()
        self.write_words("slot", "slot (index)")
        self.assert_fails("docs/glossary.md:6: slot (index) follows slot, which needs a qualifier too")
        self.write_words("slot (index)", "slot (block)")
        self.assert_fails("docs/glossary.md:6: slot (block) comes after slot (index)")

    def test_another_order_is_refused(self):
        self.write_words("slot", "shard")
        self.assert_fails("docs/glossary.md:6: shard comes after slot")

    def test_no_words_at_all_are_refused(self):
        self.write_words()
        self.assert_fails("defines no word")


class CheckCounts(Fixture):
    script = "../../tools/count_checks.py"

    def setUp(self):
        super().setUp()
        self.write("include/ashlar/base/a.h", "// One.\n// Two.\n// Three.\n\n" + "int a;\n" * 7)
        self.write("src/base/a.cc", 'static_assert(true);\nASHLAR_DCHECK(a == c, "b");\n' + "\n" * 387)

    def test_enough_of_both_passes(self):
        self.assert_passes("--check")

    def test_the_figures_are_printed(self):
        self.write("src/backend/zmq/z.cc", 'ASHLAR_CHECK(a == c, "b");\n' * 2)
        status, output = self.run_check()
        self.assertEqual(status, 0)
        self.assertRegex(output, r"base +400 +2 +5\.0 +30\.0 %")
        self.assertRegex(output, r"backend/zmq +2 +2 +1000\.0\n")

    def test_few_asserts_are_refused(self):
        self.write("src/base/b.cc", "// ASHLAR_CHECK(a)\n")
        self.assert_fails("base: 2 asserts in 401 lines are 5.0 per 1,000; 5 are wanted", "--check")
        self.write("src/backend/zmq/z.cc", "int z;\n")
        self.assert_fails("backend/zmq: 0 asserts in 1 lines", "--check")

    def test_what_restates_a_type_or_a_range_does_not_count(self):
        for text in ("ASHLAR_CHECK(a != nullptr, x)", "ASHLAR_CHECK(node, x)",
                     "ASHLAR_CHECK(!list_.empty(), x)", "ASHLAR_DCHECK(i < size(), x)",
                     "ASHLAR_CHECK(id.value() < kMax, x)",
                     "ASHLAR_CHECK(a->b != nullptr && i < list.size(), x)", "static_assert(Order<Lru>)",
                     "static_assert(a::Order<Lru> && Order<Fifo>)"):
            self.write("src/a/a.cc", f"{text};\n")
            self.assert_fails("a: 0 asserts in 1 lines", "--check")
        for text in ("ASHLAR_CHECK(is_open_, x)", "ASHLAR_CHECK(a < b, x)",
                     "ASHLAR_CHECK(size_ < ring_.size(), x)",
                     "ASHLAR_CHECK(node != nullptr && node->next == last, x)",
                     "static_assert(sizeof(A) == 8)", "static_assert(std::is_final_v<A>)"):
            self.write("src/a/a.cc", f"{text};\n")
            self.assert_passes("--check")

    def test_few_comments_are_refused(self):
        self.write("include/ashlar/ashlar.h", "int b;\n")
        self.assert_fails("include: 27.3 % of the lines of public headers are comments", "--check")


class CheckReadme(Fixture):
    script = "check_readme.py"

    def setUp(self):
        super().setUp()
        self.write("examples/quickstart.cc", "int main() {}\n")

    def test_the_same_program_passes(self):
        self.write("README.md", "# A\n\n```cpp\nint main() {}\n```\n")
        self.assert_passes()

    def test_another_program_is_refused(self):
        self.write("README.md", "```cpp\nint main() { return 1; }\n```\n")
        self.assert_fails("differs")

    def test_a_long_main_is_refused(self):
        for count, passes in ((12, True), (13, False)):
            program = "int main() {\n\n" + "  f();\n" * count + "}\n"
            self.write("examples/quickstart.cc", program)
            self.write("README.md", f"```cpp\n{program}```\n")
            if passes:
                self.assert_passes()
            else:
                self.assert_fails("examples/quickstart.cc: main() has 13 lines; the limit is 12")
        self.write("examples/quickstart.cc", "int main() {}\n")
        self.write("README.md", "```cpp\nint main() {}\n```\n")
        self.write("examples/engine_steps.cc", "int main() {\n" + "  f();\n" * 24 + "}\n")
        self.assert_passes()
        self.write("examples/engine_steps.cc", "int main() {\n" + "  f();\n" * 25 + "}\n")
        self.assert_fails("examples/engine_steps.cc: main() has 25 lines; the limit is 24")

    def test_a_marked_program_of_another_page_is_compared(self):
        self.write("README.md", "```cpp\nint main() {}\n```\n")
        self.write("docs/a.md", "<!-- program: examples/b.cc -->\n```cpp\nint b;\n```\n")
        self.assert_fails("docs/a.md: there is no examples/b.cc")
        self.write("examples/b.cc", "int c;\n")
        self.assert_fails("docs/a.md: the program differs from examples/b.cc")
        self.write("examples/b.cc", "int b;\n")
        self.assert_passes()

    def test_an_excerpt_is_compared(self):
        self.write("README.md", "```cpp\nint main() {}\n```\n")
        self.write("docs/a.md", "<!-- excerpt: examples/b.cc -->\n```cpp\n  int b;\n  int c;\n```\n")
        self.assert_fails("docs/a.md: there is no examples/b.cc")
        self.write("examples/b.cc", "int a;\n  int b;\n\n  int c;\n")
        self.assert_fails("docs/a.md: examples/b.cc has no such lines; copy them again: int b;")
        self.write("examples/b.cc", "int a;\n  int b;\n  int c;\nint d;\n")
        self.assert_passes()

    def test_an_open_place_is_refused(self):
        self.write("README.md", "@" + "FIGURES" + "@\n```cpp\nint main() {}\n```\n")
        self.assert_fails("still open")

    def test_a_long_readme_is_refused(self):
        self.write("README.md", "```cpp\nint main() {}\n```\n" + "\n" * 118)
        self.assert_fails("121 lines; the limit is 120")

    def test_a_readme_without_a_program_is_refused(self):
        self.write("README.md", "# A\n")
        self.assert_fails("no ```cpp block")


class CheckUnits(Fixture):
    script = "check_units.py"

    def setUp(self):
        super().setUp()
        self.write("tests/a/names.h",
                   "namespace x::y {\n\ninline int name(int i) {\n  return i;\n}\n\n}  // namespace x::y\n")
        self.write("tests/a/user_test.cc", '#include "a/names.h"\n')

    def source(self, namespace, line):
        self.write("tests/a/b_test.cc", f"namespace {namespace} {{\nnamespace {{\n\n{line}\n\n"
                   f"}}  // namespace\n}}  // namespace {namespace}\n")

    def test_names_of_its_own_pass(self):
        self.source("x::y", "int names(int i) {\n  const int name(0);\n}")
        self.assert_passes()

    def test_a_function_a_type_or_a_constant_that_hides_one_of_a_header_is_refused(self):
        for line in ("int name(long i) {", "struct name {", "constexpr int name = 1;", "using name = int;"):
            self.source("x::y", line)
            self.assert_fails("tests/a/b_test.cc: name hides that of tests/a/names.h")

    def test_namespaces_further_in_are_looked_at(self):
        self.source("x::y::z", "int name(int i) {")
        self.assert_fails("tests/a/b_test.cc: name hides that of tests/a/names.h")

    def test_other_namespaces_and_folders_hide_nothing(self):
        self.source("x::z", "int name(int i) {")
        self.assert_passes()
        (self.root / "tests/a/user_test.cc").unlink()
        self.source("x::y", "int name(int i) {")
        self.assert_passes()


class CheckHeaders(Fixture):
    script = "check_headers.py"

    def setUp(self):
        super().setUp()
        self.arguments = (self.root / "scratch", os.environ.get("COMPILER", "g++-12"))
        self.write("include/ashlar/a.h", "#pragma once\nnamespace ashlar { struct A {}; }\n")

    def test_headers_that_stand_alone_pass(self):
        self.write("include/ashlar/b.h", '#pragma once\n#include "ashlar/a.h"\nstruct B : ashlar::A {};\n')
        self.assert_passes(*self.arguments)

    def test_a_header_that_leans_on_another_is_refused(self):
        self.write("include/ashlar/b.h", "#pragma once\nstruct B : ashlar::A {};\n")
        self.assert_fails("include/ashlar/b.h: does not compile alone:", *self.arguments)

    def test_a_header_amid_others_that_leans_on_one_is_refused(self):
        self.write("include/ashlar/b.h", "#pragma once\nstruct B {};\n")
        self.write("include/ashlar/c.h", '#pragma once\n#include "ashlar/b.h"\nstruct C : ashlar::A {};\n')
        self.write("include/ashlar/d.h",
                   '#pragma once\n#include "ashlar/a.h"\n#include "ashlar/c.h"\nstruct D : C {};\n')
        self.assert_fails("include/ashlar/c.h", *self.arguments)

    def test_headers_that_include_each_other_are_parsed(self):
        self.write("include/ashlar/b.h", '#pragma once\n#include "ashlar/c.h"\nstruct B : C {};\n')
        self.write("include/ashlar/c.h", '#pragma once\n#include "ashlar/b.h"\nstruct C : B {};\n')
        self.assert_fails("does not compile alone:", *self.arguments)

    def test_a_header_that_leans_on_one_of_the_standard_library_is_refused(self):
        self.write("include/ashlar/b.h",
                   "#pragma once\n#include <vector>\ninline std::vector<int> b() { return {}; }\n")
        self.write("include/ashlar/c.h",
                   "#pragma once\n// std::map\ninline std::vector<int> c() { return {}; }\n")
        self.assert_fails("include/ashlar/c.h: std::vector needs #include <vector>\n", *self.arguments)

    def test_one_that_it_includes_may_bring_the_standard_library(self):
        self.write("include/ashlar/b.h", "#pragma once\n#include <vector>\n")
        self.write("include/ashlar/c.h", '#pragma once\n#include "ashlar/b.h"\nusing C = std::vector<int>;\n')
        self.assert_passes(*self.arguments)

    def test_no_headers_at_all_are_refused(self):
        (self.root / "include/ashlar/a.h").unlink()
        self.assert_fails("holds no header", *self.arguments)


class CheckBenchmarks(Fixture):
    script = "check_benchmarks.py"

    def setUp(self):
        super().setUp()
        self.commands = self.root / "compile_commands.json"
        compiler = os.environ.get("COMPILER", "g++-12")
        entries = []
        for name in ("bench/a.cc", "src/b.cc", "bench/c.cu"):
            launcher = "/usr/bin/cmake -E env X=1 /usr/bin/ccache"
            command = f"{launcher} {compiler} -DANSWER=42 -o a.o -c {self.root / name}"
            entries.append({"directory": str(self.root), "file": str(self.root / name), "command": command})
        self.commands.write_text(json.dumps(entries))

    def test_what_parses_passes(self):
        self.write("bench/a.cc", "int main() { return ANSWER; }\n")
        self.assert_passes(self.commands)
        self.assertFalse((self.root / "a.o").exists())

    def test_what_does_not_parse_is_refused(self):
        self.write("bench/a.cc", "int main() { return NO_ANSWER; }\n")
        self.assert_fails("bench/a.cc: does not parse:", self.commands)

    def test_clang_says_the_same_with_shared_headers_precompiled(self):
        clang = shutil.which("clang++-19")
        if not clang:
            self.skipTest("no clang++-19")
        text = "#include <cstdlib>\nint main() {{ return std::abs({}); }}\n"
        self.write("bench/a.cc", text.format("ANSWER"))
        self.assert_passes(self.commands, self.root / "scratch", clang)
        self.write("bench/a.cc", text.format("NO_ANSWER"))
        self.assert_fails("bench/a.cc: does not parse:", self.commands, self.root / "scratch", clang)

    def test_no_benchmarks_at_all_are_refused(self):
        self.commands.write_text("[]")
        self.assert_fails("knows no benchmark", self.commands)


class CheckStages(Fixture):
    script = "check_stages.py"

    def setUp(self):
        super().setUp()
        self.write("Makefile", "test:\n\t@echo\n\t$(call stage,plain,all)\n\t$(call stage,hard,all,few)\n"
                   "\nother:\n\t$(call stage,none,all)\n")
        presets = [{"name": name, "generator": "Ninja", "binaryDir": f"${{sourceDir}}/build/{name}"}
                   for name in ("plain", "hard")]
        self.write("CMakePresets.json", json.dumps({
            "version": 6, "configurePresets": presets, "testPresets": [
                {"name": "plain", "configurePreset": "plain", "filter": {"exclude": {"label": "hard"}}},
                {"name": "few", "configurePreset": "hard", "filter": {"include": {"label": "hard_few"}}}]}))

    def configure(self, labels, presets=("plain", "hard")):
        self.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(p NONE)\n"
                   "enable_testing()\nadd_test(NAME a COMMAND true)\nadd_test(NAME b COMMAND true)\n"
                   f'set_tests_properties(b PROPERTIES LABELS "{labels}")\n')
        for preset in presets:
            subprocess.run(["cmake", "--preset", preset], cwd=self.root, check=True, capture_output=True)

    def test_every_test_in_some_stage_passes(self):
        self.configure("hard;hard_few")
        self.assert_passes()

    def test_a_test_in_no_stage_is_refused(self):
        self.configure("hard")
        self.assert_fails("b: no stage of `make test` runs it; build/plain has it")

    def test_a_stage_that_is_not_configured_is_no_success(self):
        self.configure("", ("plain",))
        status, output = self.run_check()
        self.assertEqual(status, 77)
        self.assertIn("build/hard: not configured", output)

    def test_a_makefile_without_stages_is_refused(self):
        self.write("Makefile", "test:\n\t@echo\n")
        self.assert_fails("has no $(call stage")


class CheckFormat(Fixture):
    script = "check_format.py"

    def setUp(self):
        super().setUp()
        self.clang_format = os.environ.get("CLANG_FORMAT", "")
        if not self.clang_format:
            self.skipTest("clang-format 19 is not installed")
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.write("src/a.cc", "int a() { return 1; }\n")

    def test_a_formatted_tree_passes(self):
        self.assert_passes(self.clang_format)

    def test_another_format_is_refused(self):
        self.write("tests/b.h", "int  b();\n")
        self.assert_fails("tests/b.h:1:", self.clang_format)

    def test_no_clang_format_is_no_success(self):
        status, output = self.run_check()
        self.assertEqual(status, 77)
        self.assertIn("not installed", output)


if __name__ == "__main__":
    unittest.main()
