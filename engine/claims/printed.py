"""What the papers print for each claim, and how it is read.

The words are the papers' own, formulas are transcribed to plain text, "..." marks what is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Printed:
    place: str
    summary: str
    reading: str | None = None  # only where the words leave a choice


_DEFAULT_READING = "word for word, on the cases that the check tries"


def find_printed(claim_id: str) -> Printed | None:
    """None for statements that no paper prints."""
    return PRINTED.get(claim_id)


def reading_of(claim_id: str) -> str:
    found = PRINTED.get(claim_id)
    return (found.reading if found else None) or _DEFAULT_READING


PRINTED: Mapping[str, Printed] = MappingProxyType(
    {
        "natural-attention.definition-1": Printed(
            "definition 1",
            "For input sequence X, the natural attention mechanism is defined as: A(X) = "
            "softmax(X W_Q W_K^T X^T / sqrt(d)) X W_V",
        ),
        "natural-attention.lemma-2": Printed(
            "lemma 2",
            "The attention energy matrix E for a given head can be expressed as: E = Q K^T / "
            "sqrt(d) = X W_Q W_K^T X^T / sqrt(d)",
        ),
        "natural-attention.theorem-3": Printed(
            "theorem 3",
            "For an attention mechanism with H heads and head dimension d, assuming "
            "normalized weight matrices, the total attention energy is bounded: sum_h tr(E_h "
            "E_h^T) <= d H ||X||_F^4",
            "normalized is ||W||_F^2 = d, as in the proof",
        ),
        "natural-attention.theorem-4": Printed(
            "theorem 4",
            "The attention mechanism A satisfies: A(alpha X) = A(X) for all alpha in R^+",
        ),
        "natural-attention.conjecture-5": Printed(
            "conjecture 5",
            "For natural attention with Fisher approximation F_NA = A A^T, assuming L is "
            "mu-strongly convex in the natural metric: ||theta_t - theta*||_{F_NA}^2 <= (1 - "
            "eta mu)^t ||theta_0 - theta*||_{F_NA}^2",
            "any step eta, on quadratic losses",
        ),
        "natural-attention.theorem-7": Printed(
            "theorem 7",
            "For natural attention A and input X: I(X; A(X)) <= log(L) where L is the "
            "sequence length",
            "A(X) is the stochastic matrix, as in the proof",
        ),
        "natural-attention.conjecture-8": Printed(
            "conjecture 8",
            "Under natural attention optimization: I(X; A(X)) <= 1/(2 lambda) E[||A||_F^2]",
            "optimisation is the minimum of a loss + lambda ||A||_F^2, which theorem 14's proof "
            "names; the loss is quadratic, so that the minimum is known",
        ),
        "natural-attention.lemma-10": Printed(
            "lemma 10",
            "For natural attention matrix A, the Fisher approximation F_NA = A A^T is "
            "positive definite with minimum eigenvalue lambda_min >= 1/L, where L is "
            "sequence length",
        ),
        "natural-attention.lemma-11": Printed(
            "lemma 11",
            "The loss gradient in natural metric satisfies: ||grad L(theta_1) - grad "
            "L(theta_2)||_{F_NA^-1} <= L ||theta_1 - theta_2||_{F_NA}",
        ),
        "natural-attention.theorem-12": Printed(
            "theorem 12",
            "For natural attention with Fisher approximation F_NA = A A^T, the parameter "
            "updates satisfy: ||theta_t - theta*||_{F_NA}^2 <= (1 - eta/L)^t ||theta_0 - "
            "theta*||_{F_NA}^2 where eta is the learning rate and L is sequence length",
            "L is the sequence length, as the theorem says",
        ),
        "natural-attention.lemma-13": Printed(
            "lemma 13",
            "For attention matrix A: H(A) <= 1/2 ||A||_F^2 + log L",
            "H(A) = -sum_ij A_ij log A_ij, as in the proof; of the mean row entropy, the bound is "
            "true but idle, for that is at most log L",
        ),
        "natural-attention.theorem-14": Printed(
            "theorem 14",
            "Under natural attention optimization with regularization parameter lambda: "
            "I(X; A(X)) <= 1/(2 lambda) E[||A||_F^2] + log L",
            "as conjecture 8",
        ),
        "rank-collapse.theorem-2.1": Printed(
            "theorem 2.1", "SAN(X) = sum over path in [H]^L of P_path X W_path + e b'"
        ),
        "rank-collapse.definition-2.1-norm": Printed(
            "definition 2.1",
            "Composite norm of a matrix is defined as ||X||_{1,inf} = sqrt(||X||_1 ||X||_inf)",
        ),
        "rank-collapse.definition-2.1-residual": Printed(
            "definition 2.1",
            "The residual of the matrix is defined as res(X) = X - 1 x' where x = argmin_x "
            "||X - 1 x'||_2",
        ),
        "rank-collapse.theorem-2.2": Printed(
            "theorem 2.2",
            "bound of a single head single layer: When ||W_QK^l||_1 ||W_V^l||_{1,inf} <= "
            "beta, we have ||res SAN(X)||_{1,inf} <= (4 beta / sqrt(d_qk))^((3^L - 1)/2) "
            "||res X||_{1,inf}^(3^L)",
            "L = 1, random weights and inputs of five scales",
        ),
        "rank-collapse.theorem-2.2-limit": Printed(
            "section 2.2",
            "We want to prove that ||res(SAN(X))||_{1,inf} -> 0 as L -> infinity where L is "
            "the number of layers in transformer",
        ),
        "rank-collapse.equation-9": Printed(
            "equation 9",
            "PX ... <= 1x^T + (I + 2D) 1 softmax(r)^T R ... where the inequality above is "
            "entry-wise",
        ),
        "rank-collapse.theorem-2.3": Printed(
            "theorem 2.3",
            "P{||P~ w' - P w'|| <= eps ||P w'||} > 1 - o(1) where rank(P~) = Theta(log n)",
        ),
        "rank-collapse.section-2.3-remark": Printed(
            "section 2.3, last sentence",
            "It means that the low rank property of the softmax function is the reason of "
            "the losing of rank",
            "layers lose rank if and only if their pattern has low rank",
        ),
        "natural-gradient.theorem-1": Printed(
            "theorem 1",
            "For an attention layer with patterns A: FIM_block = E[grad log P(A) grad log "
            "P(A)^T] ~ E[A A^T]",
        ),
        "natural-gradient.theorem-2": Printed(
            "theorem 2",
            "For tokens i, j in same hierarchical structure: FIM_ij ~ A_ij ~ high value",
        ),
        "natural-gradient.theorem-3": Printed(
            "theorem 3",
            "The attention-informed update approximates natural gradient descent: theta_new "
            "= theta - eta F^-1 grad L ~ theta - eta (I + A) grad L",
            "F^-1 is the pseudo-inverse, and any multiple of I + A counts",
        ),
        "natural-gradient.theorem-4": Printed(
            "theorem 4",
            "Using attention-informed natural gradient gives convergence rate: ||theta_t - "
            "theta*||_F^2 <= (1 - mu_eff/L_eff)^t ||theta_0 - theta*||_F^2 where F-norm uses "
            "FIM metric and: mu_eff/L_eff > mu/L (improved condition number)",
        ),
        "natural-gradient.section-3.2": Printed(
            "section 3.2",
            "The hierarchical structure follows RG-like flow: Layer l attention: "
            "A_l -> A_l+1 (coarse-graining)",
            "a pattern is coarser if its mean row entropy is higher",
        ),
        "natural-gradient.fa-adam": Printed(
            "sections 4.1 and 4.2", "grad_nat = solve_system(F_approx, param.grad)"
        ),
        "natural-gradient.section-8": Printed(
            "section 8, item 4",
            "Our unified framework: ... Provides practical optimization improvements",
            "the optimiser is 4.1's or 4.2's, word for word, at the best of seven rates",
        ),
        "attention-fisher.definition-1": Printed(
            "definition 1",
            "An attention mechanism is a function f ... f(x, theta) = sigma(z(x, theta))",
        ),
        "attention-fisher.lemma-1": Printed(
            "lemma 1", "d sigma_i / d z_j = sigma_i (delta_ij - sigma_j)"
        ),
        "attention-fisher.theorem-1": Printed(
            "theorem 1", "FIM = E[(dz/dtheta)^T (diag(a) - a a^T) (dz/dtheta)]"
        ),
        "attention-fisher.lemma-2": Printed(
            "lemma 2",
            "For attention values sampled at temperature tau > 0: E[A A^T] = diag(a) - a a^T + "
            "O(tau)",
            "a is taken at the temperature tau, which favours the lemma; C <= 1,000",
        ),
        "attention-fisher.proposition-1": Printed(
            "proposition 1",
            "Under the assumptions above: ||E[(e_i - a)(e_i - a)^T] - E[A A^T]||_2 <= C H(a) "
            "where ... C is a problem-dependent constant",
            "E[A A^T] = diag(a), exact sampling; C <= 1,000",
        ),
        "attention-fisher.remark-1": Printed(
            "remark 1",
            "The geometric information captured by attention improves as: 1. The attention "
            "distribution becomes more concentrated ... 2. The entropy H(a) decreases 3. The "
            "temperature parameter tau approaches zero",
        ),
        "attention-fisher.theorem-2": Printed(
            "theorem 2",
            "Under standard smoothness assumptions, using the FIM approximation in natural "
            "gradient descent achieves a convergence rate of O(1/sqrt(T)) where T is the "
            "number of iterations, provided that: 1. The entropy H(a) remains bounded 2. The "
            "Jacobian dz/dtheta has full row rank 3. The learning rate is appropriately "
            "scheduled",
            "a schedule c / sqrt(t), c from 1 down to 0.001, must work from every start that the "
            "conditions allow",
        ),
        "attention-fisher.definition-2.3": Printed(
            "definition 2, item 3",
            "The FIM satisfies lambda_min(FIM) >= mu > 0 for some mu",
            "of the parameters W_Q and W_K",
        ),
        "attention-fisher.theorem-3": Printed(
            "theorem 3",
            "Under the smoothness conditions above, with temperature schedule tau_t = "
            "tau_0/sqrt(t), the natural gradient descent algorithm achieves: E[||grad "
            "f(theta_T)||^2] <= 1/sqrt(T) (C_1 + C_2 sum_{t=1}^T tau_t) where C_1, C_2 are "
            "constants depending on L, B, mu and H_max",
            "the mean over the steps; constants fitted at 100 steps, tested at 1,600",
        ),
        "attention-fisher.theorem-4": Printed(
            "theorem 4",
            "The effective attention action at scale Lambda can be written as: "
            "S_eff[phi_Lambda] = integral D phi_{>Lambda} exp(-S[phi_Lambda, phi_{>Lambda}])",
        ),
        "attention-fisher.proposition-2": Printed(
            "proposition 2",
            "The effective coupling between scales Lambda_1 and Lambda_2 decays as: "
            "|<A_{Lambda_1} A_{Lambda_2}>| <= C exp(-|Lambda_1 - Lambda_2|/xi) for some "
            "correlation length xi",
            "Gaussian kernels; C and xi <= 1,000",
        ),
        "attention-fisher.section-c4": Printed(
            "section C.4",
            "FIM_theta = sum_Lambda E[(dphi_Lambda/dtheta)^T M_Lambda (dphi_Lambda/dtheta)]",
        ),
        "attention-fisher.section-c5": Printed(
            "section C.5, item 3",
            "Temperature parameter tau controls the effective cutoff scale",
            "a head's mean distance rises with its temperature; items 1 and 4 are of training: "
            "docs/experiments.md has them",
        ),
        "lln.equations-1-4-7-12-20": Printed(
            "equations 1 to 4, 7 and 12 to 20", "definitions of attention, entropy and variance"
        ),
        "lln.equation-5": Printed(
            "equation 5",
            "We define a temperature of the SA as: tau_sm = 1/sigma_sm = 1/sqrt(sigma_q^2 "
            "sigma_k^2 + C_cross)",
            "sigma_sm^2 is the variance of the scores within rows",
        ),
        "lln.proposition-3.1": Printed(
            "proposition 3.1",
            "for moderate values of sigma_q^2, sigma_k^2 and large enough N the distribution "
            "of P^(SM) can be approximated by a log-normal distribution with parameters "
            "mu_sm = -ln N - 1/2 sigma_sm^2 and sigma_sm^2 = sigma_q^2 sigma_k^2 + C_cross",
        ),
        "lln.lemma-a1": Printed("lemma A.1", "sum_i p_i (x_i - mu) = 0"),
        "lln.lemma-a2": Printed("lemma A.2", "sum_i p_i^2 (x_i - mu) >= 0"),
        "lln.lemma-a4": Printed("lemma A.4", "sum_i p_i x_i^2 - mu^2 = sum_i p_i (x_i - mu)^2"),
        "lln.theorem-3.2": Printed(
            "theorem 3.2",
            "The entropy in eq. 7 is monotonically increasing with temperature tau_sm",
            "scores fixed",
        ),
        "lln.theorem-3.3": Printed(
            "after theorem 3.3",
            "the magnitude of variability in the direction of the major principal component "
            "v_max is equal to lambda_2",
        ),
        "lln.theorem-3.4": Printed(
            "theorem 3.4",
            "The variance of the attention matrix P^(SM) is monotonically decreasing with "
            "temperature tau_sm",
            "scores fixed, variance of a row",
        ),
        "lln.section-3.2.2": Printed(
            "section 3.2.2",
            "we can conclude that the spectral gap increases with the temperature, similarly to "
            "the entropy",
            "patterns without bias towards a column",
        ),
        "lln.proposition-4.1": Printed(
            "proposition 4.1",
            "for moderate values of sigma_q^2 and sigma_k^2, the distribution of P^(LLN) can "
            "be approximated by a log-normal distribution with variance sigma_lln^2 = a "
            "(alpha^2 sigma_q^2 + beta^2 sigma_k^2) + b where a and b are constants",
            "one a and b for every head size",
        ),
        "lln.equation-28": Printed(
            "equation 28, section A.6",
            "sigma_nom^2 ~ ln[(e^(alpha^2 sigma_q^2 + beta^2 sigma_k^2) - 1)/d + 1]",
        ),
        "lln.equation-29": Printed(
            "equation 29, section A.6",
            "Similarly, for the denominator: sigma_den^2 ~ ln[(e^s - 1)/N + 1]",
        ),
        "lln.equation-32": Printed(
            "equation 32, section A.6",
            "the variance of the LLN Attention matrix is a sum of the nominator and "
            "denominator variances, i.e.: sigma_lln^2 = sigma_nom^2 + sigma_den^2",
        ),
        "lln.equation-10": Printed(
            "equation 10",
            "alpha = s / (sqrt(2) sigma_q); beta = s / (sqrt(2) sigma_k); "
            "s = sqrt((sigma_q^2 sigma_k^2 - b) / a)",
            "with a and b fitted to the head size, Var(log P) of a dense LLN matrix is that of "
            "softmax, for score variances of 1 to 4",
        ),
        "lln.equation-11": Printed(
            "equation 11",
            "let us define the temperature of the LLN Attention to be: tau_lln = 1/sqrt(a "
            "(alpha^2 sigma_q^2 + beta^2 sigma_k^2) + b)",
            "a real number at the feature variances of 1 to 4 of section A.7",
        ),
        "lln.section-a7-range": Printed(
            "section A.7",
            "a broad range of [feature variances], particularly those in [1, 4]",
        ),
        "lln.section-a7-variance": Printed(
            "section A.7",
            "the variance of the LLN Attention with moment matching approximates that of the "
            "Softmax Attention",
        ),
        "lln.section-4.1-kernels": Printed(
            "section 4.1",
            "quadratic, ReLU, and their linear counterparts, are indifferent to the temperature",
        ),
        "lln.figure-2": Printed(
            "section 4.1",
            "the moment matching is essential to align the entropy and the spectral gap of the LLN "
            "Attention with those of the SA",
            "equal entropy, of one Gaussian head of score variance 4",
        ),
        "lln.table-1": Printed(
            "section 5",
            "The LLN Attention method outperforms the other LA methods with an average accuracy of "
            "86.9%",
        ),
        "lln.table-2-memory": Printed(
            "section 5.1", "with Diag Attention adding only a 10[%] memory overhead"
        ),
        "lln.table-2-speed": Printed(
            "section 5.1",
            "both LLN and LLN+Diag Attention demonstrate superior speed compared to Nystromformer",
        ),
    }
)
