#!/usr/bin/env python3
"""FEC bytes, version 1: an encoder and decoder written from kernels/FORMAT.md alone, and the golden vectors they make.

    fec_golden.py                write fec_golden.json beside this file, and check that each vector decodes
    fec_golden.py --corpus DIR   also write the vectors' bytes as files, to seed a fuzzer

Needs Python 3.9 and nothing else. It shares no code with the C++ codec and is written for clearness, with lists of bits.
The vectors change only with the format's version.
"""
import argparse
import json
import os
import struct

BLOCK = 4096
MANTISSA = 1 << 23


class Bad(Exception):
    """The bytes are not a segment; the argument is the DecodeStatus."""


# ---------------------------------------------------------------- one element (kernels/fec_rules.h)

def draw(seed, position):
    """0 .. 2^23 - 1, uniform: the top bits of MurmurHash3's finaliser."""
    def word(value):
        return value & 0xFFFFFFFF

    value = word(position * 0x9E3779B1 + seed)
    value = word((value ^ value >> 16) * 0x85EBCA6B)
    value = word((value ^ value >> 13) * 0xC2B2AE35)
    return (value ^ value >> 16) >> 9


def quantise(bits, limit, rounding, seed, position):
    """(sign, exponent after rounding), or None if the element is dropped. bits, limit: of binary32; position: in the
    whole segment."""
    magnitude = bits & 0x7FFFFFFF
    if magnitude < limit:
        return None
    exponent = (magnitude >> 23) - 127
    fraction = magnitude % MANTISSA
    if rounding == "nearest" and fraction >= MANTISSA // 2:
        exponent += 1
    if rounding == "stochastic" and fraction + draw(seed, position) >= MANTISSA:
        exponent += 1
    return bits >> 31, exponent


def limit_and_base(exponent, mantissa, rounding):
    base = exponent + (1 if rounding == "nearest" and mantissa >= MANTISSA // 2 else 0)
    assert -126 <= base <= 112
    return (exponent + 127) * MANTISSA + mantissa, base


# ---------------------------------------------------------------- bits

def field(value, width):
    return [value >> i & 1 for i in range(width)]


def unary(value):
    return [0] * value + [1]


def pack(bits):
    bits = bits + [0] * (-len(bits) % 8)
    return bytes(sum(bit << i for i, bit in enumerate(bits[at:at + 8])) for at in range(0, len(bits), 8))


class Reader:
    def __init__(self, body):
        self.bits = [byte >> i & 1 for byte in body for i in range(8)]
        self.at = 0

    def take(self, count):
        if self.at + count > len(self.bits):
            raise Bad("kBadCount")
        self.at += count
        return self.bits[self.at - count:self.at]

    def field(self, width):
        return sum(bit << i for i, bit in enumerate(self.take(width)))

    def unary(self):
        zeros = 0
        while not self.take(1)[0]:
            zeros += 1
        return zeros

    def end(self, whole_bytes_may_be_left=False):
        rest = self.bits[self.at:]
        if any(rest) or (len(rest) >= 8 and not whole_bytes_may_be_left):
            raise Bad("kBadCount")


# ---------------------------------------------------------------- encoder

def gap_shift(n, k):
    shift = 0
    while k * 2 ** (shift + 1) < n - k:
        shift += 1
    return shift


def count_bytes(k):
    value = k - 1
    return bytes([value]) if value < 128 else bytes([value % 128 + 128, value >> 7])


def sparse_bits(n, gaps, signs):
    shift = gap_shift(n, len(gaps))
    bits = []
    for gap, sign in zip(gaps, signs):
        bits += field(gap % 2 ** shift, shift) + [sign]
    for gap in gaps:
        bits += unary(gap >> shift)
    return bits


def plane_bits(codes):
    bits = []
    for plane in range(1, 16):
        bits += [int(code >= plane) for code in codes if code >= plane - 1]
    return bits


def exception_bits(codes):
    """A list of those with a code above 0, and their planes from the second on; None if there are none."""
    listed = [i for i, code in enumerate(codes) if code]
    if not listed:
        return None
    gaps = [at - before - 1 for at, before in zip(listed, [-1] + listed)]
    shift = gap_shift(len(codes), len(gaps))
    bits = field(len(gaps) - 1, (len(codes) - 1).bit_length())
    for gap in gaps:
        bits += field(gap % 2 ** shift, shift)
    for gap in gaps:
        bits += unary(gap >> shift)
    return bits + plane_bits(codes)[len(codes):]


def nibble_bits(codes):
    return [bit for code in codes for bit in field(code, 4)]


def gap_nibbles(gap):
    groups = [gap & 7]
    while gap >> 3:
        gap >>= 3
        groups.append(gap & 7)
    return [bit for i, group in enumerate(groups) for bit in field(group, 3) + [int(i + 1 < len(groups))]]


def block_forms(n, survivors):
    """survivors: [(position, sign, code)]. Every form the block has: {name: (entry, body)}."""
    k = len(survivors)
    signs = [sign for _, sign, _ in survivors]
    codes = [code for _, _, code in survivors]
    starts = [-1] + [position for position, _, _ in survivors]
    gaps = [position - start - 1 for (position, _, _), start in zip(survivors, starts)]
    present = [0] * n
    for position, _, _ in survivors:
        present[position] = 1

    def block(kind, body):
        return bytes([0x80 + 16 * kind + (len(body) >> 8), len(body) & 255]) if len(body) < 4096 else None, body

    forms = {}
    if k <= 64 and not any(codes):
        shift = gap_shift(n, k)
        bits = sparse_bits(n, gaps, signs)
        bits += [0] * (k * (shift + 2) + ((n - k) >> shift) - len(bits))
        forms["tiny"] = bytes([0x40 + k - 1]), pack(bits)
    code_forms = {"unary": (1, plane_bits(codes)), "nibble": (2, nibble_bits(codes))}
    if not any(codes):
        code_forms["zero"] = (0, [])
    for name, (kind, bits) in code_forms.items():
        forms["bitmap-" + name] = block(4 + kind, pack(present + signs + bits))
        forms["sparse-" + name] = block(kind, count_bytes(k) + pack(sparse_bits(n, gaps, signs) + bits))
    if any(codes):
        bits = sparse_bits(n, gaps, signs) + exception_bits(codes)
        forms["sparse-exceptions"] = block(7, count_bytes(k) + pack(bits))
    runs = list(signs)
    for gap, code in zip(gaps, codes):
        runs += gap_nibbles(gap) + field(code, 4)
    forms["runs"] = block(3, count_bytes(k) + pack(runs))
    return forms


def choose(n, forms, layout, codes):
    if layout == "runs" and len(forms["runs"][1]) <= (6 * n + 7) // 8:
        return "runs"
    if not any(codes):
        best_codes = sparse_codes = "zero"
    else:
        best_codes = "unary" if len(plane_bits(codes)) <= 4 * len(codes) else "nibble"
        listed = len(exception_bits(codes)) < min(len(plane_bits(codes)), 4 * len(codes))
        sparse_codes = "exceptions" if listed else best_codes
    order = [name for name in ("tiny", "bitmap-" + best_codes, "sparse-" + sparse_codes, "runs") if name in forms]
    return min(order, key=lambda name: sum(map(len, forms[name])) if forms[name][0] else 1 << 20)


def split(values, exponent, mantissa, rounding, seed):
    """The base, and for each block its n and survivors [(position, sign, code)]."""
    limit, base = limit_and_base(exponent, mantissa, rounding)
    blocks = []
    for first in range(0, len(values), BLOCK):
        survivors = []
        block = values[first:first + BLOCK]
        for position, bits in enumerate(block):
            kept = quantise(bits, limit, rounding, seed, first + position)
            if kept:
                survivors.append((position, kept[0], min(15, kept[1] - base)))
        blocks.append((len(block), survivors))
    return base, blocks


def assemble(base, parts):
    """parts: [None for an empty block, or (entry, body)]."""
    directory, bodies, empty = b"", b"", 0
    for part in parts + ["end"]:
        if part is None and empty < 64:
            empty += 1
            continue
        if empty:
            directory += bytes([empty - 1])
            empty = 0
        if part is None:
            empty = 1
        elif part != "end":
            directory += part[0]
            bodies += part[1]
    return bytes([0xF1, base & 255]) + directory + bodies


def encode(values, exponent=-7, mantissa=0, layout="smallest", rounding="nearest", seed=0):
    """values: bits of binary32. Returns the bytes and the forms that the blocks took."""
    base, blocks = split(values, exponent, mantissa, rounding, seed)
    parts, names = [], []
    for n, survivors in blocks:
        if not survivors:
            parts.append(None)
            names.append("empty")
            continue
        forms = block_forms(n, survivors)
        names.append(choose(n, forms, layout, [code for _, _, code in survivors]))
        parts.append(forms[names[-1]])
    return assemble(base, parts), names


# ---------------------------------------------------------------- decoder

def read_sparse(reader, n, k, base):
    shift = gap_shift(n, k)
    fields = [(reader.field(shift), reader.field(1)) for _ in range(k)]
    position, survivors = -1, []
    for low, sign in fields:
        position += 1 + low + (reader.unary() << shift)
        if position >= n:
            raise Bad("kBadCount")
        survivors.append([position, sign, base])
    return survivors


def read_count(reader, n):
    value = reader.field(8)
    if value >= 128:
        value = value - 128 + (reader.field(8) << 7)
    if value + 1 > n:
        raise Bad("kBadCount")
    return value + 1


def read_exceptions(reader, survivors):
    """The survivors that are listed; adds 1 to the code of each."""
    k = len(survivors)
    count = reader.field((k - 1).bit_length()) + 1
    if count > k:
        raise Bad("kBadCount")
    shift = gap_shift(k, count)
    lows = [reader.field(shift) for _ in range(count)]
    at, listed = -1, []
    for low in lows:
        at += 1 + low + (reader.unary() << shift)
        if at >= k:
            raise Bad("kBadCount")
        survivors[at][2] += 1
        listed.append(survivors[at])
    return listed


def read_block(reader, n, kind, base):
    if kind == 3:
        k = read_count(reader, n)
        signs = reader.take(k)
        position, survivors = -1, []
        for sign in signs:
            gap = 0
            for group in range(5):
                if group == 4:
                    raise Bad("kBadCount")
                gap |= reader.field(3) << (3 * group)
                if not reader.take(1)[0]:
                    break
            position += 1 + gap
            code = reader.field(4)
            if position >= n:
                raise Bad("kBadCount")
            survivors.append([position, sign, base + code])
    else:
        if kind in (4, 5, 6):
            positions = [i for i, bit in enumerate(reader.take(n)) if bit]
            survivors = [[position, sign, base] for position, sign in zip(positions, reader.take(len(positions)))]
        else:
            survivors = read_sparse(reader, n, read_count(reader, n), base)
        if kind == 7:
            members = read_exceptions(reader, survivors)
        elif kind & 3 == 1:
            members = survivors
        if kind == 7 or kind & 3 == 1:
            for _ in range(14 if kind == 7 else 15):
                members = [member for member, reaches in zip(members, reader.take(len(members))) if reaches]
                for member in members:
                    member[2] += 1
        if kind in (2, 6):
            for survivor in survivors:
                survivor[2] += reader.field(4)
    reader.end()
    return survivors


def decode(data, num_elems):
    """Returns bits of binary32; raises Bad."""
    if len(data) < 2:
        raise Bad("kTruncated")
    base = data[1] - 256 if data[1] >= 128 else data[1]
    if data[0] != 0xF1 or not -126 <= base <= 112:
        raise Bad("kBadVersion")
    sizes = [min(BLOCK, num_elems - first) for first in range(0, num_elems, BLOCK)]
    entries, at, block = [], 2, 0
    while block < len(sizes):
        if at >= len(data):
            raise Bad("kTruncated")
        first, n = data[at], sizes[block]
        at += 1
        if first < 0x40:
            if block + first + 1 > len(sizes):
                raise Bad("kBadCount")
            block += first + 1
            continue
        if first < 0x80:
            k = first - 0x40 + 1
            if k > n:
                raise Bad("kBadCount")
            shift = gap_shift(n, k)
            entries.append((block, "tiny", k, (k * (shift + 2) + ((n - k) >> shift) + 7) // 8))
        else:
            if at >= len(data):
                raise Bad("kTruncated")
            entries.append((block, first >> 4 & 7, 0, (first & 15) << 8 | data[at]))
            at += 1
        block += 1
    needed = sum(size for *_, size in entries)
    if len(data) - at != needed:
        raise Bad("kTruncated" if len(data) - at < needed else "kTrailing")
    values = [0] * num_elems
    for block, kind, k, size in entries:
        reader = Reader(data[at:at + size])
        at += size
        if kind == "tiny":
            survivors = read_sparse(reader, sizes[block], k, base)
            reader.end(whole_bytes_may_be_left=True)
        else:
            survivors = read_block(reader, sizes[block], kind, base)
        for position, sign, exponent in survivors:
            values[block * BLOCK + position] = sign << 31 | (exponent + 127) << 23
    return values


# ---------------------------------------------------------------- what the vectors are made of

class Lcg:
    """The generator that the C++ test repeats: x -> 1664525 x + 1013904223 mod 2^32, used from its top bits."""

    def __init__(self, seed):
        self.x = seed

    def next(self):
        self.x = (self.x * 1664525 + 1013904223) % 2 ** 32
        return self.x >> 8


def make_input(recipe):
    """recipe: n, background bits, then random: [seed, permille, lowest exponent, exponents], then set: [[i, bits]]."""
    values = [int(recipe["background"], 16)] * recipe["n"]
    if "random" in recipe:
        seed, permille, lowest, exponents = recipe["random"]
        lcg = Lcg(seed)
        for i in range(recipe["n"]):
            keep, exponent, mantissa, sign = lcg.next(), lcg.next(), lcg.next(), lcg.next()
            if keep % 1000 < permille:
                values[i] = (sign & 1) << 31 | (lowest + exponent % exponents + 127) << 23 | mantissa & (MANTISSA - 1)
    for i, bits in recipe.get("set", []):
        values[i] = int(bits, 16)
    return values


def digest(words):
    """FNV-1a of 64 bits, over words of 32 bits instead of bytes."""
    state = 0xCBF29CE484222325
    for word in words:
        state = (state ^ word) * 0x100000001B3 % 2 ** 64
    return "%016x" % state


def float_bits(value):
    return "%08x" % struct.unpack("<I", struct.pack("<f", value))[0]


def good_recipes():
    """(name, recipe, encode options, the form that block 0 must take)."""
    small = float_bits(0.001)
    one = float_bits(1.0)

    def recipe(n, background="00000000", **more):
        return {"n": n, "background": background, **more}

    spread = [[i, one] for i in (5, 900, 2222, 4000)]
    burst = [[i, float_bits(2.0 ** (i % 14))] for i in range(100, 140)] + [[4000, one]]
    return [
        ("nothing at all", recipe(0), {}, None),
        ("one element, dropped", recipe(1), {}, "empty"),
        ("one element, sent", recipe(1, set=[[0, one]]), {"exponent": 0}, "tiny"),
        ("one element, negative", recipe(1, set=[[0, float_bits(-1.0)]]), {"exponent": 0}, "tiny"),
        ("one element, code 3", recipe(1, set=[[0, float_bits(8.0)]]), {"exponent": 0}, "bitmap-unary"),
        ("one element, code 12", recipe(1, set=[[0, float_bits(4096.0)]]), {"exponent": 0}, "bitmap-nibble"),
        ("worked example", recipe(8197, set=[[10, float_bits(0.01)], [1034, float_bits(-0.0625)],
                                             [8195, float_bits(0.0079)]]), {}, "sparse-unary"),
        ("tiny", recipe(4096, small, set=spread), {"exponent": 0}, "tiny"),
        ("tiny, last element", recipe(4096, set=[[4095, one]]), {"exponent": 0}, "tiny"),
        ("sparse, zero", recipe(4096, random=[1, 30, 0, 1]), {"exponent": 0, "rounding": "truncate"}, "sparse-zero"),
        ("sparse, unary", recipe(4096, random=[2, 30, -7, 3]), {}, "sparse-unary"),
        ("sparse, unary, count in two bytes", recipe(4096, random=[3, 200, -7, 3]), {}, "sparse-unary"),
        ("sparse, nibble", recipe(4096, random=[4, 50, -7, 15]), {}, "sparse-nibble"),
        ("sparse, exceptions", recipe(4096, random=[18, 100, 0, 1], set=[[5, float_bits(2.0)], [900, float_bits(-2.5)],
                                                                        [901, float_bits(16.0)], [4095, float_bits(-2.0)]]),
         {"exponent": 0, "rounding": "truncate"}, "sparse-exceptions"),
        ("sparse, one exception, the last", recipe(4096, random=[19, 10, 0, 1], set=[[4095, float_bits(65536.0)]]),
         {"exponent": 0, "rounding": "truncate"}, "sparse-exceptions"),
        ("bitmap, zero", recipe(4096, random=[5, 600, 0, 1]), {"exponent": 0, "rounding": "truncate"}, "bitmap-zero"),
        ("bitmap, unary", recipe(4096, random=[6, 600, -7, 2]), {}, "bitmap-unary"),
        ("bitmap, nibble", recipe(4096, random=[7, 900, -7, 15]), {}, "bitmap-nibble"),
        ("every element at its largest", recipe(4096, random=[8, 1000, 5, 15]), {"exponent": 4}, "bitmap-nibble"),
        ("runs win on a burst", recipe(4096, set=burst), {"exponent": 0}, "runs"),
        ("runs, forced", recipe(4097, random=[9, 100, -9, 5]), {"layout": "runs"}, "runs"),
        ("runs, forced, too dense", recipe(4096, random=[10, 1000, -7, 15]), {"layout": "runs"}, "bitmap-nibble"),
        ("runs, longest gap", recipe(4096, set=[[4095, one]]), {"exponent": 0, "layout": "runs"}, "runs"),
        ("4095 elements", recipe(4095, random=[11, 20, -8, 4]), {}, "sparse-unary"),
        ("4097 elements", recipe(4097, set=[[4096, one]]), {"exponent": 0}, "empty"),
        ("130 empty blocks", recipe(130 * BLOCK, small), {"exponent": 0}, "empty"),
        ("64 empty blocks, then one survivor", recipe(64 * BLOCK + 7, set=[[64 * BLOCK, one]]), {"exponent": 0}, "empty"),
        ("each form in turn", recipe(5 * BLOCK + 63, random=[12, 25, -8, 3], set=[[i, "00000000"] for i in range(0)]),
         {}, "sparse-unary"),
        ("denormals and zeros of both signs at the lowest base",
         recipe(64, "80000000", set=[[1, "00000001"], [2, "007fffff"], [3, "807fffff"], [4, "00000000"],
                                     [5, "00800000"], [6, "80800001"]]), {"exponent": -126}, "tiny"),
        ("just below the limit, at it, at the tie",
         recipe(64, set=[[1, "3bffffff"], [2, "3c000000"], [3, "3c3fffff"], [4, "3c400000"], [5, "bc7fffff"]]), {}, None),
        ("the same, truncated",
         recipe(64, set=[[1, "3bffffff"], [2, "3c000000"], [3, "3c3fffff"], [4, "3c400000"], [5, "bc7fffff"]]),
         {"rounding": "truncate"}, "tiny"),
        ("saturation", recipe(4096, set=[[7, float_bits(2.0 ** 8)], [8, float_bits(-2.0 ** 9)], [9, "7f7fffff"],
                                         [10, float_bits(1.4999 * 2 ** 8)]]), {}, None),
        ("largest floats at the highest base", recipe(4096, set=[[7, "7f7fffff"], [9, "ff7fffff"], [11, "78000000"]]),
         {"exponent": 112}, None),
        ("limit between two powers", recipe(4096, random=[13, 40, -8, 3]), {"mantissa": 0x200000}, None),
        ("limit above the tie, nearest", recipe(4096, random=[14, 40, -8, 3]), {"mantissa": 0x600000}, None),
        ("limit above the tie, truncate", recipe(4096, random=[15, 40, -8, 3]),
         {"mantissa": 0x600000, "rounding": "truncate"}, None),
        ("stochastic", recipe(4096, random=[16, 200, -8, 4]), {"rounding": "stochastic", "seed": 12345}, None),
        ("stochastic, another seed, second block", recipe(5000, random=[16, 200, -8, 4]),
         {"rounding": "stochastic", "seed": 0xFFFFFFFF}, None),
        ("stochastic, limit above the tie", recipe(4096, random=[17, 200, -8, 4]),
         {"mantissa": 0x600000, "rounding": "stochastic", "seed": 7}, None),
    ]


def good_vectors():
    vectors = []
    for name, recipe, options, form in good_recipes():
        values = make_input(recipe)
        data, forms = encode(values, **options)
        assert form is None or forms[0] == form, (name, forms[0], form)
        decoded = decode(data, len(values))
        assert encode(decoded, data[1] - 256 if data[1] >= 128 else data[1])[0] == data or options.get("layout"), name
        vectors.append({"name": name, **recipe, "options": options, "bytes": data.hex(), "decoded": digest(decoded),
                        "survivors": sum(bits != 0 for bits in decoded)})
    return vectors


def odd_vectors():
    """Accepted although no encoder chooses them."""
    def whole(n, survivors, form, base=0):
        entry, body = block_forms(n, survivors)[form]
        return bytes([0xF1, base & 255]) + entry + body

    few = [(5, 0, 0), (900, 1, 0), (2222, 0, 0)]
    nibbles = pack([0] + field(2 | 8, 4) + field(8, 4) + field(0, 4) + field(1, 4))
    bitmap_of_none = bytes([0xF1, 0, 0x80 + 16 * 4, 8]) + bytes(8)
    return [
        ("split run of empties", bytes([0xF1, 0, 0, 0, 0]), 3 * BLOCK),
        ("a larger layout: bitmap", whole(4096, few, "bitmap-nibble"), 4096),
        ("a larger layout: runs", whole(4096, few, "runs"), 4096),
        ("a larger layout: planes of zeros", whole(4096, few, "sparse-unary"), 4096),
        ("bitmap without survivors", bitmap_of_none, 64),
        ("count in two bytes that fits one", bytes([0xF1, 0, 0x80, 3, 0x80, 0, 0b10]), 1),
        ("gap in more nibbles than needed", bytes([0xF1, 0, 0xB0, 4, 0]) + nibbles, 64),
    ]


def bad_vectors():
    """(name, bytes, elements, DecodeStatus), each kind of damage once or more."""
    one = float_bits(1.0)
    sparse, names = encode(make_input({"n": 4096, "background": "00000000", "random": [2, 30, -7, 3]}))
    assert names == ["sparse-unary"]
    tiny, _ = encode(make_input({"n": 4096, "background": "00000000", "set": [[5, one], [4000, one]]}), exponent=0)
    head = bytes([0xF1, 0])
    three = sparse_bits(64, [3, 10, 20], [0, 1, 0])
    hundred = sparse_bits(100, [0] * 100, [0] * 100)

    def block(kind, body, size=None):
        size = len(body) if size is None else size
        return head + bytes([0x80 + 16 * kind + (size >> 8), size & 255]) + bytes(body)

    flipped = bytearray(sparse)
    flipped[-1] |= 0x80
    return [
        ("no bytes", b"", 0, "kTruncated"),
        ("half a header", b"\xf1", 0, "kTruncated"),
        ("no directory", head, 1, "kTruncated"),
        ("directory ends early", head + b"\x00", 4097, "kTruncated"),
        ("half an entry", head + b"\x81", 4096, "kTruncated"),
        ("body one byte short", sparse[:-1], 4096, "kTruncated"),
        ("tiny body one byte short", tiny[:-1], 4096, "kTruncated"),
        ("one byte too many", sparse + b"\x00", 4096, "kTrailing"),
        ("a byte after nothing", head + b"\x00", 0, "kTrailing"),
        ("another version", b"\xf2\x00\x00", 1, "kBadVersion"),
        ("base 113", b"\xf1\x71\x00", 1, "kBadVersion"),
        ("base -127", b"\xf1\x81\x00", 1, "kBadVersion"),
        ("base -128", b"\xf1\x80\x00", 1, "kBadVersion"),
        ("exceptions, nothing", head + b"\xf0\x00", 1, "kBadCount"),
        ("exceptions, more than survivors", block(7, count_bytes(3) + pack(three + field(3, 2))), 64, "kBadCount"),
        ("exceptions, one behind the last survivor",
         block(7, count_bytes(3) + pack(three + field(0, 2) + field(1, 1) + unary(1) + [0])), 64, "kBadCount"),
        ("exceptions, low bits cut off", block(7, count_bytes(3) + pack(three + field(0, 2))[:-1]), 64, "kBadCount"),
        ("exceptions, planes cut off", block(7, count_bytes(100) + pack(hundred + field(99, 7) + unary(0) * 100)), 100,
         "kBadCount"),
        ("more empty blocks than blocks", head + b"\x01", 4096, "kBadCount"),
        ("64 empty blocks of 63", head + b"\x3f", 63 * BLOCK, "kBadCount"),
        ("tiny with more survivors than elements", head + b"\x43\x00\x00", 3, "kBadCount"),
        ("tiny position beyond the block", head + b"\x40" + pack(field(3, 1) + [0] + unary(2)), 3, "kBadCount"),
        ("tiny without its unary end", head + b"\x40" + bytes(2), 4096, "kBadCount"),
        ("tiny with a padding bit", tiny[:-1] + bytes([tiny[-1] | 0x80]), 4096, "kBadCount"),
        ("empty body", block(0, b""), 1, "kBadCount"),
        ("count ends early", block(0, b"\x80"), 4096, "kBadCount"),
        ("count above the block", block(0, count_bytes(4096) + bytes(600)), 4095, "kBadCount"),
        ("sparse fields end early", block(0, b"\x07\x00"), 4096, "kBadCount"),
        ("sparse unary ends early", block(0, b"\x01" + pack([0] * 22 + unary(0))), 4096, "kBadCount"),
        ("sparse position beyond the block", block(0, b"\x00" + pack(field(2047, 11) + [0] + unary(1))), 4095, "kBadCount"),
        ("planes end early", block(1, b"\x00" + pack(field(0, 11) + [0] + unary(0) + [1] * 3)), 4096, "kBadCount"),
        ("nibbles end early", block(2, b"\x00" + pack(field(0, 11) + [0] + unary(0))), 4096, "kBadCount"),
        ("a whole byte of the body unused", block(0, b"\x00" + pack(field(0, 11) + [0] + unary(0)) + b"\0"), 4096,
         "kBadCount"),
        ("a padding bit", bytes(flipped), 4096, "kBadCount"),
        ("bitmap shorter than the block", block(4, bytes(511)), 4096, "kBadCount"),
        ("bitmap without its signs", block(4, b"\xff" * 8), 64, "kBadCount"),
        ("bitmap without its nibbles", block(6, b"\xff" * 16), 64, "kBadCount"),
        ("bitmap bit beyond a short block", block(4, b"\x20"), 5, "kBadCount"),
        ("runs signs end early", block(3, b"\x40"), 4096, "kBadCount"),
        ("runs gap ends early", block(3, b"\x00" + pack([0] + field(8, 4))), 4096, "kBadCount"),
        ("runs gap of five nibbles", block(3, b"\x00" + pack([0] + field(0x08888, 20) + field(0, 4))), 4096, "kBadCount"),
        ("runs code missing", block(3, b"\x00" + pack([0] + field(0xF, 4) + field(7, 3))), 4096, "kBadCount"),
        ("runs position beyond the block", block(3, b"\x00" + pack([0] + field(5, 4) + field(0, 4))), 5, "kBadCount"),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--corpus", metavar="DIR")
    args = parser.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    good = good_vectors()
    odd = []
    for name, data, n in odd_vectors():
        decoded = decode(data, n)
        odd.append({"name": name, "n": n, "bytes": data.hex(),
                    "decoded": digest(decoded)})
    bad = []
    for name, data, n, status in bad_vectors():
        try:
            decode(data, n)
            raise AssertionError(name + " was accepted")
        except Bad as error:
            assert str(error) == status, (name, str(error), status)
        bad.append({"name": name, "n": n, "bytes": data.hex(), "status": status})
    with open(os.path.join(here, "fec_golden.json"), "w") as out:
        out.write("{\n")
        for last, (key, vectors) in zip((False, False, True), (("good", good), ("odd", odd), ("bad", bad))):
            out.write('"%s": [\n%s\n]%s\n' % (key, ",\n".join(map(json.dumps, vectors)), "" if last else ","))
        out.write("}\n")
    if args.corpus:
        os.makedirs(args.corpus, exist_ok=True)
        for vector in good + odd + bad:
            name = "".join(c if c.isalnum() else "-" for c in vector["name"])
            with open(os.path.join(args.corpus, name), "wb") as out:
                out.write(bytes.fromhex(vector["bytes"]))
    print("%d good, %d odd, %d bad vectors" % (len(good), len(odd), len(bad)))


if __name__ == "__main__":
    main()
