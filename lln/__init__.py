"""LLN+Diag inside other libraries: `import lln`, then load a model as usual.

    import lln
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer("folder")  # written by `lln export default --out folder`

The import registers our models with transformers, and "lln_diag" as an attention that stock
transformers models may use (`attn_implementation="lln_diag"`, then `use_calibration`).
"""

from lln.attention import use_calibration
from lln.model import LLNConfig, LLNModel
from lln.registration import register

__all__ = ["LLNConfig", "LLNModel", "use_calibration"]

register()
