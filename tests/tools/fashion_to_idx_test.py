"""tools/fashion-to-idx: the bytes that it writes for small classes, and what it refuses."""
import json
import struct
import unittest

from helper import ToolTest, run_tool


def image(label, index):
    return [label, index] + [0] * 781 + [255]


class FashionToIdx(ToolTest):
    def given_classes(self, count=lambda label: 3):
        for label in range(10):
            self.write(f"json/{label}.json", json.dumps({"data": [image(label, i) for i in range(count(label))]}))

    def convert(self, *more):
        return run_tool("fashion-to-idx", self.dir / "json", self.dir / "idx", *more)

    def samples(self, prefix):
        """(label of the file, label pixel, index pixel) of each sample, the headers checked."""
        images = (self.dir / "idx" / f"{prefix}-images-idx3-ubyte").read_bytes()
        labels = (self.dir / "idx" / f"{prefix}-labels-idx1-ubyte").read_bytes()
        magic, count, height, width = struct.unpack(">IIII", images[:16])
        self.assertEqual((magic, height, width, len(images)), (0x803, 28, 28, 16 + 784 * count))
        self.assertEqual(struct.unpack(">II", labels[:8]) + (len(labels),), (0x801, count, 8 + count))
        self.assertTrue(all(images[16 + 784 * i + 783] == 255 for i in range(count)))
        return [(labels[8 + i], images[16 + 784 * i], images[17 + 784 * i]) for i in range(count)]

    def test_first_images_are_for_the_test_and_classes_take_turns(self):
        self.given_classes()
        result = self.convert(1)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.samples("t10k"), [(label, label, 0) for label in range(10)])
        self.assertEqual(self.samples("train"), [(label, label, i) for i in (1, 2) for label in range(10)])

    def test_classes_of_different_length_lose_nothing(self):
        self.given_classes(lambda label: 2 + label % 3)
        self.assertEqual(self.convert(1).returncode, 0)
        self.assertEqual(sorted(self.samples("train")),
                         [(label, label, i) for label in range(10) for i in range(1, 2 + label % 3)])

    def test_empty_images_are_left_out(self):
        self.given_classes()
        self.write("json/0.json", json.dumps({"data": [image(0, 0), [], image(0, 1), []]}))
        self.assertEqual(self.convert(1).returncode, 0)
        self.assertEqual([s for s in self.samples("train") if s[0] == 0], [(0, 0, 1)])

    def test_bad_input_is_named_and_nothing_is_written(self):
        for content, part in (("{", "cannot read"), ('{"data": 3}', 'list named "data"'), ("[]", 'list named "data"'),
                              ('{"data": [[1, 2]]}', "image 0 does not have 784 pixels"),
                              (json.dumps({"data": [[256] * 784]}), "image 0 has a pixel"),
                              (json.dumps({"data": [[0.5] * 784]}), "image 0 has a pixel"),
                              ('{"data": []}', "too few")):
            with self.subTest(content=content[:30]):
                self.given_classes()
                self.write("json/4.json", content)
                result = self.convert(1)
                self.assertEqual(result.returncode, 2)
                self.assertIn(part, result.stderr)
                self.assertIn("4.json", result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertFalse((self.dir / "idx").exists())

    def test_a_missing_class_is_named(self):
        self.given_classes()
        (self.dir / "json/9.json").unlink()
        result = self.convert(1)
        self.assertEqual(result.returncode, 2)
        self.assertIn("9.json", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
