"""tools/check_includes: every forbidden edge between two areas is found at its line, and every allowed one passes."""
import unittest

from helper import ToolTest, run_tool

AREAS = ("trainer", "ps", "transport", "transport/base", "kernels", "perf", "tests", "tools")
# The design's table, written out edge by edge, apart from perf, tests and tools, which may include anything.
ALLOWED = {
    ("trainer", "ps"), ("trainer", "kernels"), ("trainer", "transport/base"),
    ("ps", "transport"), ("ps", "kernels"), ("ps", "transport/base"),
    ("transport", "transport/base"),
}


class CheckIncludes(ToolTest):
    def check(self):
        return run_tool("check_includes", self.dir)

    def test_each_edge_between_two_areas(self):
        forbidden = set()
        for source in AREAS:
            for target in AREAS:
                file = f"{source}/includes_{target.replace('/', '_')}.cc"
                self.write(file, f'#include <vector>\n\n#include "{target}/two.h"\n')
                if source != target and source not in ("perf", "tests", "tools") and (source, target) not in ALLOWED:
                    forbidden.add(f"{file}:3: {source} may not include {target} ({target}/two.h)")
        result = self.check()
        self.assertEqual(result.returncode, 1)
        self.assertEqual(set(result.stdout.splitlines()[:-1]), forbidden)

    def test_every_way_of_naming_a_file(self):
        self.write("ps/shard.h", "")
        for line in ('#include "../ps/shard.h"', '  #  include <ps/shard.h>', '#include/**/"ps/shard.h"  // needed',
                     '#include "kernels/../ps/shard.h"', '/* a */ #include "ps/shard.h"'):
            with self.subTest(line=line):
                self.write("kernels/fec.cu", line + "\n")
                result = self.check()
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn("kernels/fec.cu:1: kernels may not include ps (ps/shard.h)", result.stdout)

    def test_a_macro_cannot_hide_an_include(self):
        self.write("kernels/fec.h", '#define SHARD "ps/shard.h"\n#include SHARD\n')
        result = self.check()
        self.assertEqual(result.returncode, 1)
        self.assertIn("kernels/fec.h:2:", result.stdout)

    def test_comments_and_foreign_headers_are_no_includes_of_ours(self):
        self.write("kernels/fec.h", '// #include "ps/shard.h"\n/*\n#include "ps/shard.h"\n*/\n#include <cstdint>\n'
                                    '#include "gtest/gtest.h"\nconst char* s = "/*";\n#include "fec_rules.h"\n')
        self.write("kernels/fec_rules.h", "")
        result = self.check()
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_all_violations_are_counted(self):
        self.write("transport/fabric.h", '#include "kernels/fec.h"\n#include "ps/job.h"\n')
        self.write("transport/base/error.h", '#include "transport/fabric.h"\n')
        result = self.check()
        self.assertEqual(result.returncode, 1)
        self.assertIn("2 files, 3 forbidden includes", result.stdout)

    def test_a_tree_without_sources_does_not_pass(self):
        self.assertEqual(self.check().returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
