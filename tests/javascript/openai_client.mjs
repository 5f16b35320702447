// Embeds its arguments with OpenAI's package: node openai_client.mjs URL TEXT...
import OpenAI from "openai";

const [baseURL, ...texts] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused" });
const answer = await client.embeddings.create({ model: "default", input: texts });
const refusal = await client.embeddings
  .create({ model: "default", input: "" })
  .catch(({ status, code, param }) => ({ status, code, param }));
console.log(
  JSON.stringify({
    vectors: answer.data.map((item) => item.embedding),
    tokens: answer.usage.total_tokens,
    refusal,
  }),
);
