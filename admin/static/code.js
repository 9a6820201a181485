// A request as code to copy, in three languages. What people wrote is quoted for each, never trusted.

const indented = (value) => JSON.stringify(value, null, 2);

function curl(origin, request) {
  const body = indented(request).replaceAll("'", "'\\''");
  return `curl ${origin}/v1/chat/completions \\
  -H "Authorization: Bearer $ROOTSTOCK_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '${body}'
`;
}

// Of texts, numbers and lists Python's literals are JSON's.
function python(origin, request) {
  const given = Object.entries(request).map(([name, value]) => `    ${name}=${indented(value).replaceAll("\n", "\n    ")},\n`);
  return `import os
from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(`${origin}/v1`)}, api_key=os.environ["ROOTSTOCK_API_KEY"])
answer = client.chat.completions.create(
${given.join("")})
print(answer.choices[0].message.content)
`;
}

function javascript(origin, request) {
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${JSON.stringify(`${origin}/v1`)}, apiKey: process.env.ROOTSTOCK_API_KEY });
const answer = await client.chat.completions.create(${indented(request)});
console.log(answer.choices[0].message.content);
`;
}

// In the order in which the page has them.
export const languages = [curl, python, javascript];
