"""One thread of arithmetic for each process, as under `make test`, also where pytest runs by itself: beside
other tests, further threads spin more than they compute. Here because torch reads it when it is imported.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
