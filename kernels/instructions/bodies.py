"""The sides of the kernels' branches that a launch enters once or not at all, by their source."""

from __future__ import annotations

from kernels.instructions.sass import Body

MASKED = 'b_score = tl.where(m_visible, b_score, float("-inf"))'
SCORES_FOLLOWED = "b_shrink = tl.exp2(b_peak - b_new_peak)"
# Of a piece that is not the whole sequence, and of a block that is.
ONE_PIECE = Body("b_divisor = tl.where(length > 0, b_mass, 1.0)")
SHORT_STEP = Body('b_score = tl.where(m_t[:, None], b_score, float("-inf"))')
LAST_STEP = Body(MASKED, "if num_whole < num_keys:")
MASKED_IN_BLOCK = 'b_score = tl.where(m_n[None, :], b_score, float("-inf"))'
LAST_IN_BLOCK = Body(MASKED_IN_BLOCK, "if num_whole < num_keys:")
FIRST_ROUND = Body("b_peak = tl.max(b_score, 1) * scale", "if i_n == 0:")
SECOND_TIME = Body(SCORES_FOLLOWED, "if overflows:")
SHORT_BLOCK = Body(MASKED, "elif num_keys < BN:")
