"""What papers claim of attention, each numbered claim checked by computation on this machine.

Add one by writing a function that measures it and naming both in a file's CLAIMS.
"""

from engine.claims.base import Claim, ClaimRow, HeadSample, Material, Verdict
from engine.claims.heads import head_samples
from engine.claims.markdown import claims_page
from engine.claims.run import CLAIMS, claim_rows, find_claims

__all__ = [
    "CLAIMS",
    "Claim",
    "ClaimRow",
    "HeadSample",
    "Material",
    "Verdict",
    "claim_rows",
    "claims_page",
    "find_claims",
    "head_samples",
]
