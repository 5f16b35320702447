// The kinds of attention: what they are called, and which of them can be looked into.

const READABLE = { softmax: "softmax", lln: "LLN", lln_diag: "LLN+Diag", block_diagonal: "block-diagonal" };

export const isReadable = (kind) => kind in READABLE;

export const attentionName = (kind) => READABLE[kind] ?? kind.replaceAll("_", " ");
