"""Copies between an engine's pages and slots, on the host and, where there is one, on a CUDA device.

    PYTHONPATH=$PWD/build/vllm-site PYTHON -B -m unittest tests/vllm/test_page_copies.py
"""
import random
import subprocess
import sys
import unittest

import numpy as np
import torch
from ashlar import _native
from ashlar._page_copies import PageCopier, Piece

PAGE, BLOCKS, SLOTS = 256, 40, 12


class Pages:
    """Tensors of random pages, and slots for chunks of them."""

    def __init__(self, device, tensors=3, chunk=1, seed=1, gap=0, writers=1, writer=0, page=PAGE):
        generator = torch.Generator().manual_seed(seed)
        self.tensors = [torch.randint(-128, 128, (BLOCKS, page), dtype=torch.int8, generator=generator)
                        .to(device) for _ in range(tensors)]
        # Behind each page `gap` bytes of the slot are another's.
        self.pieces = [Piece(i, 0, i * chunk * (page + gap), page, page + gap, writers, writer)
                       for i in range(tensors)]
        self.slots = np.full((SLOTS, tensors * chunk * (page + gap)), 7, np.uint8)
        self.copier = PageCopier(self.tensors, [self.pieces], self.slots, chunk)

    def page(self, tensor, block):
        return self.tensors[tensor][block].cpu().numpy().view(np.uint8)


class PageCopiesTest(unittest.TestCase):
    device = "cpu"

    def places(self, pages, blocks, slots, first=0):
        return pages.copier.places(np.array(blocks), [len(blocks)], [first], slots)

    def test_pages_lie_in_slots_and_come_back(self):
        for chunk, gap in ((1, 0), (1, 64), (3, 0), (3, 64)):
            with self.subTest(chunk=chunk, gap=gap):
                pages = Pages(self.device, chunk=chunk, gap=gap)
                blocks, slots = random.Random(2).sample(range(BLOCKS), 4 * chunk), [9, 0, 11, 4]
                places = self.places(pages, blocks, slots)
                self.assertTrue(pages.copier.is_whole(places))
                self.assertEqual(pages.copier.store(places), 3 * PAGE * len(blocks))
                for i, block in enumerate(blocks):
                    row = pages.slots[slots[i // chunk]]
                    for piece in pages.pieces:
                        at = piece.in_slot + i % chunk * piece.block_stride
                        self.assertTrue((row[at:at + PAGE] == pages.page(piece.tensor, block)).all())
                        self.assertTrue((row[at + PAGE:at + PAGE + gap] == 7).all(), "bytes of another")
                left = [i for i in range(SLOTS) if i not in slots]
                self.assertTrue((pages.slots[left] == 7).all(), "a slot that was not named")
                kept = [tensor.clone() for tensor in pages.tensors]
                for tensor in pages.tensors:
                    tensor.zero_()
                self.assertEqual(pages.copier.load(places), 3 * PAGE * len(blocks))
                for tensor, before in zip(pages.tensors, kept):
                    self.assertTrue((tensor[blocks] == before[blocks]).all())
                    others = [i for i in range(BLOCKS) if i not in blocks]
                    self.assertFalse(tensor[others].any(), "a page that was not named")

    def test_a_load_may_begin_within_a_chunk(self):
        pages = Pages(self.device, chunk=4)
        whole = self.places(pages, list(range(8)), [3, 5])
        pages.copier.store(whole)
        places = self.places(pages, [20, 21, 22, 23, 24], [3, 5], first=3)
        self.assertFalse(pages.copier.is_whole(places))
        pages.copier.load(places)
        for block, source in zip(range(20, 25), range(3, 8)):
            self.assertTrue((pages.page(1, block) == pages.page(1, source)).all())

    def test_ranks_with_the_same_bytes_write_in_turns(self):
        ranks = [Pages(self.device, writers=2, writer=i) for i in range(2)]
        blocks, slots = [3, 8, 1, 30], [0, 1, 2, 3]
        for rank in ranks:
            rank.copier.store(self.places(rank, blocks, slots))
            written = [slot for slot in slots if (rank.slots[slot] != 7).any()]
            self.assertEqual(len(written), 2)
        both = np.where(ranks[0].slots[:4] != 7, ranks[0].slots[:4], ranks[1].slots[:4])
        alone = Pages(self.device)
        alone.copier.store(self.places(alone, blocks, slots))
        self.assertTrue((both == alone.slots[:4]).all())

    def test_numbers_beyond_the_end_are_refused(self):
        pages = Pages(self.device)
        for blocks, slots in (([BLOCKS], [0]), ([-1], [0]), ([0], [SLOTS]), ([0], [-1]), ([0, 1], [0]),
                              ([0], [0, 1])):
            with self.subTest(blocks=blocks, slots=slots), self.assertRaises(ValueError):
                self.places(pages, blocks, slots)

    def test_a_layout_that_does_not_fit_is_refused(self):
        pages = Pages(self.device)
        with self.assertRaisesRegex(ValueError, "does not fit"):
            PageCopier(pages.tensors, [[Piece(0, 0, 2 * PAGE + 1, PAGE, PAGE)] * 3], pages.slots)
        with self.assertRaisesRegex(ValueError, "rows of bytes"):
            PageCopier([pages.tensors[0].view(torch.int16)], [[]], pages.slots)


class OnHost(PageCopiesTest):
    def test_one_pass_copies_and_checks(self):
        """Whatever the number of threads; of slots without an address there is no checksum."""
        for threads in (1, 2, 5):
            pages = Pages("cpu", page=384 << 10)  # a megabyte for each of four threads
            blocks, slots = [3, 8, 1, 30], [9, 0, 11, 4]
            places = self.places(pages, blocks, slots)
            pages.copier.store(places)
            size = pages.slots.shape[1]
            parts = np.array([pages.slots[slot].ctypes.data for slot in slots], np.uint64)
            right = _native._checksums(parts, size)
            kept = [tensor.clone() for tensor in pages.tensors]
            for tensor in pages.tensors:
                tensor.zero_()
            asked = parts.copy()
            asked[2] = 0
            found = pages.copier.load_checked(places, asked, size, threads)
            self.assertEqual(found.tolist(), [right[0], right[1], 0, right[3]])
            for tensor, before in zip(pages.tensors, kept):
                self.assertTrue((tensor[blocks] == before[blocks]).all())
            pages.slots[0, 5] ^= 1
            found = pages.copier.load_checked(places, parts, size, threads)
            self.assertEqual([found[i] == right[i] for i in range(4)], [True, False, True, True])

    def test_megabytes_by_several_threads(self):
        """Every piece is copied once, also where threads outnumber cores."""
        source = np.random.default_rng(1).integers(0, 256, 16 << 20, np.uint8)
        for threads in (1, 2, 7):
            to, step = np.zeros_like(source), 64 << 10
            at = np.arange(0, source.size, step, dtype=np.uint64)
            _native._copy_pieces(to.ctypes.data + at, source.ctypes.data + at,
                                 np.full(at.size, step, np.uint64), threads)
            self.assertTrue((to == source).all(), threads)

    def test_copies_where_no_thread_can_be_had(self):
        """Then those that there are do it: here without memory for the stack of another."""
        program = """if True:
            import pathlib, resource
            import numpy as np
            from ashlar import _native
            source = np.random.default_rng(1).integers(0, 256, 16 << 20, np.uint8)
            to, at = np.zeros_like(source), np.arange(0, 16 << 20, 64 << 10, dtype=np.uint64)
            places = to.ctypes.data + at, source.ctypes.data + at, np.full(at.size, 64 << 10, np.uint64)
            pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
            now = pages * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now, resource.getrlimit(resource.RLIMIT_AS)[1]))
            _native._copy_pieces(*places, 7)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert (to == source).all()
        """
        subprocess.run([sys.executable, "-B", "-c", program], check=True)

    def test_chunks_have_no_single_pass(self):
        pages = Pages("cpu", chunk=2)
        places = self.places(pages, [0, 1], [0])
        self.assertIsNone(pages.copier.load_checked(places, np.zeros(1, np.uint64), 4, 1))


@unittest.skipUnless(torch.cuda.is_available(), "no CUDA device here: its copies are not tested")
class OnDevice(PageCopiesTest):
    device = "cuda"


def load_tests(loader, _tests, _pattern):
    return unittest.TestSuite(loader.loadTestsFromTestCase(each) for each in (OnHost, OnDevice))


if __name__ == "__main__":
    unittest.main()
