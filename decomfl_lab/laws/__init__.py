"""The laws of seed/revert logic, as properties that any implementation can be put to. Needs hypothesis.

    from decomfl_lab import laws

    class Mine(laws.Implementation):                        # override what is yours
        def client(self, case, i, objective=None):
            return MyClient(i, case, laws.Wavy(case.d, i) if objective is None else objective)

    print(laws.verify(Mine()))                              # or test_laws = laws.pytest_suite(Mine()) in pytest
    print(laws.verify(laws.of_method(MyMethod(c=1.0))))     # a method, ``decomfl_lab.methods.method.Method``

``decomfl verify --target-template`` prints a file with everything that is used of a client, a replica and a server, to
be filled in; ``verify_update`` and ``verify_identity`` put anybody's training step, and who has whose noise, to laws of
their own, and ``laws.exact`` has three ways to measure exactly. ``LAWS`` and ``FAULTS`` are the laws and the wrong
implementations that they catch.

The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
