"""Array types by element type; shapes are given where an array is named."""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
