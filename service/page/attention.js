// The kinds of attention: their names, and which of them the server can analyse.

const READABLE = { softmax: "softmax", lln: "LLN", lln_diag: "LLN+Diag", block_diagonal: "block-diagonal" };

export const isReadable = (kind) => kind in READABLE;

export const attentionName = (kind) => READABLE[kind] ?? kind.replaceAll("_", " ");
