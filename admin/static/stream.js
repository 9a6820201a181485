// Reads an answer as it is generated: server-sent events over a request of our own.

// It was refused, or broke off: the message is for people.
export class Broken extends Error {}

export async function stream(url, token, body, signal, take) {
  let answer;
  try {
    answer = await fetch(url, {
      method: "POST",
      headers: { accept: "application/json", "content-type": "application/json", "x-csrf-token": token },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Broken("Can't reach the server. Check your connection and try again.");
  }
  if (!answer.ok) throw new Broken(await reason(answer));
  let rest = "";
  let isWhole = false;
  try {
    for await (const piece of pieces(answer.body)) {
      const events = (rest + piece).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;  // a comment, to keep the connection
        const data = event.slice(6);
        if (data === "[DONE]") {
          isWhole = true;
          continue;
        }
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Broken(chunk.error.message);
        take(chunk);
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Broken) throw error;
    throw new Broken("The response was interrupted. Try again.");
  }
  if (!isWhole) throw new Broken("The response was interrupted. Try again.");
}

// As texts; not every browser iterates over a stream by itself.
async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return "Something went wrong. Try again in a moment.";
  }
}
