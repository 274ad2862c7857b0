"""Runs rdma-core's own tests of its Python bindings, and prints one line for each test.

Arguments: the folder with the packed tests, a folder to unpack them to, and then options of the tests (--dev NAME).
A line is "pyverbs: passed NAME", "pyverbs: skipped NAME: REASON" or "pyverbs: failed NAME: REASON".
"""
import gzip
import importlib.util
import os
import sys
import unittest

# Tests that need a device of one vendor.
VENDORS = ('test_mlx5', 'test_efa', 'test_cuda')


def unpack(source, to):
    os.makedirs(to)
    for name in os.listdir(source):
        path = os.path.join(source, name)
        if name.startswith(VENDORS) or not os.path.isfile(path):
            continue
        with open(path, 'rb') as file:
            data = file.read()
        if name.endswith('.gz'):
            name, data = name[:-3], gzip.decompress(data)
        with open(os.path.join(to, name), 'wb') as file:
            file.write(data)


def say(text):
    # A test may have printed a part of a line.
    sys.stdout.flush()
    os.write(1, f'\npyverbs: {text}\n'.encode())


class Result(unittest.TestResult):
    """Keeps the worst outcome of each test, whose parts may end in different ways."""

    def __init__(self):
        super().__init__()
        self.worst = {}

    def note(self, test, rank, outcome, reason=''):
        # A part of a test belongs to the test. The setup of a class is no test, and has no end.
        test = getattr(test, 'test_case', test)
        reason = ' '.join(str(reason).split())
        self.worst[test.id()] = max(self.worst.get(test.id(), (0, '', '')), (rank, outcome, reason))
        if not isinstance(test, unittest.TestCase):
            self.stopTest(test)

    def addSuccess(self, test):
        self.note(test, 1, 'passed')

    def addSkip(self, test, reason):
        self.note(test, 2, 'skipped', reason)

    def addFailure(self, test, err):
        self.note(test, 3, 'failed', err[1])

    def addError(self, test, err):
        self.note(test, 3, 'failed', err[1])

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.note(test, 3, 'failed', err[1])

    def stopTest(self, test):
        _, outcome, reason = self.worst.get(test.id(), (3, 'failed', 'no outcome'))
        say(f'{outcome} {test.id()}' + (f': {reason}' if reason else ''))


source, to = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:3]
unpack(source, to)
sys.path.insert(0, to)
from args_parser import parser  # noqa: E402

# The package is called "tests", wherever it lies.
place = importlib.util.spec_from_file_location('tests', os.path.join(to, '__init__.py'),
                                               submodule_search_locations=[to])
tests = importlib.util.module_from_spec(place)
sys.modules['tests'] = tests
place.loader.exec_module(tests)
parser.parse_args()
say(f'kernel {os.uname().release}')
unittest.defaultTestLoader.loadTestsFromModule(tests).run(Result())
say('end')
